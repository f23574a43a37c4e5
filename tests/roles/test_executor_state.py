"""An executor's state: where its environments stand, and the actions that bring another one there."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from role_fakes import FakeTask
from test_executor import make

from mlxe_async.roles.history import MOST_RELIVED, History


class Summing(FakeTask):
    """Observations say what the episode's seed and the actions add up to."""

    def reset(self, index, seed, finished_episodes=0):
        self.sums = getattr(self, "sums", [0] * self.count)
        self.sums[index] = seed % 97 + finished_episodes
        return super().reset(index, seed, finished_episodes)

    def _obs(self, index):
        return np.array([self.sums[index], self.steps[index]], np.float32)

    def step(self, actions, only=None):
        which = range(self.count) if only is None else only
        kept = list(self.steps)
        for env in which:
            self.sums[env] = 2 * (self.sums[env] % 1000) + int(actions[env])
        done = super().step(actions)
        for env in set(range(self.count)) - set(which):
            self.steps[env] = kept[env]
        return SimpleNamespace(**{**vars(done), "next_obs": np.stack([self._obs(env) for env in range(self.count)])})


def recording(lengths=(13, 17)):
    executor, lane, _, _ = make(Summing(list(lengths)), sync="rollout", rollout_steps=5)
    executor.plan = dataclasses.replace(executor.plan, records=True)
    return executor, lane


def test_another_one_goes_on_in_the_middle_of_an_episode():
    first, first_lane = recording()
    for rollout in range(2):
        first.generate(rollout=rollout)
    state = {name: array.copy() for name, array in first.state().items()}
    assert state["running"].tolist() == [True, True]
    assert state["step"].tolist() == [10, 10]
    assert len(state["actions.0"]) == 10
    second, second_lane = recording()
    assert second.restore(state) == {"begun_anew": [], "unlike": []}
    before = len(first_lane.blocks)
    reports = [executor.generate(rollout=2, finished_episodes=4) for executor in (first, second)]
    assert [block[0] for block in first_lane.blocks[before:]] == [block[0] for block in second_lane.blocks]
    for report in reports:
        for name in ("start_ns", "seconds", "lane_wait_s", "rss_mb"):
            del report[name]
    # The other one has told nobody yet where its second environment stands.
    assert [report.pop("moved") for report in reports] == [[0], [0, 1]]
    assert [report.pop("begun") for report in reports] == [[1], [1, 0]]
    assert [report.pop("running") for report in reports] == [[True], [True, True]]
    assert reports[0] == reports[1]
    assert first.state()["step"].tolist() == second.state()["step"].tolist()
    assert first.state().keys() == second.state().keys()


def test_actions_are_those_of_the_present_or_last_episode_only_and_none_where_nothing_is_recorded():
    executor, _ = recording([5])
    for rollout in range(2):
        executor.generate(rollout=rollout)
        assert executor.state()["running"].tolist() == [False]
        assert len(executor.state()["actions.0"]) == 5
    assert executor._history._now == []
    plain, *_ = make(Summing([10]))
    plain.generate(rollout=0)
    assert "actions.0" not in plain.state()


class Remembering(Summing):
    """What an episode leads to depends on how many came before it in this process."""

    def reset(self, index, seed, finished_episodes=0):
        self.episodes = getattr(self, "episodes", -1) + 1
        return super().reset(index, seed + self.episodes, finished_episodes)


@pytest.mark.parametrize("sync", ["episode", "rollout"])
@pytest.mark.parametrize(("kind", "unlike"), [(Summing, []), (Remembering, [0])])
def test_an_ended_episode_is_lived_again_to_see_whether_a_seed_brings_its_environment_back(sync, kind, unlike):
    def one():
        executor, lane, *_ = make(kind([5]), sync=sync)
        executor.plan = dataclasses.replace(executor.plan, records=True)
        return executor, lane

    (first, first_lane), (second, second_lane) = one(), one()
    for rollout in range(3):
        first.generate(rollout=rollout)
    state = {name: array.copy() for name, array in first.state().items()}
    assert second.restore(state) == {"begun_anew": [], "unlike": unlike}
    if not unlike:
        assert all((second.state()[name] == state[name]).all() for name in state)
        before = len(first_lane.blocks)
        for executor in (first, second):
            executor.generate(rollout=3)
        assert [block[0] for block in first_lane.blocks[before:]] == [block[0] for block in second_lane.blocks]


@pytest.mark.parametrize("spoil", ["obs", "actions.0"])
def test_where_the_last_observation_differs_or_actions_are_missing_the_episode_is_passed_over(spoil):
    first, _ = recording([13])
    first.generate(rollout=0)
    state = {name: array.copy() for name, array in first.state().items()}
    state[spoil] = state[spoil] + 1 if spoil == "obs" else state[spoil][:-1]
    second, _ = recording([13])
    assert second.restore(state) == {"begun_anew": [0], "unlike": []}
    assert second.state()["running"].tolist() == [False]
    assert second.state()["episode"].tolist() == [state["episode"][0] + 1]


def test_an_episode_that_is_too_long_is_known_not_to_be_whole():
    history = History(1)
    history.begin(0, 0)
    rows = np.zeros((1,), np.int64)
    for _ in range(3):
        history._now = [rows] * (MOST_RELIVED // 2 + 1)
        history.forget_all_but(np.array([True]))
    assert len(history.actions_of(0)) < MOST_RELIVED
