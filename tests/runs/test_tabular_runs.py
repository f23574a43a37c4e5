"""Q-learning and Sarsa in real runs: learned under every schedule that is sound for them, and refused by the others."""

import pytest

from mlxe_async import load_policy
from mlxe_async.errors import SettingsError

LAKE = {"env": "FrozenLake-v1", "kwargs": {"is_slippery": False}, "max_episode_steps": 100}
QUICK = {"learning_rate": 0.3, "learning_rate_last": 0.05, "anneal_steps": 4000}
QUICK |= {"epsilon_first": 0.5, "epsilon_steps": 3000}
PIECES = {"sync": "rollout", "rollout_steps": 8, "envs_per_executor": 4}


def run(live, name, kind, steps, **schedule):
    return live(
        task=LAKE,
        algorithm={"name": name, **QUICK},
        schedule={"kind": kind, "executors": 2, **PIECES, **schedule},
        stop={"env_steps": steps},
    )


SOUND = [("q_learning", kind) for kind in ("serial", "istb", "is", "ia", "oa")]
SOUND += [("sarsa", kind) for kind in ("serial", "istb", "is", "ia")]


@pytest.mark.parametrize(
    ("name", "kind"),
    [pytest.param(*one, marks=() if one == ("q_learning", "serial") else pytest.mark.slow) for one in SOUND],
)
def test_the_lake_is_crossed_by_what_was_learned(live, name, kind):
    result, lines = run(live, name, kind, 4000)
    policy = load_policy(result.run_dir, checkpoint="last")
    (episode,) = policy.play(1)
    assert episode.episode_return == 1.0
    assert episode.steps <= (6 if name == "q_learning" else 8)  # Sarsa may keep away from holes
    assert policy.act(14) == 2  # left of the goal, as the environment itself tells it
    ledger = lines.all("ledger")[-1]
    assert (ledger["lost"], ledger["backlog"]) == (0, 0)


@pytest.mark.slow
def test_beside_the_cliff_q_learning_learns_the_short_way_and_sarsa_the_safe_one(live):
    """Sutton and Barto 2018, example 6.6: what is best when greedy costs more while exploring."""
    found = {}
    for name, more in (("q_learning", {}), ("sarsa", {"n_step": 1})):
        result, lines = live(
            task={"env": "CliffWalking-v1", "max_episode_steps": 500},
            algorithm={"name": name, "learning_rate": 0.3, "epsilon_first": 0.1, "epsilon_last": 0.1, **more},
            schedule={"kind": "serial", **PIECES},
            stop={"env_steps": 24_000},
        )
        (episode,) = load_policy(result.run_dir, checkpoint="last").play(1)
        exploring = [line["episode_return"] for line in lines.all("episode_end")[-200:]]
        found[name] = (episode.episode_return, sum(exploring) / len(exploring))
    assert found["q_learning"][0] == -13
    assert -19 <= found["sarsa"][0] <= -15
    assert found["sarsa"][1] > found["q_learning"][1] + 5


@pytest.mark.slow
def test_rollouts_may_be_whole_episodes(live):
    result, lines = live(
        task=LAKE,
        algorithm={"name": "sarsa"},
        schedule={"kind": "serial", "sync": "episode", "envs_per_executor": 1},
        stop={"env_steps": 600},
    )
    assert result.updates == len(lines.all("phase", phase="learn")) > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["q_learning", "sarsa"])
def test_the_synchronous_schedule_equals_the_serial_one_bit_for_bit(live, name):
    serial, together = (run(live, name, kind, 800)[0] for kind in ("serial", "is"))
    assert serial.weights_hash == together.weights_hash
    assert together.updates >= 5


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ({"kind": "oa"}, "versions old"),
        pytest.param({"kind": "is", "simulated_lag": 1}, "got 1, expected 0", marks=pytest.mark.slow),
    ],
)
def test_sarsa_is_refused_where_rollouts_are_of_an_older_policy(live, schedule, said):
    with pytest.raises(SettingsError, match=said) as refused:
        run(live, "sarsa", schedule.pop("kind"), 100, **schedule)
    assert "as if its present policy had made them" in str(refused.value)


def test_observations_of_numbers_are_refused_before_anything_is_started(live):
    with pytest.raises(SettingsError, match=r"needs observations of integers alone .*, got 4 floats"):
        live(algorithm={"name": "q_learning"})
