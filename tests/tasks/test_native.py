"""Native vectors: whichever way they reset themselves, no row is ever made of a step that only did that."""

import re

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from mlxe_async.errors import EnvironmentFault, TaskError
from mlxe_async.settings.task import Task
from mlxe_async.tasks.making import make
from mlxe_async.tasks.native import NativeTask
from mlxe_async.tasks.training import training_task
from mlxe_async.tasks.vector import VectorTask

BOX = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)


class Counting(gymnasium.Env):
    """Observations say (episode, step); an episode of environment i has 2 + i steps."""

    observation_space, action_space = BOX, gymnasium.spaces.Discrete(2)

    def __init__(self, **_):
        pass

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {}


class CountingVector(VectorEnv):
    """The same as a vector, resetting itself in `mode`; at `fault`, (step, what), it breaks its contract."""

    def __init__(self, num_envs=1, autoreset_mode=AutoresetMode.NEXT_STEP, mode=None, fault=None):
        self.num_envs, self.mode, self.fault = num_envs, AutoresetMode[mode] if mode else autoreset_mode, fault
        self.metadata = {"autoreset_mode": self.mode}
        self.single_observation_space, self.single_action_space = BOX, Counting.action_space
        self.ticks = 0

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        if options is None:
            self.obs, self.over = np.zeros((self.num_envs, 2), np.float32), np.zeros(self.num_envs, bool)
        else:
            self._restart(mask)
        return self.obs.copy(), {}

    def _restart(self, mask):
        self.obs[mask, 0] += 1
        self.obs[mask, 1] = 0

    def step(self, actions):
        self.ticks += 1
        resetting = self.over if self.mode == AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        self.obs[~resetting, 1] += 1
        self._restart(resetting)
        over = ~resetting & (self.obs[:, 1] >= 2 + np.arange(self.num_envs))
        self.over, info, reward = over, {}, np.where(resetting, 0.0, 1.0)
        if self.mode == AutoresetMode.SAME_STEP and over.any():
            info = {"final_obs": np.full(self.num_envs, None, object)}
            for i in np.flatnonzero(over):
                info["final_obs"][i] = self.obs[i].copy()
            self._restart(over)
        obs = self.obs.copy()
        if self.fault and self.ticks == self.fault[0]:
            if self.fault[1] == "raise":
                raise OSError("lost")
            if self.fault[1] == "nan":
                obs[1, 0] = np.nan
            if self.fault[1] == "reward":
                reward = reward[:1]
        return obs, reward, over, np.zeros(self.num_envs, bool), info


gymnasium.register("mlxe/Counting-v0", entry_point=Counting, vector_entry_point=CountingVector)


def played(mode, steps=12, **kwargs):
    """The rows (env, episode, step reached, terminated) of some steps, and the observations they began with."""
    task = NativeTask({"env": "mlxe/Counting-v0", "kwargs": {"mode": mode, **kwargs}}, 3)
    obs, rows = task.begin(seed=1), []
    for _ in range(steps):
        step = task.step(np.zeros(3, np.int64))
        assert not step.faults
        for i in np.flatnonzero(step.ok):
            # From the observation before to the one after, within one episode.
            assert step.next_obs[i].tolist() == [obs[i, 0], obs[i, 1] + 1]
            assert step.raw_reward[i] == 1.0
            rows.append((int(i), *map(int, step.next_obs[i]), bool(step.terminated[i])))
        assert (step.start[step.began, 1] == 0).all()
        obs = step.start
    return rows


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_rows_are_the_steps_of_episodes_and_nothing_else_however_a_vector_resets(mode):
    rows = played(mode)
    for env in range(3):
        mine = [row[1:] for row in rows if row[0] == env]
        length = 2 + env
        assert mine == [(n // length, n % length + 1, n % length == length - 1) for n in range(len(mine))]
        resets = 12 // (length + 1) if mode == "NEXT_STEP" else 0
        assert len(mine) == 12 - resets


def test_resetting_within_the_step_is_chosen_where_it_can_be():
    assert NativeTask({"env": "mlxe/Counting-v0"}, 2)._mode == AutoresetMode.SAME_STEP


@pytest.mark.parametrize(
    ("fault", "said"), [("raise", "raised OSError: lost"), ("nan", "environment 1"), ("reward", "reward: expected 3")]
)
def test_a_fault_of_one_is_a_fault_of_all_and_the_vector_goes_on_after_being_made_anew(fault, said):
    task = NativeTask({"env": "mlxe/Counting-v0", "kwargs": {"fault": [2, fault]}}, 3)
    task.begin(seed=1)
    assert task.step(np.zeros(3, np.int64)).ok.all()
    step = task.step(np.zeros(3, np.int64))
    assert not step.ok.any()
    assert said in step.faults[0].detail
    task.rebuild(step.faults[0].env_index)
    task.begin(seed=2)
    assert task.step(np.zeros(3, np.int64)).ok.all()


def test_a_native_cartpole_makes_the_steps_of_a_single_one():
    task, single = NativeTask({"env": "CartPole-v1", "vectorize": "native"}, 4), gymnasium.make("CartPole-v1").unwrapped
    obs, rng = task.begin(seed=3), np.random.default_rng(0)
    single.reset()
    for _ in range(60):
        actions = rng.integers(0, 2, 4)
        step = task.step(actions)
        for i in np.flatnonzero(step.ok):
            single.state, single.steps_beyond_terminated = obs[i].astype(np.float64), None
            next_obs, reward, terminated, _, _ = single.step(int(actions[i]))
            assert np.allclose(step.next_obs[i], next_obs, atol=1e-5)
            assert (step.reward[i], step.terminated[i]) == (reward, terminated)
        obs = step.start


def test_features_and_shaped_rewards_are_those_of_single_environments():
    table = {"env": "CartPole-v1", "squared_position": True, "shaped_reward": True}
    native, single = NativeTask(table, 3), VectorTask(table, 3)
    obs = native.begin(seed=0)
    assert np.array_equal(obs[:, 4], obs[:, 0] ** 2)
    for i in range(3):
        single.reset(i, seed=i)
        single._envs[i].unwrapped.state = obs[i, :4].astype(np.float64)
    actions = np.array([0, 1, 1])
    mine, theirs = native.step(actions), single.step(actions)
    assert np.allclose(mine.next_obs, theirs.next_obs, atol=1e-6)
    assert np.allclose(mine.reward, theirs.reward, atol=1e-5)


def test_the_setting_decides_and_says_why_it_cannot_be():
    assert type(training_task({"env": "CartPole-v1"}, 2)) is VectorTask
    assert type(training_task({"env": "CartPole-v1", "vectorize": "auto"}, 2)) is NativeTask
    assert type(training_task({"env": "Acrobot-v1", "vectorize": "auto"}, 2)) is VectorTask
    assert type(training_task({"env": "CartPole-v1", "vectorize": "auto", "adverse_starts": True}, 2)) is NativeTask
    with pytest.raises(TaskError, match="adverse_starts is for environments that are stepped one by one"):
        training_task({"env": "mlxe/Counting-v0", "vectorize": "native", "adverse_starts": True}, 2)
    with pytest.raises(TaskError, match="Acrobot-v1 has no vector environment of its own"):
        training_task({"env": "Acrobot-v1", "vectorize": "native"}, 2)
    with pytest.raises(TaskError, match="wrappers is for environments that are stepped one by one"):
        training_task({"env": "CartPole-v1", "vectorize": "native", "wrappers": ["a:B"]}, 2)
    with pytest.raises(TaskError, match=r"max_episode_steps.*takes no limit"):
        training_task({"env": "mlxe/Counting-v0", "vectorize": "native", "max_episode_steps": 7}, 2)
    with pytest.raises(EnvironmentFault, match="CountingVector"):
        training_task({"env": "mlxe/Counting-v0", "vectorize": "native", "kwargs": {"unknown": 1}}, 2)


class Unsaid(CountingVector):
    """It does not say how it resets."""

    def __init__(self, num_envs=1):
        super().__init__(num_envs)
        self.metadata = {}


class Wider(CountingVector):
    """It takes more actions than one environment does."""

    def __init__(self, num_envs=1):
        super().__init__(num_envs)
        self.single_action_space = gymnasium.spaces.Discrete(5)


gymnasium.register("mlxe/Alone-v0", vector_entry_point=CountingVector)
gymnasium.register("mlxe/Unsaid-v0", entry_point=Counting, vector_entry_point=Unsaid)
gymnasium.register("mlxe/Wider-v0", entry_point=Counting, vector_entry_point=Wider)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Alone", r"task\.env: mlxe/Alone-v0 is registered as a vector alone"),
        ("Unsaid", r"task\.vectorize: the vector of mlxe/Unsaid-v0 does not say in its metadata how it resets"),
        ("Wider", r"task\.vectorize: the vector of mlxe/Wider-v0 takes Discrete\(5\), one environment Discrete\(2\)"),
    ],
)
def test_a_vector_that_cannot_stand_for_single_environments_is_refused_in_a_sentence(name, words):
    with pytest.raises(TaskError, match=words):
        training_task({"env": f"mlxe/{name}-v0", "vectorize": "native"}, 2)


def test_the_quicker_action_space_gives_the_answers_of_gymnasiums():
    quick, plain = make(Task(env="CartPole-v1")).unwrapped.action_space, gymnasium.spaces.Discrete(2)
    for x in (-1, 0, 1, 2, 2**70, True, 1.0, np.int64(1), np.int64(2), np.array(0), np.array([0]), "1", None):
        assert quick.contains(x) is plain.contains(x)
    assert quick == plain


@pytest.mark.parametrize(
    ("kwargs", "switches", "words"),
    [
        ({"observation": gymnasium.spaces.Discrete(3)}, {}, "shows Discrete(3) and takes Discrete(3)"),
        ({"observation": gymnasium.spaces.Dict({"a": BOX})}, {}, "shows Dict('a': Box("),
        ({"action": gymnasium.spaces.MultiBinary(2)}, {}, "takes MultiBinary(2)"),
        ({}, {"action_mask": True}, "task.action_mask is for environments that are stepped one by one"),
        (
            {"observation": gymnasium.spaces.Dict({"a": BOX})},
            {"observe": ["a"]},
            "task.observe is for environments that are stepped one by one",
        ),
    ],
)
def test_spaces_that_are_packed_are_stepped_one_by_one(kwargs, switches, words):
    task = {"env": "many_spaces:Vectorised-v0", "kwargs": kwargs, **switches}
    with pytest.raises(TaskError, match=re.escape(words)):
        training_task({**task, "vectorize": "native"}, 2)
    single = training_task({**task, "vectorize": "auto"}, 2)
    assert isinstance(single, VectorTask)
    single.close()


def adverse_native(count, **switches):
    return NativeTask({"env": "CartPole-v1", "vectorize": "native", "adverse_starts": True, **switches}, count)


def test_a_native_cartpole_begins_in_adverse_starts_too_and_goes_on_from_them():
    task, plain = adverse_native(400), NativeTask({"env": "CartPole-v1", "vectorize": "native"}, 400)
    moved, bare = task.begin(3), plain.begin(3)
    rows, entries = np.nonzero(moved != bare)
    assert len(rows) / 400 == pytest.approx(0.8, abs=0.06)
    assert {(int(entry), round(float(moved[row, entry]), 3)) for row, entry in zip(rows, entries, strict=True)} == {
        (0, -1.5),
        (0, 1.5),
        (2, -0.15),
        (2, 0.15),
    }
    step = task.step(np.ones(400, np.int64))
    assert step.next_obs[:, 0] == pytest.approx(moved[:, 0] + 0.02 * moved[:, 1], abs=1e-6)


def test_episodes_that_begin_in_the_midst_of_a_native_vector_do_too_by_those_finished_so_far():
    task = adverse_native(200, squared_position=True)
    task.finished_episodes = 25  # 0.4 of the starts
    task.begin(5)
    starts = []
    for number in range(150):
        step = task.step(np.full(200, number % 2))
        starts += step.start[step.began].tolist()
        assert np.array_equal(step.start[:, 4], step.start[:, 0] ** 2)
    starts = np.array(starts)
    hard = (np.abs(starts[:, 0]) == 1.5) | (np.abs(starts[:, 2]) == np.float32(0.15))
    assert len(starts) > 300
    assert hard.mean() == pytest.approx(0.4, abs=0.08)
    again = adverse_native(200, squared_position=True)
    assert np.array_equal(again.begin(8), adverse_native(200, squared_position=True).begin(8))
