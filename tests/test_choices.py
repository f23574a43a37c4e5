"""Defaults that follow the task: which rules apply, that a written key wins, and that a run keeps what was chosen."""

import json
import tomllib
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from mlxe_async.algorithms import REGISTRY, load_algorithm
from mlxe_async.choices import BOUNDED, ROLLOUTS, RULES, TABLES, VALUES
from mlxe_async.ipc.shared.words import PAGE_BYTES, ProgressPage
from mlxe_async.settings import load_settings
from mlxe_async.supervisor.startup.probe import judged
from mlxe_async.tasks.vector import VectorTask
from mlxe_async.workers.probe import Probe

PRESETS = sorted((Path(__file__).parents[1] / "settings").glob("*.toml"))


class Wandering(gymnasium.Env):
    """Nothing ends it."""

    observation_space, action_space = Discrete(9), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return int(action), -1.0, False, False, {}


class Picture(gymnasium.Env):
    """A black picture, its channels last; an episode ends after some ten steps."""

    action_space = Discrete(3)

    def __init__(self, *sides):
        self.observation_space = Box(0, 1, (*sides, 3), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        black = np.zeros(self.observation_space.shape, np.float32)
        return black, 1.0, bool(self.np_random.random() < 0.1), False, {}


REGISTERED = {
    "Wandering-v0": Wandering,
    "Grid-v0": lambda: Picture(12, 12),
    "Middling-v0": lambda: Picture(30, 400),
    "Large-v0": lambda: Picture(300, 400),
}


@pytest.fixture(autouse=True)
def registered():
    for name, made_by in REGISTERED.items():
        gymnasium.register(name, entry_point=made_by)
    yield
    for name in REGISTERED:
        del gymnasium.registry[name]


def probed(settings):
    probe = Probe(settings.model_dump(mode="json"), ProgressPage(bytearray(PAGE_BYTES)), settings.said)
    try:
        return probe.probe()
    finally:
        probe.close()


def found(env, name, overrides=(), **tables):
    """Settings as a run would have them, the keys that were chosen, and what it is cautioned of."""
    settings = load_settings({"task": {"env": env}, "algorithm": {"name": name}, **tables}, overrides)
    facts = probed(settings)
    outcome = judged(settings, facts)
    return outcome.settings, {one["setting"]: one["value"] for one in facts["chosen"]}, outcome.cautions


def test_stacked_pictures_are_turned_as_single_ones_are():
    for history, shape in ((1, (3, 12, 12)), (4, (12, 12, 12))):
        settings, chosen, _ = found("Grid-v0", "ppo", [f"task.history={history}"])
        assert chosen["task.channels_first"] is True
        vector = VectorTask(settings.task.model_dump(), 1)
        assert vector.spaces.observation_shape == shape
        vector.close()


def test_temperatures_by_executor_leave_no_bound_by_distance():
    _, chosen, _ = found("Pendulum-v1", "ppo")
    assert chosen["algorithm.max_kl"] == 0.05
    apart = {"kind": "is", "executors": 2, "temperature_by_executor": [1.0, 1.5]}
    settings, chosen, _ = found("Pendulum-v1", "ppo", schedule=apart)
    assert "algorithm.max_kl" not in chosen
    assert settings.algorithm.table["max_kl"] == 0.0


def test_numbers_under_a_short_time_limit_get_long_rollouts_scaled_rewards_and_a_near_horizon():
    settings, chosen, _ = found("Pendulum-v1", "ppo", stop={"env_steps": 70_000})
    table = settings.algorithm.table
    assert (table["reward_scaling"], table["discount"], table["anneal_steps"]) == (True, 0.95, 70_000)
    assert (settings.schedule.envs_per_executor, settings.schedule.rollout_steps) == (4, 256)
    many, _, _ = found("Pendulum-v1", "ppo", schedule={"executors": 8})
    assert (many.schedule.envs_per_executor, many.schedule.rollout_steps) == (4, 64)
    assert chosen["algorithm.entropy"] == 0.0


@pytest.mark.parametrize(("limit", "discount"), [(5, 0.9), (100, 0.9), (250, 0.96)])
def test_a_discount_by_the_time_limit_has_a_floor(limit, discount):
    settings, _, _ = found("Pendulum-v1", "ppo", [f"task.max_episode_steps={limit}"])
    assert settings.algorithm.table["discount"] == discount


def test_a_key_that_is_written_wins_over_every_rule():
    written = ["algorithm.discount=0.9", "algorithm.reward_scaling=false", "schedule.rollout_steps=100"]
    settings, chosen, _ = found("Pendulum-v1", "ppo", written)
    assert (settings.algorithm.table["discount"], settings.algorithm.table["reward_scaling"]) == (0.9, False)
    assert settings.schedule.rollout_steps == 100
    assert not {"algorithm.discount", "algorithm.reward_scaling", "schedule.rollout_steps"} & chosen.keys()
    assert "schedule.envs_per_executor" in chosen


def test_without_an_end_in_steps_nothing_follows_from_the_length_of_the_run():
    rules = {rule.name: set(rule.sets) for rule in RULES if rule.name == "length of the run"}
    _, chosen, _ = found("CartPole-v1", "dqn")
    assert not rules["length of the run"] & chosen.keys()
    _, chosen, _ = found("CartPole-v1", "dqn", stop={"env_steps": 50_000})
    assert chosen == {"algorithm.anneal_steps": 50_000, "algorithm.epsilon_steps": 6_000}


def test_episodes_that_nothing_ends_get_a_limit_and_that_is_told():
    settings, chosen, cautions = found("Wandering-v0", "ppo")
    assert chosen["task.max_episode_steps"] == settings.task.max_episode_steps == 1000
    assert settings.evaluation.max_episode_steps == 1000
    (told,) = [caution for caution in cautions if "task.max_episode_steps" in caution]
    assert "no episode of random play ended" in told
    settings, chosen, _ = found("Wandering-v0", "ppo", ["task.max_episode_steps=77"])
    assert settings.task.max_episode_steps == 77
    assert "task.max_episode_steps" not in chosen


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_a_small_picture_with_its_channels_last_goes_through_small_convolutions(name):
    settings, chosen, cautions = found("Grid-v0", name)
    assert settings.task.channels_first
    assert settings.algorithm.table["body"] == chosen["algorithm.body"] == "small"
    assert any("task.channels_first" in caution for caution in cautions)
    settings, chosen, _ = found("Grid-v0", name, ["algorithm.body=none"])
    assert not settings.task.channels_first
    assert not {"task.channels_first", "algorithm.layers", "algorithm.common"} & chosen.keys()


def test_keys_that_would_have_no_effect_are_not_chosen():
    _, chosen, _ = found("CartPole-v1", "dqn", ["algorithm.noisy=true"], stop={"env_steps": 50_000})
    assert "algorithm.epsilon_steps" not in chosen
    assert "algorithm.priority_correction_steps" not in chosen


def test_own_algorithms_and_mlxe_have_their_authors_defaults():
    assert found("CartPole-v1", "mlxe", stop={"env_steps": 1000})[1] == {}
    copy = "mlxe_async.algorithms.ppo:PPO"
    assert found("Pendulum-v1", copy, stop={"env_steps": 1000})[1] == {}


@pytest.mark.parametrize(
    ("name", "env", "rows"),
    [
        ("Replays", "CartPole-v1", 100_000),
        ("Replays", "Middling-v0", 2**30 // (2 * 36_000 * 4)),
        ("Replays", "Large-v0", None),  # fewer would fit than there are where no rule applies
        ("Fewer", "CartPole-v1", 5000),
        ("Corrects", "CartPole-v1", None),
        ("Rollouts", "CartPole-v1", None),
    ],
)
def test_what_learns_from_rows_however_old_is_given_many(name, env, rows):
    settings, chosen, _ = found(env, f"replaying:{name}", ["schedule.executors=1"])
    assert settings.memory.capacity_rows == rows
    assert chosen.get("memory.capacity_rows") == (rows if name == "Replays" else None)


def test_rows_that_are_written_stay():
    settings, chosen, _ = found("CartPole-v1", "replaying:Replays", memory={"capacity_rows": 3000})
    assert (settings.memory.capacity_rows, chosen) == (3000, {})


def test_each_built_in_algorithm_is_of_one_kind_that_rules_know():
    kinds = (ROLLOUTS, VALUES, BOUNDED, TABLES, {"mlxe"})
    assert sorted(name for kind in kinds for name in kind) == sorted(REGISTRY)
    settable = {key for table in ("task", "schedule", "memory") for key in _keys(table)}
    settable |= {f"algorithm.{key}" for name in REGISTRY for key in load_algorithm(name).Settings.model_fields}
    assert {key for rule in RULES for key in rule.sets} <= settable


def _keys(table):
    settings = load_settings({"task": {"env": "CartPole-v1"}})
    return [f"{table}.{key}" for key in type(getattr(settings, table)).model_fields]


def test_the_same_task_gives_the_same_choices():
    first, second = (probed(load_settings({"task": {"env": "Acrobot-v1"}, "algorithm": {"name": "ppo"}})) for _ in "ab")
    assert first["chosen"] == second["chosen"]
    clock = {"step_seconds": 0.0}
    assert {**first["measured"], **clock} == {**second["measured"], **clock}


@pytest.mark.long
@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_no_rule_changes_a_preset(path):
    env = tomllib.loads(path.read_text())["task"]
    if env.get("vectorize") == "envpool":
        pytest.importorskip("envpool")
    facts = probed(load_settings(path))
    if "pip install" in facts.get("task_error", ""):
        pytest.skip(facts["task_error"])
    assert facts["chosen"] == []


KEPT = Path(__file__).parent / "benchmarks" / "results" / "two_lines.jsonl"


def kept():
    """The newest record of each pair: what was chosen for it, and its steps."""
    records = map(json.loads, KEPT.read_text().splitlines())
    return {record["settings"]: (record["steps"], record["chosen"]) for record in records if not record["failed"]}


@pytest.mark.long
@pytest.mark.parametrize("pair", kept())
def test_kept_runs_of_two_lines_are_of_the_rules_of_now(pair):
    env, name = pair.rsplit(":", 1)
    steps, chosen = kept()[pair]
    facts = probed(load_settings({"task": {"env": env}, "algorithm": {"name": name}, "stop": {"env_steps": steps}}))
    if "pip install" in facts.get("task_error", ""):
        pytest.skip(facts["task_error"])
    assert {one["setting"]: json.loads(json.dumps(one["value"])) for one in facts["chosen"]} == chosen


@pytest.mark.parametrize(
    ("algorithm", "executors", "said"),
    [
        ({"name": "dqn", "batch": 2}, 4, "got 2, expected at least 4: a row for each of 4 executors"),
        (
            {"name": "dqn", "cell": "lstm", "batch": 64, "sequence_steps": 16, "burn_in": 8, "n_step": 1},
            3,
            "got 64, expected at least 72: a sample of 24 rows for each of 3 executors",
        ),
        ({"name": "dqn", "batch": 4}, 4, ""),
    ],
)
def test_where_executors_differentiate_each_has_a_part_of_each_minibatch(algorithm, executors, said):
    schedule = {"kind": "is", "gradients": "executors", "executors": executors}
    settings = load_settings({"task": {"env": "CartPole-v1"}, "algorithm": algorithm, "schedule": schedule})
    problems = probed(settings).get("problems", [])
    assert problems == ([{"path": ["algorithm", "batch"], "message": said}] if said else [])
