"""The memorizer takes in each block once and gives room back; the learner publishes what is finite, and only that."""

import numpy as np
import pytest
from role_fakes import LAYOUT, FakeAlgorithm, FakeLane, FakePage, FakeTask, FakeWeights
from test_executor import BLOCK, make

from mlxe_async.algorithms.interface import Priorities
from mlxe_async.denormals import are_flushed
from mlxe_async.errors import NumericError
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.roles.learner import Learner
from mlxe_async.roles.memorizer import Memorizer, MemorizerPlan


def memory_of(lanes=1, stream_rows=32):
    shape = ReplayShape(lanes, 1, stream_rows, 16, BLOCK, 4, 8, LAYOUT.to_json(), [])
    return ReplayMemory(shape, bytearray(shape.nbytes))


def memorizer_of(lanes, memory=None, algorithm=None, redo=False):
    plan = MemorizerPlan(seed=0, block_rows=BLOCK, redo=redo, rollouts_per_update=1, plan_updates=8)
    memory = memory_of(len(lanes)) if memory is None else memory
    return Memorizer(plan, algorithm=algorithm or FakeAlgorithm(), memory=memory, layout=LAYOUT, lanes=lanes)


def filled_lane(episodes=1, length=6, version=1):
    lane = FakeLane(BLOCK)
    executor, _, _, _ = make(FakeTask([length]), lane=lane, weights=FakeWeights(version=version))
    for number in range(episodes):
        executor.generate(rollout=number)
    return lane


def test_all_that_is_committed_is_taken_in_and_its_room_given_back():
    lane = filled_lane()
    memorizer = memorizer_of([lane])
    assert memorizer.ingest() == {"rows": 6, "segments": 1, "dropped": 0, "positions": [2], "corrupt": []}
    assert lane.released == [0, 1]
    assert memorizer.ingest()["rows"] == 0


def test_a_corrupt_block_is_named_and_passed_over_and_nothing_spans_it():
    lane = filled_lane(length=12)
    lane.corrupt.add(1)
    memorizer = memorizer_of([lane])
    done = memorizer.ingest()
    assert done["rows"] == 8
    assert done["corrupt"] == [{"lane": 0, "sequence": 1, "detail": "checksum"}]
    lefts = [int(memorizer.memory.row(i)["left"]) for i in memorizer.memory.live()]
    assert lefts == [4, 3, 2, 1, 4, 3, 2, 1]


def test_a_successor_takes_up_where_its_predecessor_stopped():
    lane, shape = filled_lane(episodes=3), memory_of().shape
    buffer = bytearray(shape.nbytes)
    memorizer_of([lane], ReplayMemory(shape, buffer)).ingest()
    lane.position = 0
    successor = memorizer_of([lane], ReplayMemory(shape, buffer))
    assert successor.ingest()["rows"] == 0
    assert len(successor.memory) == 18


@pytest.mark.parametrize("taken_in", ["together", "early", "early, by one that died then"])
def test_new_rows_get_the_priority_that_the_plan_before_led_to_however_early_they_come(taken_in):
    lane, algorithm = filled_lane(episodes=2), FakeAlgorithm(updates_due=3)
    algorithm.priorities = Priorities("td", exponent=1.0)
    shape = ReplayShape(1, 1, 32, 16, BLOCK, 4, 8, LAYOUT.to_json(), [], prioritised=True)
    buffer = bytearray(shape.nbytes)
    memorizer = memorizer_of([lane], ReplayMemory(shape, buffer), algorithm)
    plan = memorizer.memorize(upto=[2])
    for k in range(plan["updates"]):
        memorizer.memory.note_priorities(plan, k, np.arange(plan["rows"]), np.full(plan["rows"], 7.0 + k))
    settle = plan
    if taken_in != "together":
        assert memorizer.ingest(settle=plan)["rows"] == 6
        settle = None
    if taken_in == "early, by one that died then":
        memorizer = memorizer_of([lane], ReplayMemory(shape, buffer, formatted=True), algorithm)
    memorizer.memorize(settle=settle)
    memory = memorizer.memory
    assert sorted(memory._ring["priority"][memory.live()].tolist())[-6:] == [9.0] * 6
    assert len(memory) == 12


def test_updates_are_owed_for_what_came_in_and_handed_out_in_portions():
    memorizer = memorizer_of([filled_lane(episodes=2)], algorithm=FakeAlgorithm(updates_due=3))
    plans = [memorizer.memorize(most_updates=4) for _ in range(3)]
    assert [plan["updates"] for plan in plans] == [4, 2, 0]
    assert [plan["owed"] for plan in plans] == [2, 0, 0]


def learner_of(memorizer, algorithm, weights=None, **more):
    weights = weights or FakeWeights(version=0)
    return Learner(
        algorithm=algorithm,
        memory=memorizer.memory,
        weights=weights,
        page=FakePage(),
        update_timeout_s=9.0,
        **more,
    ), weights


COUNTS = {"env_steps": 10, "episodes": 2, "updates": 100}


def test_a_plan_is_learned_from_then_published_once_with_its_lag():
    algorithm = FakeAlgorithm()
    memorizer = memorizer_of([filled_lane(version=2)], algorithm=algorithm)
    learner, weights = learner_of(memorizer, algorithm, FakeWeights(version=5))
    done = learner.learn(memorizer.memorize(), **COUNTS)
    assert (done["updates"], done["version"], weights.version) == (2, 6, 6)
    assert (done["lag_min"], done["lag_mean"], done["lag_max"]) == (3, 3.0, 3)
    assert [clock.updates for clock in algorithm.clocks] == [100, 101]
    assert {clock.episodes for clock in algorithm.clocks} == {2}


def test_numbers_too_small_for_their_exponent_are_0_while_it_learns_and_then_no_more():
    pytest.importorskip("torch")
    algorithm, seen = FakeAlgorithm(), []
    update = algorithm.update
    algorithm.update = lambda *given: seen.append(are_flushed()) or update(*given)
    memorizer = memorizer_of([filled_lane()], algorithm=algorithm)
    learner, _ = learner_of(memorizer, algorithm)
    learner.learn(memorizer.memorize(), **COUNTS)
    assert seen == [True, True]
    assert not are_flushed()


def test_rows_older_than_the_bound_are_not_learned_from_and_counted():
    algorithm = FakeAlgorithm()
    memorizer = memorizer_of([filled_lane(version=2)], algorithm=algorithm)
    learner, weights = learner_of(memorizer, algorithm, FakeWeights(version=5), max_policy_lag=2)
    done = learner.learn(memorizer.memorize(), **COUNTS)
    assert (done["updates"], done["dropped_rows"], weights.version) == (0, 8, 5)


def test_weights_are_fetched_once_for_each_publication_however_many_updates_it_has():
    algorithm, fetched, told = FakeAlgorithm(updates_due=8), [], []
    weights_of, said = algorithm.weights, iter([["the driver will not"], [], []])
    algorithm.weights = lambda: fetched.append(1) or weights_of()
    memorizer = memorizer_of([filled_lane(episodes=2)], algorithm=algorithm)
    learner, weights = learner_of(memorizer, algorithm, notify=told.append, remarks=lambda: next(said))
    learner.publish()
    done = [learner.learn(memorizer.memorize(most_updates=8), **COUNTS)["updates"] for _ in range(2)]
    assert (done, weights.version, len(fetched)) == ([8, 8], 3, 3)
    how = {"kind": "updates", "fast": False, "detail": "FakeAlgorithm is not a built-in algorithm", "products": ""}
    assert told == [{"kind": "remark", "detail": "learner.device: the driver will not"}, how]


def test_an_empty_plan_publishes_nothing():
    algorithm = FakeAlgorithm()
    memorizer = memorizer_of([FakeLane(BLOCK)], algorithm=algorithm)
    learner, weights = learner_of(memorizer, algorithm)
    assert learner.learn(memorizer.memorize(), **COUNTS)["updates"] == 0
    assert weights.version == 0


def test_publishing_never_takes_longer_than_all_of_learning_however_late_the_clock_is_read(monkeypatch):
    algorithm = FakeAlgorithm()
    memorizer = memorizer_of([FakeLane(BLOCK)], algorithm=algorithm)
    learner, _ = learner_of(memorizer, algorithm)
    plan, moments = memorizer.memorize(), iter([10, 11, 5_000_000, 9_000_000])
    monkeypatch.setattr("mlxe_async.roles.learner.time.monotonic_ns", lambda: next(moments))
    done = learner.learn(plan, **COUNTS)
    assert (done["seconds"], done["publish_seconds"]) == (0.00499999, 0.004999989)


def test_weights_that_are_not_finite_are_never_published_and_the_last_good_ones_come_back():
    algorithm = FakeAlgorithm(updates_due=1, step=np.nan)
    memorizer = memorizer_of([filled_lane(episodes=8)], algorithm=algorithm)
    learner, weights = learner_of(memorizer, algorithm)
    learner.publish()
    for _ in range(3):
        done = learner.learn(memorizer.memorize(most_updates=1), **COUNTS)
        assert (done["rolled_back"], done["version"], weights.version) == (True, 1, 1)
        assert np.isfinite(algorithm.flat).all()
    with pytest.raises(NumericError, match="NaN or infinity 4 times in a row"):
        learner.learn(memorizer.memorize(most_updates=1), **COUNTS)


def test_a_loss_that_is_not_finite_is_not_published_and_at_last_the_batch_is_kept():
    algorithm, kept = FakeAlgorithm(updates_due=2), []
    algorithm.update = lambda batch, clock: ({"value_loss": np.inf, "entropy": np.nan}, None)
    memorizer = memorizer_of([filled_lane(episodes=8)], algorithm=algorithm)
    learner, weights = learner_of(memorizer, algorithm, keep_batch=lambda batch: kept.append(batch) or "crash/batch")
    learner.publish()
    for _ in range(3):
        done = learner.learn(memorizer.memorize(most_updates=2), **COUNTS)
        assert (done["rolled_back"], done["updates"], weights.version) == (True, 1, 1)
    with pytest.raises(NumericError, match=r"\(value_loss\); try a smaller .*the last batch is in crash/batch"):
        learner.learn(memorizer.memorize(most_updates=2), **COUNTS)
    assert len(kept) == 1
    assert "obs" in kept[0]


def test_the_norm_of_large_weights_is_told():
    algorithm = FakeAlgorithm()
    algorithm.flat = np.full(3, 1e30, np.float32)
    learner, _ = learner_of(memorizer_of([FakeLane(BLOCK)], algorithm=algorithm), algorithm)
    assert learner.publish()["norm"] == pytest.approx(3**0.5 * 1e30, rel=1e-6)


def test_a_learner_goes_on_from_the_weights_its_predecessor_published():
    algorithm = FakeAlgorithm()
    memorizer = memorizer_of([FakeLane(BLOCK)], algorithm=algorithm)
    learner_of(memorizer, algorithm, FakeWeights(version=4), last_good=np.full(3, 2.5, np.float32))
    assert algorithm.flat.tolist() == [2.5, 2.5, 2.5]


def test_what_a_gpu_is_used_for_is_told_with_publications_when_there_is_something_to_tell():
    heard, readings = [], iter([{"allocated": 1}, None, {"allocated": 3}])
    how = {"notify": heard.append, "gauge": lambda: next(readings)}
    learner = Learner(
        algorithm=FakeAlgorithm(), memory=None, weights=FakeWeights(), page=FakePage(), update_timeout_s=1.0, **how
    )
    for _ in range(3):
        learner.publish()
    assert [one for one in heard if one["kind"] == "gpu"] == [{"kind": "gpu", "allocated": n} for n in (1, 3)]
