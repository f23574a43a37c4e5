"""The executor: true rows, whole rollouts, faults that stay where they are."""

import numpy as np
import pytest
from role_fakes import LAYOUT, FakeAlgorithm, FakeLane, FakePage, FakeTask, FakeWeights

from mlxe_async.errors import EnvironmentFault, MlxeError
from mlxe_async.roles import row_writer
from mlxe_async.roles.executor import Executor
from mlxe_async.roles.executor_plan import ExecutorLink, ExecutorMemory, ExecutorPlan
from mlxe_async.roles.fault_budget import STEPS_PER_FAULT, FaultBudget, TooManyFaults
from mlxe_async.roles.places import Places

BLOCK = 4


def make(
    task,
    *,
    sync="episode",
    rollout_steps=5,
    lane=None,
    weights=None,
    fault_limit=3,
    nonfinite="abort_episode",
    places=None,
    legacy=None,
    episodes=None,
    **more,
):
    plan = ExecutorPlan(
        index=1,
        seed=7,
        life=0,
        sync=sync,
        rollout_steps=rollout_steps,
        block_rows=BLOCK,
        step_timeout_s=5.0,
        reset_timeout_s=60.0,
        fault_limit=fault_limit,
        fault_window_s=60.0,
        nonfinite=nonfinite,
        tells_memory=True,
    )
    lane = lane or FakeLane(BLOCK)
    said, waits = [], []
    executor = Executor(
        plan,
        task=task,
        algorithm=FakeAlgorithm(),
        layout=LAYOUT,
        memory=ExecutorMemory(lane, weights or FakeWeights(), FakePage(), places, legacy),
        link=ExecutorLink(said.append, waits.append, **more),
        episodes=episodes,
    )
    return executor, lane, said, waits


def test_a_rollout_is_one_episode_whatever_the_size_of_a_block():
    executor, lane, _, _ = make(FakeTask([10]))
    report = executor.generate(rollout=0)
    rows = lane.rows(BLOCK)
    assert report["rows"] == 10
    assert rows["obs"][:, 1].tolist() == list(range(10))
    assert rows["next_obs"][:, 1].tolist() == list(range(1, 11))
    assert rows["step"].tolist() == list(range(10))
    assert rows["terminated"].tolist() == [0] * 9 + [1]
    assert rows["last"].tolist() == [0] * 9 + [1]
    assert [count for _, count, _ in lane.blocks] == [4, 4, 2]
    assert report["episodes"]["return"][0] == 10.0


@pytest.mark.parametrize(("least", "rows"), [(0, 3), (3, 3), (4, 6), (6, 6), (7, 9)])
def test_whole_episodes_are_gathered_until_they_have_as_many_rows_as_are_wanted(least, rows):
    executor, lane, _, _ = make(FakeTask([3]))
    report = executor.generate(rollout=0, least_rows=least)
    episodes = rows // 3
    assert report["rows"] == rows
    assert report["episodes"]["steps"] == [3] * episodes
    kept = lane.rows(BLOCK)
    assert kept["last"].tolist() == [0] * (rows - 1) + [1]
    assert kept["terminated"].tolist() == [0, 0, 1] * episodes
    assert kept["episode"].tolist() == np.repeat(np.arange(episodes), 3).tolist()


class _SmallLane(FakeLane):
    """It holds so many blocks; `read` takes all of them, and says what it was told to settle."""

    def __init__(self, slots, room=True):
        super().__init__(BLOCK, 64)
        self.holds, self.room, self.settled = slots, room, []

    def reserve(self):
        return None if self.backlog() >= self.holds else super().reserve()

    def read_all(self, settle):
        self.settled.append(settle)
        taken = self.backlog() if self.room else 0
        self.position += taken
        return {"rows": taken * BLOCK, "positions": [self.position], "corrupt": []}


def test_who_shares_a_thread_with_the_memorizer_has_its_lane_read_whenever_that_is_full():
    lane = _SmallLane(2)
    executor, _, _, waits = make(FakeTask([30]), lane=lane, read=lane.read_all)
    report = executor.generate(rollout=0, settle={"updates": 3})
    assert lane.rows(BLOCK)["obs"][:, 1].tolist() == list(range(30))
    assert lane.settled == [{"updates": 3}, None, None]
    assert [read["rows"] for read in report["ingested"]] == [8, 8, 8]
    assert waits == []
    assert executor.generate(rollout=1)["ingested"][0]["positions"] == [8]


def test_who_waits_for_room_that_nobody_else_can_make_raises_at_once_and_names_the_keys():
    lane = _SmallLane(2, room=False)
    executor, _, _, waits = make(FakeTask([30]), lane=lane, read=lane.read_all)
    with pytest.raises(BufferError, match=r"full after 2 blocks .* raise memory\.capacity_rows, or deliver less at a"):
        executor.generate(rollout=0)
    assert waits == []


def test_an_episode_is_cut_at_so_many_rows_and_goes_on_in_the_next_rollout():
    executor, lane, _, _ = make(FakeTask([10]))
    first, second = executor.generate(rollout=0, most_rows=7), executor.generate(rollout=1, most_rows=7)
    assert [(report["rows"], report["cut"]) for report in (first, second)] == [(7, True), (3, False)]
    rows = lane.rows(BLOCK)
    assert rows["step"].tolist() == list(range(10))
    assert rows["cut"].tolist() == [0] * 6 + [1] + [0] * 3
    assert rows["last"].tolist() == [0] * 6 + [1] + [0] * 2 + [1]
    assert (first["running"], second["episodes"]["steps"]) == ([True], [10])


class _ReadLane(FakeLane):
    """A reader has taken so many of the blocks that are committed."""

    def __init__(self, slots, taken):
        super().__init__(BLOCK, slots)
        self.taken = taken

    def commit(self, count):
        sequence = super().commit(count)
        self.position = self.taken(len(self.blocks))
        return sequence


@pytest.mark.parametrize(
    ("slots", "taken", "told"),
    [
        (64, lambda _blocks: 0, 1),  # now and then
        (6, lambda _blocks: 0, 1),  # half the lane waits, but the reader was told and has not come yet
        (6, lambda blocks: max(0, blocks - 3), 3),  # it comes, and half the lane waits again and again
        (6, lambda blocks: int(blocks > 3), 2),  # it came once
        (6, lambda blocks: blocks, 1),  # it needs no word
    ],
)
def test_the_reader_is_woken_now_and_then_and_when_half_the_lane_waits_and_it_was_not_told(
    monkeypatch, slots, taken, told
):
    monkeypatch.setattr(row_writer, "TELL_S", 60.0)
    executor, lane, said, _ = make(FakeTask([22]), lane=_ReadLane(slots, taken))
    executor.generate(rollout=0)
    assert len(lane.blocks) == 6
    assert said == [{"kind": "commit"}] * told


def test_the_last_observation_is_the_true_one_and_truncation_is_not_termination():
    executor, lane, _, _ = make(FakeTask([3], truncated=True))
    executor.generate(rollout=0)
    rows = lane.rows(BLOCK)
    assert rows["next_obs"][-1].tolist() == [0, 3]
    assert (rows["terminated"].tolist(), rows["truncated"].tolist()) == ([0, 0, 0], [0, 0, 1])


def test_a_rollout_of_steps_goes_over_episodes_without_false_rows_and_ends_with_a_cut():
    executor, lane, _, _ = make(FakeTask([2, 3]), sync="rollout", rollout_steps=5)
    report = executor.generate(rollout=0)
    rows = lane.rows(BLOCK)
    assert report["rows"] == 10
    mine = rows["env"] == 0
    assert rows["obs"][mine].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0]]
    assert rows["next_obs"][mine].tolist() == [[0, 1], [0, 2], [1, 1], [1, 2], [2, 1]]
    assert rows["terminated"][mine].tolist() == [0, 1, 0, 1, 0]
    assert rows["cut"][mine].tolist() == [0, 0, 0, 0, 1]
    assert rows["episode"][mine].tolist() == [0, 0, 1, 1, 2]
    assert rows["last"].tolist() == [0] * 9 + [1]
    second = executor.generate(rollout=1)
    assert second["rows"] == 10
    assert lane.rows(BLOCK)["obs"][10].tolist() == [2, 1]


@pytest.mark.parametrize(("length", "sizes", "cut"), [(7, [5, 2, 5, 2], [4, 11]), (5, [5, 5], []), (3, [3, 3, 3], [])])
def test_a_rollout_by_either_ends_with_an_episode_or_after_its_steps_whichever_is_first(length, sizes, cut):
    executor, lane, _, _ = make(FakeTask([length]), sync="either", rollout_steps=5)
    reports = [executor.generate(rollout=number) for number in range(len(sizes))]
    assert [report["rows"] for report in reports] == sizes
    rows = lane.rows(BLOCK)
    ends = [*range(length - 1, len(rows["obs"]), length)]
    assert np.flatnonzero(rows["terminated"]).tolist() == ends
    assert np.flatnonzero(rows["cut"]).tolist() == cut  # in the midst of an episode, where there is an end to value
    assert np.flatnonzero(rows["last"]).tolist() == sorted({*ends, *cut})
    assert rows["step"].tolist() == [*range(length)] * len(ends)


def test_weights_are_taken_between_rollouts_only_and_every_row_says_which():
    weights = FakeWeights(version=3)
    executor, lane, _, _ = make(FakeTask([3]), weights=weights)
    executor.generate(rollout=0)
    weights.version = 8
    executor.generate(rollout=1)
    assert lane.rows(BLOCK)["version"].tolist() == [3] * 3 + [8] * 3


def test_a_version_that_is_asked_for_and_not_there_is_an_error_by_name():
    executor, _, _, _ = make(FakeTask([3]), weights=FakeWeights(version=3))
    with pytest.raises(
        MlxeError, match="executor 1 generating: expected weights 4, the newest that could be had are 3"
    ):
        executor.generate(rollout=0, version=4)


def test_the_same_rollout_begun_again_is_the_same():
    def rows_of(attempt=0, rollout=0):
        task = FakeTask([40])
        executor, lane, _, _ = make(task)
        executor.generate(rollout=rollout, attempt=attempt)
        return task.seeds, lane.rows(BLOCK)["action"].tolist()

    assert rows_of() == rows_of()
    assert rows_of()[0] != rows_of(attempt=1)[0]
    assert rows_of(rollout=1)[1] != rows_of()[1]


def test_every_episode_has_a_seed_of_its_own():
    task = FakeTask([1, 1])
    executor, _, _, _ = make(task, sync="rollout", rollout_steps=20)
    executor.generate(rollout=0, finished_episodes=5)
    seeds = [seed for _, seed, _ in task.seeds]
    assert len(set(seeds)) == len(seeds) == 40
    assert {finished for _, _, finished in task.seeds} == {5}


def test_the_clock_counts_the_executors_steps_over_rollouts_and_lives():
    executor, _, _, _ = make(FakeTask([3, 4]), sync="rollout", rollout_steps=3)
    seen = []
    act = executor.algorithm.act

    def noting(obs, rng, acting):
        seen.append((acting.steps, acting.episodes, acting.rollouts))
        return act(obs, rng, acting)

    executor.algorithm.act = noting
    executor.generate(rollout=0, finished_episodes=2)
    executor.generate(rollout=7, finished_episodes=9, steps=100)  # as its supervisor knows after a restart
    assert seen == [(0, 2, 0), (2, 2, 0), (4, 2, 0), (100, 9, 7), (102, 9, 7), (104, 9, 7)]


def test_a_fault_is_told_its_row_is_not_kept_and_the_others_go_on():
    task = FakeTask([4, 4], faults=[(0, 0, 2)])
    executor, lane, said, waits = make(task, sync="rollout", rollout_steps=4)
    report = executor.generate(rollout=0)
    rows = lane.rows(BLOCK)
    assert report["rows"] == 7
    assert rows["obs"][rows["env"] == 0].tolist() == [[0, 0], [1, 0], [1, 1]]
    assert rows["obs"][rows["env"] == 1].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3]]
    (fault,) = [message for message in said if message["kind"] == "env_error"]
    assert (fault["executor"], fault["env"], fault["episode"], fault["step"]) == (1, 0, 0, 2)
    assert task.rebuilt == [0]
    assert waits
    assert report["begun"] == [1, 1]


@pytest.mark.parametrize(("unmade", "limit"), [(2, 3), (3, 3)])
def test_an_environment_that_cannot_be_made_anew_is_tried_again_within_the_budget(unmade, limit):
    task = FakeTask([4], faults=[(0, 0, 2)])
    task.unmade = unmade
    executor, lane, said, waits = make(task, fault_limit=limit)
    if unmade >= limit:
        with pytest.raises(TooManyFaults, match="the port is taken"):
            executor.generate(rollout=0)
    else:
        assert executor.generate(rollout=0)["rows"] == 5
        assert lane.rows(BLOCK)["episode"].tolist() == [0, 1, 1, 1, 1]
    told = [message for message in said if message["kind"] == "env_error"]
    assert [message["phase"] for message in told] == ["step"] + ["make"] * unmade
    assert [message["faults"] for message in told] == list(range(1, unmade + 2))
    assert waits == sorted(set(waits))
    assert executor._page.calls[-1] == "left"


def test_too_many_faults_end_the_executor():
    task = FakeTask([9], faults=[(0, episode, 1) for episode in range(20)])
    executor, _, _, _ = make(task, fault_limit=3)
    with pytest.raises(TooManyFaults, match="at most 3 environment faults"):
        executor.generate(rollout=0)


def test_a_full_lane_makes_the_executor_wait_a_bounded_time_at_a_time():
    lane = FakeLane(BLOCK, full=8)
    executor, _, _, waits = make(FakeTask([3]), lane=lane)
    report = executor.generate(rollout=0)
    assert report["rows"] == 3
    assert len(waits) == 8
    assert max(waits) <= 0.02


def test_steps_and_resets_are_announced_with_their_limits():
    executor, _, _, _ = make(FakeTask([2]))
    executor.generate(rollout=0)
    assert executor._page.calls == [60.0, "left", 60.0, "left", 5.0, "left"]


def test_only_environments_that_stand_elsewhere_than_before_are_told_of():
    executor, _, _, _ = make(FakeTask([7, 3]), sync="rollout", rollout_steps=4)
    begun, running, told = [None] * 2, [None] * 2, []
    for rollout in range(8):
        report = executor.generate(rollout=rollout)
        told.append(report["moved"])
        for env, number, is_running in zip(report["moved"], report["begun"], report["running"], strict=True):
            begun[env], running[env] = number, is_running
        state = executor.state()
        assert (begun, running) == (state["episode"].tolist(), state["running"].tolist())
    # Episodes of seven and three steps, four steps a rollout.
    assert told == [[0, 1], [0, 1], [1], [0, 1], [1], [0, 1], [0, 1], [0, 1]]


def test_a_restarted_executor_goes_on_counting_its_episodes():
    executor, lane, _, _ = make(FakeTask([2]), episodes=[17])
    report = executor.generate(rollout=0)
    assert lane.rows(BLOCK)["episode"].tolist() == [17, 17]
    assert report["begun"] == [18]
    assert report["episodes"]["episode"][0] == 17


@pytest.mark.parametrize(
    ("lengths", "at_step", "limit", "survives"),
    [
        ([10_000], STEPS_PER_FAULT + 1, 2, True),
        ([10_000], STEPS_PER_FAULT // 2, 2, False),
        ([10_000, 10_000], 1, 6, False),
    ],
)
def test_good_steps_make_up_for_faults_of_the_same_environment(lengths, at_step, limit, survives):
    task = FakeTask(lengths, faults=[(0, episode, at_step) for episode in range(8)])
    lane = FakeLane(BLOCK, slots=1000)
    executor, _, said, _ = make(task, lane=lane, fault_limit=limit, sync="rollout", rollout_steps=450)
    if not survives:
        with pytest.raises(TooManyFaults):
            executor.generate(rollout=0)
        return
    executor.generate(rollout=0)
    assert [message["faults"] for message in said if message["kind"] == "env_error"] == [1] * 8


def test_one_bad_step_in_a_hundred_is_forgiven_for_a_million_steps():
    budget, rng = FaultBudget(1, 1e9), np.random.default_rng(0)
    worst = 0
    for good_steps in rng.geometric(0.01, 10_000) - 1:
        budget.stepped(np.array([good_steps]))
        worst = max(worst, budget.failed(0))
    assert worst <= 5, "the default of supervision.env_fault_limit"


@pytest.mark.parametrize(
    ("nonfinite", "detail", "rebuilt"),
    [
        ("abort_episode", "expected finite numbers, got nan", [0]),
        ("reset_env", "expected finite numbers, got nan", []),
        ("reset_env", "raised ValueError", [0]),
    ],
)
def test_an_environment_whose_numbers_are_not_finite_may_be_kept(nonfinite, detail, rebuilt):
    task = FakeTask([4], faults=[(0, 0, 2)])
    task.detail = detail
    executor, lane, said, _ = make(task, nonfinite=nonfinite)
    executor.generate(rollout=0)
    assert [message["kind"] for message in said if message["kind"] != "commit"] == ["env_error"]
    assert task.rebuilt == rebuilt
    assert lane.rows(BLOCK)["episode"].tolist() == [0, 1, 1, 1, 1]


def test_numbers_that_are_never_finite_are_not_put_up_with_for_ever():
    task = FakeTask([9], faults=[(0, episode, 1) for episode in range(20)])
    task.detail = "expected finite numbers, got nan"
    with pytest.raises(TooManyFaults):
        make(task, nonfinite="reset_env")[0].generate(rollout=0)


def test_what_is_odd_is_told_and_counted_with_each_rollout_and_so_is_memory():
    task = FakeTask([3])
    notes = [("bounds", "they leave them")]
    task.take_notes = lambda: [notes.pop()] if notes else []
    executor, _, said, _ = make(task)
    task.out_of_bounds = 2
    first = executor.generate(rollout=0)
    task.out_of_bounds = 5
    assert (first["out_of_bounds"], executor.generate(rollout=1)["out_of_bounds"]) == (2, 3)
    assert said == [{"kind": "note", "executor": 1, "about": "bounds", "detail": "they leave them"}]
    assert 1 < first["rss_mb"] < 1e5


def test_where_it_stands_is_known_before_the_environment_is_called():
    task, seen = FakeTask([3, 3]), []
    places = Places(2, "<i8", ())
    executor, _, _, _ = make(task, sync="rollout", rollout_steps=4, places=places)
    reset, step = task.reset, task.step

    def watched_reset(index, seed, finished):
        seen.append(("reset", index, places.episode[index], seed == places.seed[index], places.running[index]))
        return reset(index, seed, finished)

    def watched_step(actions):
        seen.append(("step", (places.step + 1).tolist(), places.action.tolist() == actions.tolist()))
        return step(actions)

    task.reset, task.step = watched_reset, watched_step
    executor.generate(rollout=0)
    assert seen == [
        ("reset", 0, 0, True, False),
        ("reset", 1, 0, True, False),
        *(("step", [number] * 2, True) for number in (1, 2, 3)),
        ("reset", 0, 1, True, False),
        ("reset", 1, 1, True, False),
        ("step", [1, 1], True),
    ]


def test_an_exception_of_an_environment_that_speaks_of_finite_numbers_is_no_nan():
    about = {"phase": "step", "env_index": 0}
    assert EnvironmentFault("reward: expected a finite number, got nan", **about).nonfinite
    assert not EnvironmentFault("raised ValueError: expected finite numbers", **about, trace="Traceback").nonfinite


def test_it_puts_the_weights_it_has_just_played_with_on_the_shelf_whatever_was_published_since():
    weights, shelf = FakeWeights(), []
    executor, *_ = make(FakeTask([3, 3]), weights=weights, shelf=shelf.append)
    assert executor.shelve(result=5.0) == {"shelved": False}
    weights.publish(np.full(3, 7, np.float32))
    executor.generate(rollout=0)
    weights.publish(np.full(3, 9, np.float32))
    assert executor.shelve(result=5.0) == {"shelved": True}
    assert [vector.tolist() for vector in shelf] == [[7, 7, 7, 5, 2, 0]]


def test_what_could_not_be_read_whole_is_put_on_no_shelf():
    weights, shelf = FakeWeights(), []
    executor, *_ = make(FakeTask([3, 3]), weights=weights, shelf=shelf.append)
    executor.generate(rollout=0)
    weights.publish(np.full(3, 9, np.float32))
    weights.read = lambda _into: None
    assert executor.generate(rollout=1)["version"] == 1
    assert executor.shelve(result=5.0) == {"shelved": False}
    assert not shelf
