"""Episodes that nothing ends: the budget of steps is kept, and what cannot be learned from names its key."""

import pytest
from in_one_process import probed
from live_runs import HERE

from mlxe_async.errors import RunFailed
from mlxe_async.settings import load_settings

ENDLESS = {"env": "plain_tasks:Shown", "kwargs": {"steps": 0}}
MLXE = {"name": "mlxe", "min_updates": 4, "batch": 32}


def endless(**tables):
    run = {"name": "endless", "python_path": [str(HERE)]}
    return {"run": run, "task": {**ENDLESS, "max_episode_steps": None}, **tables}


@pytest.mark.long
def test_the_budget_of_steps_is_kept_and_serial_and_is_stop_alike(live):
    found = []
    for kind in ("serial", "is"):
        result, run = live(
            task={**ENDLESS, "max_episode_steps": None},
            algorithm=MLXE,
            schedule={"kind": kind, "executors": 2},
            stop={"env_steps": 601},
        )
        assert (result.reason, result.steps, result.episodes) == ("env_steps", 602, 0)
        assert result.updates > 0
        assert [line for line in run.all("warning") if "episodes of plain_tasks:Shown have no limit" in line["message"]]
        found.append(result.weights_hash)
    assert found[0] == found[1]


@pytest.mark.long
def test_what_needs_whole_episodes_ends_with_the_key_that_would_end_them(live):
    with pytest.raises(
        RunFailed, match=r"more than 2048 rows, .* end episodes by task\.max_episode_steps, or raise mem"
    ):
        live(
            task={**ENDLESS, "max_episode_steps": None},
            algorithm={"name": "reinforce"},
            schedule={"kind": "serial", "executors": 2},
            stop={"env_steps": 5000},
        )


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({"algorithm": MLXE}, 'set task.max_episode_steps, or schedule.sync = "rollout"'),
        ({"algorithm": {"name": "reinforce"}}, "set task.max_episode_steps"),
        ({"algorithm": MLXE, "task": {**ENDLESS, "max_episode_steps": 9}}, None),
        ({"algorithm": {"name": "ppo"}}, None),
    ],
)
def test_the_probe_says_beforehand_that_nothing_may_end_an_episode(tables, told):
    cautions = [line for line in probed(load_settings(endless(**tables))).cautions if "have no limit" in line]
    assert [line.endswith(told) for line in cautions] == ([] if told is None else [True])
