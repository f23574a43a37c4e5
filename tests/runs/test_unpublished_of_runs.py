"""A real run under any schedule is ended by the name of what executors would act by without its being published."""

from pathlib import Path

import pytest

from mlxe_async.errors import Unpublished

TESTS = str(Path(__file__).parents[1])
SCHEDULES = {"serial": {"kind": "serial", "executors": 1}, "is": {"kind": "is"}, "oa": {"kind": "oa"}}


def run_of(live, name, kind, *watch):
    schedule = {**SCHEDULES[kind], "envs_per_executor": 2, "sync": "rollout", "rollout_steps": 16}
    tables = {"schedule": schedule, "stop": {"env_steps": 1000}, "run": {"python_path": [TESTS]}}
    return live(*watch, algorithm={"name": f"unpublished:{name}"}, **tables)


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("OfGlobal", "serial", "after 1 updates .*: unpublished.TEMPERATURE"),
        pytest.param("InPartial", "is", "after 1 updates .*: body.args.0.bias", marks=pytest.mark.slow),
        ("MadeLater", "oa", "after 1 updates .*: extra"),
        ("Seldom", "is", "after 4 updates .*: temperature"),
    ],
)
def test_what_is_acted_by_and_not_published_ends_the_run_with_exit_code_3(live, name, kind, told):
    runs = []

    async def watch(run):
        runs.append(run)
        await run.saw("run_end")

    with pytest.raises(Unpublished, match=f"^learner: {told};"):
        run_of(live, name, kind, watch)
    (run,) = runs
    assert run.all("run_end")[0]["exit_code"] == 3
    assert all(line["version"] < 5 for line in run.all("published"))


@pytest.mark.parametrize("kind", ["oa", pytest.param("serial", marks=pytest.mark.slow)])
def test_what_is_published_goes_through(live, kind):
    result, _run = run_of(live, "OfBuffer", kind)
    assert result.exit_code == 0
