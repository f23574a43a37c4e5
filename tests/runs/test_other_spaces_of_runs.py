"""Runs of tasks whose observations are no plain array: learned from, saved, loaded, and acted by."""

import gymnasium
import numpy as np
import pytest
from live_runs import HERE, QUICK
from parted_tasks import Doors, Lamps

from mlxe_async import load_policy
from mlxe_async.rows import Spaces

PPO = {"name": "ppo", "policy": [32], "value": [32], "learning_rate": 0.01, "minibatch": 64, "normalise": False}
MANY = {"kind": "is", "executors": 2, "sync": "rollout", "rollout_steps": 64, "envs_per_executor": 4}
TESTS = {"enabled": True, "rule": "mean_return", "threshold": 7.5, "episodes": 10, "max_episode_steps": 20, "passes": 1}


def lamps(**kwargs):
    return {"env": "parted_tasks:Lamps", "max_episode_steps": 20, "kwargs": kwargs}


def played_by(policy, env, episodes=3):
    """Returns of episodes played outside of this package, by the environment's own observations."""
    returns = []
    for seed in range(100, 100 + episodes):
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(int(policy.act(obs)))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


@pytest.mark.parametrize(
    "kwargs",
    [pytest.param({}, marks=pytest.mark.long), pytest.param({"pictures": True, "texts": True}, marks=pytest.mark.slow)],
)
def test_ppo_solves_a_task_that_shows_a_dict_and_its_policy_takes_the_dict(live, kwargs):
    task = {**lamps(**kwargs), **({"observe": ["lamp", "shift"]} if kwargs.get("texts") else {})}
    scaled = {"input_scale": [1.0] * 3 + [1 / 255] * 6} if kwargs else {}
    result, run = live(
        task=task,
        algorithm={**PPO, **scaled},
        schedule=MANY,
        evaluation=TESTS,
        stop={"solved": True, "env_steps": 100_000},
    )
    assert result.solved
    assert not run.all("env_error")
    policy = load_policy(result.run_dir)
    assert policy.spaces == Spaces.from_json(run.supervisor._startup.facts["spaces"])
    names = ["shift.0", "shift.1", "lamp"] if kwargs else ["lamp", "shift.0", "shift.1"]
    assert [part.name for part in policy.spaces.parts] == names
    assert policy.test().passed
    env = Lamps(**kwargs)
    assert sum(played_by(policy, env)) > 3 * 6.5
    # One in its own form, the same as it is stored, and several as they are stored.
    obs, _ = env.reset(seed=5)
    action = policy.act(obs)
    assert action == env.right(obs)
    stored = policy._packed(obs, None)
    assert policy.act(stored) == action
    assert policy.act(np.stack([stored, stored])).tolist() == [action, action]
    assert policy.act(obs, rng=np.random.default_rng(0)) in range(4)
    with pytest.raises(ValueError, match=r"observation: expected an entry .* got"):
        policy.act({"shift": obs["shift"]})
    with pytest.raises(ValueError, match=r"task\.action_mask is false; leave it out"):
        policy.act(obs, mask=np.ones(4))
    (episode,) = policy.play(1, seed=0)
    assert episode.steps == 8


@pytest.mark.parametrize("name", [pytest.param("mlxe", marks=pytest.mark.slow), "dqn"])
def test_a_memory_replays_observations_of_parts_of_bytes(live, name):
    own = {"mlxe": QUICK["algorithm"], "dqn": {"name": "dqn", "layers": [32], "batch": 64, "start_rows": 200}}[name]
    scaled = {"input_scale": [1.0] * 3 + [1 / 255] * 6}
    result, run = live(task=lamps(pictures=True), algorithm={**own, **scaled}, stop={"env_steps": 600})
    assert result.reason == "env_steps"
    assert result.updates > 0
    assert not run.all("env_error")
    policy = load_policy(result.run_dir)
    assert policy.act(Lamps(pictures=True).reset(seed=1)[0]) in range(4)


@pytest.mark.slow
def test_a_task_of_integers_is_learned_played_and_acted_in(live):
    task = {"env": "FrozenLake-v1", "max_episode_steps": 50, "kwargs": {"is_slippery": False}}
    tests = {**TESTS, "threshold": 0.9, "max_episode_steps": 50}
    result, _ = live(
        task=task,
        algorithm={**PPO, "discount": 0.95, "entropy": 0.02},
        schedule=MANY,
        evaluation=tests,
        stop={"solved": True, "env_steps": 100_000},
    )
    assert result.solved
    policy = load_policy(result.run_dir)
    assert (policy.spaces.observation_shape, policy.spaces.parts) == ((16,), ())
    env = gymnasium.make("FrozenLake-v1", is_slippery=False)
    assert played_by(policy, env) == [1.0] * 3
    env.close()
    assert all(episode.episode_return == 1 for episode in policy.play(3))
    one_hot = np.eye(16, dtype=np.float32)
    assert [int(policy.act(state)) for state in range(16)] == policy.act(one_hot).tolist()
    assert policy.act(np.int64(3)) == policy.act(3)
    with pytest.raises(ValueError, match="observation: expected from 0 to 15, got 16"):
        policy.act(16)


SLOW = pytest.mark.slow


@pytest.mark.long
@pytest.mark.parametrize("kind", [pytest.param("single", marks=SLOW), "multi", pytest.param("binary", marks=SLOW)])
def test_masks_reach_whoever_acts_learns_tests_and_plays(live, kind):
    result, run = live(
        task={"env": "parted_tasks:Doors", "kwargs": {"kind": kind}, "action_mask": True},
        algorithm={"name": "choosing_algorithm:Choosing"},
        schedule=MANY,
        evaluation={**TESTS, "threshold": 9.0, "screen_steps": 1},
        stop={"env_steps": 3000},
    )
    assert result.reason == "env_steps"
    assert result.updates > 0
    assert not run.all("env_error")
    assert run.all("evaluation", passed=True)
    policy = load_policy(result.run_dir)
    assert [episode.episode_return for episode in policy.play(3)] == [9.0] * 3
    env = Doors(kind)
    obs, info = env.reset(seed=3)
    for _ in range(9):
        action = policy.act(obs, mask=info["action_mask"])
        obs, _, _, _, info = env.step(action.astype(env.action_space.dtype))
    with pytest.raises(ValueError, match=r'expected mask = info\["action_mask"\] of the environment, got none'):
        policy.act(obs)
    with pytest.raises(ValueError, match=r'info\["action_mask"\]: expected \d of 0 or 1, got'):
        policy.act(obs, mask=[1])


def toml(kwargs, more="", algorithm='name = "ppo"'):
    return f"""
[run]
python_path = ["{HERE}"]
[stop]
env_steps = 300
[task]
env = "parted_tasks:Lamps"
kwargs = {{{kwargs}}}
{more}
[schedule]
kind = "is"
[algorithm]
{algorithm}
"""


@pytest.mark.long
def test_a_refused_part_comes_with_a_line_that_works_when_it_is_pasted_and_a_check_tells_the_parts(command):
    code, _, error = command(toml("texts = true")).wait()
    assert code == 2
    assert '"says" (Text) cannot be made numbers of a fixed size' in error
    line = error[error.index("observe = ") :].splitlines()[0]
    code, said, error = command(toml("texts = true", line), "--check").wait()
    assert code == 0, error
    assert "observation   lamp 3 floats, shift.0 1 float, shift.1 2 floats\n" in said
    assert "action        one of 4\n" in said


@pytest.mark.long
def test_a_mask_is_refused_by_the_algorithm_and_one_that_is_not_used_is_told(command):
    asked = toml("masks = true", "action_mask = true", 'name = "dqn"')
    code, _, error = command(asked).wait()
    assert code == 2
    assert "dqn knows nothing of masks; set task.action_mask = false" in error
    code, said, error = command(toml("masks = true"), "--check").wait()
    assert "action_mask = true would use it" in said, error
