"""What an algorithm says of where a rollout or an episode stops is in that row, and in no other."""

import numpy as np
import pytest
from role_fakes import LAYOUT, FakeAlgorithm, FakeLane, FakePage, FakeTask, FakeWeights

from mlxe_async.roles.executor import Executor
from mlxe_async.roles.executor_plan import ExecutorLink, ExecutorMemory, ExecutorPlan
from mlxe_async.rows import Column

CHUNK = 4
STOPS = (Column("seen", "<f4", (2,)), Column("weighed", "<f4"))
WIDE = LAYOUT.with_columns(STOPS)


class Judging(FakeAlgorithm):
    stop_columns = STOPS

    def __init__(self):
        super().__init__()
        self.asked = 0

    def at_stop(self, next_obs):
        self.asked += len(next_obs)
        return {"seen": next_obs, "weighed": np.full(len(next_obs), self.loaded[-1][0])}


class WideLane(FakeLane):
    def __init__(self):
        super().__init__(CHUNK)
        self.payloads = [memoryview(bytearray(WIDE.nbytes(CHUNK))) for _ in range(64)]

    def wide_rows(self):
        views = [{n: c[:count] for n, c in WIDE.views(data, CHUNK).items()} for data, count, _ in self.blocks]
        return {name: np.concatenate([view[name] for view in views]) for name in views[0]}


def generated(task, *, sync, asked=lambda: 0, unfinished=None):
    fixed = {"index": 0, "seed": 7, "life": 0, "block_rows": CHUNK, "step_timeout_s": 5.0, "reset_timeout_s": 60.0}
    fixed |= {"fault_limit": 3, "fault_window_s": 60.0, "nonfinite": "abort_episode", "tells_memory": True}
    lane, weights, algorithm = WideLane(), FakeWeights(), Judging()
    weights.flat[:] = 5.0
    memory, link = ExecutorMemory(lane, weights, FakePage()), ExecutorLink(lambda _: None, lambda _: None, asked)
    plan = ExecutorPlan(sync=sync, rollout_steps=5, **fixed)
    executor = Executor(plan, task=task, algorithm=algorithm, layout=WIDE, memory=memory, link=link)
    executor.generate(rollout=0, unfinished=unfinished)
    return lane.wide_rows(), algorithm


def assert_told_where(rows, stopped):
    assert stopped.any()
    assert not stopped.all()
    np.testing.assert_array_equal(rows["seen"][stopped], rows["next_obs"][stopped])
    assert (rows["weighed"][stopped] == 5.0).all()
    assert not rows["seen"][~stopped].any()
    assert not rows["weighed"][~stopped].any()


@pytest.mark.parametrize("truncated", [False, True])
def test_it_is_asked_of_truncations_and_of_a_rollouts_last_rows(truncated):
    rows, algorithm = generated(FakeTask([3, 9], truncated=truncated), sync="rollout")
    stopped = (rows["truncated"] | rows["cut"]).astype(bool)
    assert rows["truncated"].any() == truncated
    assert rows["terminated"].any() != truncated
    assert_told_where(rows, stopped)
    assert algorithm.asked == stopped.sum()


def test_it_is_asked_of_what_an_interrupted_rollout_is_cut_at():
    looks = iter([0, 0, 0, 1])
    rows, _ = generated(FakeTask([20, 20]), sync="episode", asked=lambda: next(looks), unfinished="keep")
    assert rows["cut"].sum() == 2
    assert_told_where(rows, rows["cut"].astype(bool))
