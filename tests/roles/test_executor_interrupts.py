"""A rollout that is ended early: kept up to a cut and gone on with, or thrown away, rows and all."""

import pytest
from role_fakes import LAYOUT, FakeAlgorithm, FakeLane, FakeTask, FakeWeights
from test_executor import BLOCK, make

from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.rollouts import RolloutMemory, RolloutShape
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.roles.memorizer import Memorizer, MemorizerPlan


class RenewableLane(FakeLane):
    def renew(self):
        self.epoch += 1
        return self.epoch


class Asked:
    """The supervisor's word; it is raised to `value` when it has been looked at `after` times."""

    def __init__(self, value=0, after=0):
        self.value, self.after, self.looks = value, after, 0

    def __call__(self):
        self.looks += 1
        return self.value if self.looks > self.after else 0


def interrupted(task, asked, *, unfinished, rollouts=1, sync="episode", weights=None, **more):
    executor, lane, _, _ = make(task, sync=sync, lane=RenewableLane(BLOCK), weights=weights, asked=asked, **more)
    reports = [executor.generate(rollout=number, unfinished=unfinished) for number in range(rollouts)]
    return executor, lane, reports


def memorized(lane, kind="replay", envs=1):
    if kind == "replay":
        shape = ReplayShape(1, envs, 64, 32, BLOCK, 4, 8, LAYOUT.to_json(), [])
        memory = ReplayMemory(shape, bytearray(shape.nbytes))
    else:
        shape = RolloutShape(1, envs, 8, 64, LAYOUT.to_json())
        memory = RolloutMemory(shape, bytearray(shape.nbytes))
    plan = MemorizerPlan(seed=0, block_rows=BLOCK, redo=True, rollouts_per_update=None, plan_updates=8)
    memorizer = Memorizer(plan, algorithm=FakeAlgorithm(), memory=memory, layout=LAYOUT, lanes=[lane])
    return memorizer, memorizer.ingest()


def test_a_rollout_that_cannot_be_interrupted_does_not_look():
    asked = Asked(value=99)
    _, _, (report,) = interrupted(FakeTask([7]), asked, unfinished=None)
    assert (report["rows"], report["cut"], asked.looks) == (7, False, 0)


@pytest.mark.parametrize("after", [0, 2, 3, 4])
def test_what_is_kept_ends_with_a_cut_after_the_step_in_which_it_was_asked(after):
    _, lane, (report,) = interrupted(FakeTask([20]), Asked(1, after), unfinished="keep")
    rows = lane.rows(BLOCK)
    assert (report["rows"], report["cut"], report["running"], report["begun"]) == (after + 1, True, [True], [0])
    assert report["episodes"]["env"] == []
    assert rows["cut"].tolist() == [0] * after + [1]
    assert rows["last"].tolist() == [0] * after + [1]
    assert rows["terminated"].sum() == rows["truncated"].sum() == 0


def test_the_episode_goes_on_where_it_was_under_the_next_weights():
    weights, task = FakeWeights(version=3), FakeTask([9])
    executor, lane, _ = interrupted(task, Asked(1, after=3), unfinished="keep", weights=weights)
    weights.version = 4
    report = executor.generate(rollout=1)
    rows = lane.rows(BLOCK)
    assert rows["obs"][:, 1].tolist() == rows["step"].tolist() == list(range(9))
    assert rows["version"].tolist() == [3] * 4 + [4] * 5
    assert rows["episode"].tolist() == [0] * 9
    assert rows["cut"].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0]
    ended = report["episodes"]
    assert (ended["steps"], ended["return"], ended["episode"]) == ([9], [9.0], [0])
    assert (report["running"], report["begun"], len(task.seeds)) == ([False], [1], 1)


def test_what_was_asked_of_a_former_rollout_does_not_end_the_next():
    asked = Asked(1, after=3)
    executor, _, _ = interrupted(FakeTask([9, 9]), asked, unfinished="keep", sync="rollout")
    report = executor.generate(rollout=1, unfinished="keep")
    assert (report["rows"], report["cut"]) == (10, False)
    asked.value = 3
    assert executor.generate(rollout=2, unfinished="keep")["rows"] == 2


def test_both_halves_of_a_kept_episode_are_learned_from_and_neither_spans_the_cut():
    executor, lane, _ = interrupted(FakeTask([9]), Asked(1, after=3), unfinished="keep")
    executor.generate(rollout=1)
    memorizer, done = memorized(lane)
    assert done == {"rows": 9, "segments": 2, "dropped": 0, "positions": [3], "corrupt": []}
    assert [int(memorizer.memory.row(i)["left"]) for i in memorizer.memory.live()] == [4, 3, 2, 1, 5, 4, 3, 2, 1]


def test_what_is_dropped_is_committed_and_counted_and_never_learned_from():
    executor, lane, (report,) = interrupted(FakeTask([9]), Asked(1, after=5), unfinished="drop")
    assert (report["rows"], report["running"], report["begun"], report["episodes"]["env"]) == (6, [False], [1], [])
    second = executor.generate(rollout=1)
    memorizer, done = memorized(lane)
    assert second["rows"] == 9
    # The 6 dropped rows came in and went out again; the 9 of the next episode stay.
    assert done == {"rows": 15, "segments": 1, "dropped": 6, "positions": [5], "corrupt": []}
    live = [memorizer.memory.row(i) for i in memorizer.memory.live()]
    assert {int(row["episode"]) for row in live} == {1}
    assert len(live) == 9


def test_dropping_leaves_the_episodes_that_were_finished():
    executor, lane, (report,) = interrupted(
        FakeTask([2, 9]), Asked(1, after=4), unfinished="drop", sync="rollout", rollout_steps=20
    )
    assert report["episodes"]["env"] == [0, 0]
    assert report["begun"] == [3, 1]
    executor.generate(rollout=1)
    memorizer, _ = memorized(lane, envs=2)
    kept = {(int(row["env"]), int(row["episode"])) for row in map(memorizer.memory.row, memorizer.memory.live())}
    assert {(0, 0), (0, 1)} <= kept
    assert not {(0, 2), (1, 0)} & kept


def test_a_rollout_of_several_environments_is_cut_where_they_are_under_way():
    _, lane, (report,) = interrupted(
        FakeTask([3, 9]), Asked(1, after=2), unfinished="keep", sync="rollout", rollout_steps=20
    )
    rows = lane.rows(BLOCK)
    assert rows["cut"].tolist() == [0, 0, 0, 0, 0, 1]
    assert rows["terminated"].tolist() == [0, 0, 0, 0, 1, 0]
    assert report["running"] == [False, True]


def test_rollouts_of_different_lengths_are_all_drawn_and_dropped_ones_never():
    executor, lane, _ = interrupted(FakeTask([9]), Asked(1, after=3), unfinished="keep")
    executor.generate(rollout=1)
    memorizer, _ = memorized(lane, "rollouts")
    plan = memorizer.memorize()
    assert (plan["updates"], plan["rows"], len(plan["slots"])) == (1, 9, 2)
    batch, _ = memorizer.memory.gather(plan)
    assert batch["valid"].sum(0).tolist() == [4, 5]
    assert batch["cut"][3, 0] == 1
    assert memorizer.memorize(settle=plan)["updates"] == 0

    executor, lane, _ = interrupted(FakeTask([9]), Asked(1, after=3), unfinished="drop")
    executor.generate(rollout=1)
    memorizer, done = memorized(lane, "rollouts")
    assert (memorizer.memorize()["rows"], done["dropped"]) == (9, 4)
