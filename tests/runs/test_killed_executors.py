"""Where all wait for all, a run whose executors are killed ends with the weights of one that nobody killed."""

import pytest
from live_runs import killing_often

PENDULUM = {"env": "Pendulum-v1", "max_episode_steps": 50}
LAKE = {"env": "FrozenLake-v1", "max_episode_steps": 100}
CARTPOLE = {"env": "CartPole-v1", "max_episode_steps": 200}
HIDDEN = {**CARTPOLE, "hide": [1, 3]}
CASES = {
    "ppo": ({"epochs": 2, "minibatch": 64}, CARTPOLE),
    "ppo with a cell": ({"epochs": 2, "minibatch": 64, "cell": "lstm", "cell_size": 8}, HIDDEN),
    "a2c": ({"reward_scaling": True, "optimiser": "rmsprop", "deviation": "computed"}, PENDULUM),
    "dqn": ({"batch": 64, "train_every": 24, "start_rows": 64, "target_every": 3}, CARTPOLE),
    "sac": ({"batch": 16, "train_every": 16, "start_rows": 64, "layers": [16]}, PENDULUM),
    "q_learning": ({}, LAKE),
}
"""Settings and tasks: rollouts and replay, actions of both kinds, a state that is carried, and a table."""


def run(live, name, steps, body=None):
    """Blocks are small, so that most deaths leave some of a rollout that was not delivered."""
    settings, task = CASES[name]
    return live(
        body,
        algorithm={"name": name.split()[0], **settings},
        task=task,
        memory={"block_rows": 8},
        stop={"env_steps": steps},
        schedule={"kind": "is", "executors": 2, "envs_per_executor": 2, "sync": "rollout", "rollout_steps": 16},
        supervision={"restart_limit": 1000, "restart_window_s": 1.0, "backoff_s": 0.01, "backoff_max_s": 0.01},
    )


def deaths(lines):
    return len([line for line in lines.all("proc_exit", expected=False) if line["signal"] == "SIGKILL"])


def compared(live, name, steps, kills, seed, most_s):
    """Kills that there were; story and weights are those of the undisturbed run."""
    calm, calm_lines = run(live, name, steps)
    hurt, lines = run(
        live, name, steps, killing_often(lambda draw: f"mlxe-exe-{draw.integers(2)}", kills, seed, most_s)
    )
    warned = [line["message"] for line in lines.all("warning") if "started again" in line["message"]]
    assert warned == []
    ended = [sorted(line["episode_return"] for line in one.all("episode_end")) for one in (calm_lines, lines)]
    assert ended[0] == ended[1]
    assert (hurt.weights_hash, hurt.steps, hurt.episodes) == (calm.weights_hash, calm.steps, calm.episodes)
    return deaths(lines)


@pytest.mark.parametrize(
    "name", [pytest.param("ppo", marks=pytest.mark.long), pytest.param("dqn", marks=pytest.mark.slow)]
)
def test_killed_executors_change_no_weight(live, name):
    assert compared(live, name, 3000, 2, 1, 0.05) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("turn", range(3))
def test_twenty_kills_of_executors_change_no_weight_of_any_algorithm(live, name, turn):
    assert compared(live, name, 6000, 20, 10 * turn + 1, 0.05) == 20
