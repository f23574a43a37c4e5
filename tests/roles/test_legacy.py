"""An executor that dies at any moment: its successor goes on where it stood, and no rollout comes twice or never."""

import dataclasses

import numpy as np
import pytest
from role_fakes import LAYOUT, FakeLane
from test_executor import BLOCK, make
from test_executor_state import Remembering, Summing

from mlxe_async.ipc.shared.kept import LEAST_BYTES, KeptState
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.roles import legacy as legacies
from mlxe_async.roles.legacy import Legacy, LegacyShape

LENGTHS = (13, 17)
ROLLOUTS = 6
TIMES = ("start_ns", "seconds", "lane_wait_s", "rss_mb")


class Died(BaseException):
    pass


class Mortal(Summing):
    """A task whose executor dies in the step of that number, counted over all lives."""

    dies_at, taken = None, 0

    def step(self, actions, only=None):
        if only is None:
            type(self).taken += 1
            if type(self).taken == self.dies_at:
                raise Died
        return super().step(actions, only)


class MortalLane(FakeLane):
    """A lane whose writer dies before or after a commit, or that only counts."""

    dies_at, after, commits = None, False, 0

    def commit(self, count):
        self.commits += 1
        dies = self.commits == self.dies_at
        if dies and not self.after:
            raise Died
        number = super().commit(count)
        if dies:
            raise Died
        return number


@pytest.fixture
def world():
    with Segment.create("executor-1", LEAST_BYTES, grows=True) as segment:
        yield World(segment)


class World:
    """Executors that follow on each other, on the same lane and the same shared memory."""

    def __init__(self, segment, kind=Mortal, lengths=LENGTHS, steps=200):
        self.segment, self.kind, self.lengths = segment, kind, lengths
        action = LAYOUT.columns[1]
        self.shape = LegacyShape(len(lengths), action.dtype, action.shape, steps, 5 * len(lengths))
        self.memory = bytearray(self.shape.nbytes)
        self.lane, self.deaths, self.said = MortalLane(BLOCK), 0, []

    def executor(self):
        legacy = Legacy(self.shape, KeptState(self.segment), self.memory)
        executor, _, said, _ = make(
            self.kind(list(self.lengths)), sync="rollout", rollout_steps=5, lane=self.lane, legacy=legacy
        )
        executor.plan = dataclasses.replace(executor.plan, records=True)
        self.said.append(said)
        return executor

    def told(self):
        return [one for said in self.said for one in said if one["kind"] == "relived"]

    def run(self, rollouts=ROLLOUTS, attempt=0):
        """Delivered rollouts one after the other, as a handle asks for them: reports, and the rows of each."""
        executor, reports, rows = self.executor(), [], []
        for rollout in range(rollouts):
            while True:
                begun = len(self.lane.blocks)
                try:
                    report = executor.generate(rollout=rollout, finished_episodes=rollout, attempt=attempt)
                except Died:
                    self.deaths += 1
                    executor = self.executor()
                    continue
                break
            reports.append({name: value for name, value in report.items() if name not in (*TIMES, "moved")})
            end = len(self.lane.blocks)
            rows.append([block[0] for block in self.lane.blocks[max(begun, end - report["blocks"]) : end]])
            if report["blocks"] > end - begun:  # delivered before its writer died
                rows[-1] = [block[0] for block in self.lane.blocks[end - report["blocks"] : end]]
            for name in ("begun", "running"):  # of all that a new life tells, of others in the old one
                del reports[-1][name]
        return reports, rows

    def whole(self):
        """Rows of all rollouts whose last row was committed, in order."""
        done, under_way = [], []
        for data, count, _ in self.lane.blocks:
            under_way.append(data)
            if LAYOUT.views(data, BLOCK)["last"][count - 1]:
                done.append(under_way[-3:])
                under_way = []
        return done


@pytest.fixture(autouse=True)
def alive():
    Mortal.dies_at, Mortal.taken = None, 0


@pytest.fixture(scope="module")
def undisturbed():
    with Segment.create("executor-1", LEAST_BYTES, grows=True) as segment:
        Mortal.dies_at = None
        return World(segment).run()


@pytest.mark.parametrize("step", range(1, 5 * ROLLOUTS + 1))
def test_a_death_in_any_step_changes_no_row_that_is_delivered(world, undisturbed, step):
    Mortal.dies_at = step
    assert world.run() == undisturbed
    assert world.deaths == 1
    assert world.told() == []


@pytest.mark.parametrize("commit", range(1, 3 * ROLLOUTS + 1))
@pytest.mark.parametrize("after", [False, True])
def test_a_death_before_or_after_any_commit_neither_repeats_nor_loses_a_rollout(world, undisturbed, commit, after):
    world.lane.dies_at, world.lane.after = commit, after
    assert world.run() == undisturbed
    assert world.deaths == 1
    assert world.whole() == undisturbed[1]


def test_deaths_in_a_row_and_while_episodes_are_lived_again_change_nothing_either(world, undisturbed):
    for step in (12, 13, 14):
        Mortal.dies_at = step
        world.executor()
    Mortal.dies_at = 17
    assert world.run(4)[0] == undisturbed[0][:4]
    for _ in range(2):  # it dies while it takes over
        heir = world.executor()
        heir.task.reset = lambda *_: (_ for _ in ()).throw(Died)
        with pytest.raises(Died):
            heir.generate(rollout=4, finished_episodes=4)
    heir = world.executor()
    report = heir.generate(rollout=4, finished_episodes=4)
    assert report["episodes"] == undisturbed[0][4]["episodes"]


def test_an_environment_that_no_seed_brings_back_is_told(world):
    world.kind, world.lane.dies_at = Remembering, 14
    world.run()
    (told,) = world.told()
    assert told["begun_anew"]
    assert told["detail"] == ""


def test_what_brings_its_executor_down_again_and_again_is_passed_over_and_told(world):
    world.run(2)
    world.executor().generate(rollout=2, attempt=1)
    (told,) = world.told()
    assert (told["begun_anew"], told["unlike"]) == ([0, 1], [])
    assert "again and again" in told["detail"]


def test_an_episode_longer_than_what_is_kept_of_its_actions_is_begun_anew_and_told(monkeypatch, world):
    monkeypatch.setattr(legacies, "ACTION_BYTES", 8 * world.shape.step_bytes)
    world = World(world.segment)
    assert world.shape.span == 8
    world.run(2)
    world.executor().generate(rollout=2)
    (told,) = world.told()
    assert told["begun_anew"] == [0, 1]


def test_a_run_that_was_resumed_leaves_what_it_was_resumed_with(world, undisturbed):
    first = world.executor()
    for rollout in range(3):
        first.generate(rollout=rollout, finished_episodes=rollout)
    state = {name: array.copy() for name, array in first.state().items()}
    with Segment.create("executor-1", LEAST_BYTES, grows=True) as segment:
        resumed = World(segment)
        life = resumed.executor()
        assert life.restore(state) == {"begun_anew": [], "unlike": []}
        heirs = [resumed.executor(), resumed.executor()]  # the first two died before they delivered anything
        for rollout in (3, 4):
            report = heirs[-1].generate(rollout=rollout, finished_episodes=rollout)
            assert report["episodes"] == undisturbed[0][rollout]["episodes"]
        assert resumed.told() == []


def test_an_answer_that_is_too_long_is_not_kept_and_the_rest_is(world, monkeypatch):
    monkeypatch.setattr(legacies, "MOST_ANSWER_BYTES", 10)
    world = World(world.segment)
    legacy = Legacy(world.shape, KeptState(world.segment), world.memory)
    heads = {"step": np.array([3, 2]), "running": np.array([True, False])}
    actions = np.arange(10, dtype=world.shape.dtype).reshape(5, 2)
    for rollout, answer in enumerate(({"a": 1}, {"a": "much too long"})):
        over = np.array([False, True])
        legacy.keep(rollout + 1, rollout, heads, rollout=rollout, answer=answer, actions=actions, over=over)
    heir = Legacy(world.shape, KeptState(world.segment), world.memory)
    assert heir.find(0, heads) is None
    assert heir.find(1, heads).answer == {"a": 1}
    found = heir.find(2, heads)
    assert (found.rollout, found.answer) == (1, None)
    assert found.state["actions.0"].tolist() == [4, 6, 8]
    assert found.state["actions.1"].tolist() == [7, 9]
