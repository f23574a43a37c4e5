"""Real runs of algorithms with awkward state: refused before they start, ended later, or told, each by its name."""

from pathlib import Path

import pytest
from unkept import TOLD
from unpublished import CHOSEN, REFUSED

from mlxe_async.errors import SettingsError, Unpublished

TESTS = str(Path(__file__).parents[1])
SCHEDULES = {"serial": {"kind": "serial", "executors": 1}, "is": {"kind": "is"}, "oa": {"kind": "oa"}}
ALWAYS = {("OfGlobal", "serial"), ("MadeLater", "oa"), ("OfDeque", "is")}


def run_of(live, name, kind, *watch):
    env, more = CHOSEN.get(name.partition(":")[2], ("CartPole-v1", {}))
    schedule = {**SCHEDULES[kind], "envs_per_executor": 2, "sync": "rollout", "rollout_steps": 16}
    tables = {"schedule": schedule, "stop": {"env_steps": 1000}, "run": {"python_path": [TESTS]}}
    return live(*watch, algorithm={"name": name, **more}, task={"env": env}, **tables)


def slow_but(name, kind):
    return pytest.param(name, kind, marks=[] if (name, kind) in ALWAYS else pytest.mark.slow)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "kind"),
    [*(slow_but(name, kind) for name in REFUSED for kind in ("serial", "is")), slow_but("MadeLater", "oa")],
)
def test_what_is_acted_by_and_not_published_is_refused_before_anything_starts(live, tmp_path, name, kind):
    with pytest.raises(SettingsError) as found:
        run_of(live, f"unpublished:{name}", kind)
    said = str(found.value)
    assert REFUSED[name] in said.partition("by what is not published: ")[2].partition(";")[0].split(", "), said
    assert not any(tmp_path.rglob("log.jsonl"))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["is", pytest.param("serial", marks=pytest.mark.slow)])
def test_what_is_acted_by_later_ends_the_run_with_exit_code_3(live, kind):
    runs = []

    async def watch(run):
        runs.append(run)
        await run.saw("run_end")

    with pytest.raises(Unpublished, match=r"^learner: after 4 updates .*: temperature;"):
        run_of(live, "unpublished:Seldom", kind, watch)
    (run,) = runs
    assert run.all("run_end")[0]["exit_code"] == 3
    assert all(line["version"] < 5 for line in run.all("published"))


@pytest.mark.long
@pytest.mark.parametrize(("name", "kind"), [slow_but(name, "is") for name in TOLD])
def test_what_no_state_holds_is_told_by_a_run(live, name, kind):
    result, run = run_of(live, f"unkept:{name}", kind)
    assert result.exit_code == 0
    told = [line["message"] for line in run.all("warning") if "no state can hold that" in line["message"]]
    assert len(told) == 1
    assert TOLD[name] in told[0]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["oa", pytest.param("serial", marks=pytest.mark.slow)])
def test_what_is_published_goes_through(live, kind):
    result, _run = run_of(live, "unpublished:OfBuffer", kind)
    assert result.exit_code == 0
