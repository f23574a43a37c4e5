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
    assert second.restore(state) == {"begun_anew": []}
    before = len(first_lane.blocks)
    reports = [executor.generate(rollout=2, finished_episodes=4) for executor in (first, second)]
    assert [block[0] for block in first_lane.blocks[before:]] == [block[0] for block in second_lane.blocks]
    for report in reports:
        for name in ("start_ns", "seconds", "lane_wait_s", "rss_mb"):
            del report[name]
    assert reports[0] == reports[1]
    assert first.state()["step"].tolist() == second.state()["step"].tolist()
    assert first.state().keys() == second.state().keys()


def test_actions_are_forgotten_with_their_episode_and_not_kept_where_none_outlasts_a_rollout():
    executor, _ = recording([5])
    executor.generate(rollout=0)
    assert executor.state()["running"].tolist() == [False]
    assert "actions.0" not in executor.state()
    whole, *_ = make(Summing([10]))
    whole.plan = dataclasses.replace(whole.plan, records=True)
    whole.generate(rollout=0)
    assert whole._history._now == []


@pytest.mark.parametrize("spoil", ["obs", "actions.0"])
def test_where_the_last_observation_differs_or_actions_are_missing_the_episode_is_passed_over(spoil):
    first, _ = recording([13])
    first.generate(rollout=0)
    state = {name: array.copy() for name, array in first.state().items()}
    state[spoil] = state[spoil] + 1 if spoil == "obs" else state[spoil][:-1]
    second, _ = recording([13])
    assert second.restore(state) == {"begun_anew": [0]}
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
