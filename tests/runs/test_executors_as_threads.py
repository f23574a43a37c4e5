"""Executors as threads of one process: they do what processes do, with the same numbers, and die together."""

import pytest
from live_runs import killing, on_loop, settings

from mlxe_async.errors import SettingsError
from mlxe_async.settings import load_settings
from mlxe_async.supervisor import Supervisor

pytestmark = pytest.mark.long

ROLLOUTS = {"executors": 3, "envs_per_executor": 2, "rollout_steps": 16}
PUSHING = {"kind": "oa", "gradients": "executors", **ROLLOUTS}
KINDS = {
    "one learner": {"schedule": {"kind": "is", **ROLLOUTS}, "algorithm": {"name": "ppo", "epochs": 2}},
    "one that exploits": {
        "schedule": {"kind": "is", **ROLLOUTS, "exploit_only": 1, "temperature_by_executor": [1.0, 2.0]},
        "algorithm": {"name": "impala"},
    },
    "episodes": {"schedule": {"kind": "is", "executors": 2}},
}
PUSHES = {
    "twins": {"schedule": PUSHING, "algorithm": {"name": "a2c"}},
    "as written": {"schedule": PUSHING, "algorithm": {"name": "impala"}, "learner": {"fast": False}},
    "means": {"schedule": {**PUSHING, "combine": "mean"}, "algorithm": {"name": "a2c"}},
    "one that exploits": {"schedule": {**PUSHING, "exploit_only": 1}, "algorithm": {"name": "a2c"}},
    "minibatches": {"schedule": PUSHING, "algorithm": {"name": "ppo", "epochs": 2, "minibatch": 16}},
}


def threads(tables):
    """The same tables with executors as threads."""
    return {**tables, "schedule": {**tables["schedule"], "executors_as": "threads"}}


@pytest.mark.parametrize("kind", KINDS)
def test_synchronous_runs_give_the_same_bits(live, kind):
    one, lines = live(**threads(KINDS[kind]))
    other, _ = live(**KINDS[kind])
    assert one.weights_hash == other.weights_hash
    begun = {line["process"] for line in lines.all("proc_start")}
    assert "mlxe-exe" in begun
    assert not any(name.startswith("mlxe-exe-") for name in begun)


@pytest.mark.parametrize("kind", PUSHES)
@pytest.mark.parametrize("first_as", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_recorded_order_gives_the_same_bits_in_the_other_form(live, kind, first_as):
    tables = {**PUSHES[kind], "run": {"name": "test", "seed": 3, "record": True}}
    first = live(**(threads(tables) if first_as == "threads" else tables))[0]
    other = {"threads": "processes", "processes": "threads"}[first_as]

    async def again():
        chosen = load_settings(first.run_dir / "settings.toml", {"schedule.executors_as": other})
        return await Supervisor(chosen, run_dir=first.run_dir.parent, replay=first.run_dir).run()

    repeated = on_loop(again)
    assert repeated.weights_hash == first.weights_hash
    assert repeated.replayed.startswith("all ")


KILLS = killing((3, "mlxe-exe"), (6, "mlxe-exe"))


def test_a_death_of_all_at_once_changes_no_weight_where_rounds_are_made_again(live):
    tables = {**threads(KINDS["one learner"]), "stop": {"env_steps": 6000}, "supervision": {"backoff_s": 0.05}}
    killed, lines = live(KILLS, **tables)
    assert len(lines.all("proc_exit", expected=False)) == 2
    assert killed.weights_hash == live(**tables)[0].weights_hash


@pytest.mark.parametrize(
    "schedule", [PUSHING, pytest.param({"kind": "oa", **ROLLOUTS}, marks=pytest.mark.slow), {"kind": "ia", **ROLLOUTS}]
)
def test_a_run_goes_on_after_the_death_of_all_at_once(live, schedule):
    tables = threads({"schedule": schedule, "algorithm": {"name": "impala"}})
    result, lines = live(KILLS, **tables, stop={"env_steps": 6000}, supervision={"backoff_s": 0.05})
    assert result.reason == "env_steps"
    assert len(lines.all("proc_exit", expected=False)) == 2
    for account in lines.all("pushes")[-1:]:
        parts = ("applied", "too_old", "odd", "outliers", "given_up", "lost", "waiting")
        assert account["made"] == sum(account[name] for name in parts)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"kind": "is", "gradients": "executors"}, "serial"),
        ({**PUSHING, "name": "own_ppo:PPO"}, "random generators that all threads share"),
    ],
)
def test_threads_whose_random_numbers_would_get_mixed_up_are_refused(written, said):
    tables = {"algorithm": {"name": written.pop("name", "a2c")}, "schedule": {**written, "executors_as": "threads"}}
    with pytest.raises(SettingsError, match=rf"schedule\.executors_as: got \"threads\", expected .*{said}"):
        settings(**tables)


@pytest.mark.parametrize("kind", ["serial", "istb"])
def test_a_schedule_of_one_process_has_no_such_key(kind):
    with pytest.raises(SettingsError, match=r"schedule\.executors_as"):
        settings({"schedule.kind": kind, "schedule.executors_as": "threads"})
