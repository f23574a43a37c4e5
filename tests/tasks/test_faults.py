"""Whatever an environment does wrong becomes one fault of that environment, and nothing else."""

from __future__ import annotations

import json

import numpy as np
import odd_environments as odd
import pytest

from mlxe_async.errors import EnvironmentFault
from mlxe_async.tasks import hostile
from mlxe_async.tasks.vector import VectorTask

STEADY = {"env": "odd_environments:Steady"}


def task(way, at=1, where="step"):
    return {"env": "odd_environments:Odd", "kwargs": {"way": way, "at": at, "where": where}}


def one_fault(way, at=1):
    vector = VectorTask(task(way, at), 1)
    vector.reset(0, seed=11)
    for _ in range(at - 1):
        assert vector.step(np.array([0])).ok.all()
    step = vector.step(np.array([0]))
    assert len(step.faults) == 1
    return vector, step, step.faults[0]


@pytest.mark.parametrize("way", [*odd.RAISED, *odd.OBSERVATIONS, *odd.REWARDS, *odd.ANSWERS])
def test_a_wrong_step_is_one_fault_with_index_seed_step_and_a_sentence(way):
    _, step, fault = one_fault(way, at=3)
    assert isinstance(fault, EnvironmentFault)
    assert (fault.phase, fault.env_index, fault.seed, fault.step) == ("step", 0, 11, 3)
    assert fault.detail.startswith("environment 0 (odd_environments:Odd) at step 3 of the episode with seed 11: ")
    assert "\n" not in fault.detail
    assert len(fault.detail) < 500
    assert bool(fault.trace) == (way in odd.RAISED)
    assert len(fault.trace.encode()) <= hostile.MAX_TRACE_BYTES
    json.dumps([fault.detail, fault.trace], ensure_ascii=False).encode()
    assert step.ended == []
    for rows in (step.ok, step.terminated, step.truncated, step.next_obs, step.reward, step.raw_reward):
        assert not rows.any()


@pytest.mark.parametrize("way", [*odd.RAISED, *odd.OBSERVATIONS, "nothing"])
def test_a_wrong_reset_is_raised_as_a_fault(way):
    vector = VectorTask(task(way, where="reset"), 2)
    with pytest.raises(EnvironmentFault) as caught:
        vector.reset(1, seed=5)
    assert (caught.value.phase, caught.value.env_index, caught.value.seed) == ("reset", 1, 5)


@pytest.mark.parametrize("way", list(odd.RAISED))
def test_a_constructor_that_raises_is_a_fault_of_making(way):
    with pytest.raises(EnvironmentFault) as caught:
        VectorTask(task(way, where="make"), 1)
    assert (caught.value.phase, caught.value.seed) == ("make", None)


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("value error", "raised ValueError: the motor is too hot"),
        ("exit", "raised SystemExit: 3"),
        ("interrupt", "raised KeyboardInterrupt"),
        ("unprintable", "raised Unprintable: (its message cannot be printed)"),
        ("not a number", "observation: expected finite numbers, got nan at index [1]"),
        ("too large", "observation: expected finite numbers, got inf at index [0]"),
        ("broadcastable", "observation: expected shape (3,), got an array of shape (1,) and dtype float32"),
        ("objects", "observation: expected numbers of dtype float32, got an array of shape (3,) and dtype object"),
        ("ragged", "observation cannot be made an array"),
        ("reward none", "reward: expected one real number, got None (NoneType)"),
        ("reward numpy bool", "reward: expected one real number, got np.True_ (bool)"),
        ("reward nan", "reward: expected a finite number, got nan (float)"),
        ("four values", "got 4 values; is it an environment of the old gym, with one done?"),
        ("terminated is a number", "terminated: expected True or False, got 1 (int)"),
        ("truncated is none", "truncated: expected True or False, got None (NoneType)"),
    ],
)
def test_the_sentence_says_which_field_what_was_expected_and_what_came(way, words):
    assert words in one_fault(way)[2].detail


def test_the_traceback_names_the_line_in_the_environment():
    trace = one_fault("value error")[2].trace
    assert "odd_environments.py" in trace
    assert trace.rstrip().endswith("ValueError: the motor is too hot")


@pytest.mark.parametrize("way", ["value error", "not a number", "longer", "reward none", "four values"])
def test_the_other_environments_of_the_batch_go_on(way):
    vector = VectorTask(STEADY, 3)
    broken = VectorTask(task(way, at=2), 1)
    vector._envs[1] = broken._envs[0]
    for index in range(3):
        vector.reset(index, seed=index)
    assert vector.step(np.array([1, 1, 1])).ok.all()
    step = vector.step(np.array([2, 2, 2]))
    assert step.ok.tolist() == [True, False, True]
    assert step.next_obs.tolist() == [[0, 2, 2], [0, 0, 0], [0, 2, 2]]
    assert [fault.env_index for fault in step.faults] == [1]


def test_a_rebuilt_environment_begins_afresh_and_the_old_one_is_closed():
    vector, _, _ = one_fault("value error", at=2)
    old = vector._envs[0].unwrapped
    vector.rebuild(0)
    assert old.closed
    vector.reset(0, seed=1)
    assert vector.step(np.array([0])).next_obs[0, 1] == 1


def test_an_environment_is_not_stepped_after_its_fault_until_it_is_reset():
    vector, _, _ = one_fault("value error")
    with pytest.raises(RuntimeError, match="without a reset"):
        vector.step(np.array([0]))
    vector.rebuild(0)
    with pytest.raises(RuntimeError, match="without a reset"):
        vector.step(np.array([0]))


def test_a_close_that_raises_stops_nobody():
    vector = VectorTask(STEADY, 1)

    def refuse():
        raise SystemExit("no")

    vector._envs[0].close = refuse
    vector.rebuild(0)
    vector._envs[0].close = refuse
    vector.close()


@pytest.mark.parametrize("kind", ["too large for uint8", "negative for uint8", "fraction for uint8"])
def test_numbers_that_do_not_fit_into_bytes_are_faults_and_never_wrap_around(kind):
    vector = VectorTask({"env": "odd_environments:Other", "kwargs": {"space": kind}}, 1)
    with pytest.raises(EnvironmentFault, match="whole numbers from 0 to 255"):
        vector.reset(0, seed=0)


def test_one_observation_in_a_hundred_not_finite_never_gets_through():
    vector = VectorTask(task("not a number", at=100), 4)
    for index in range(4):
        vector.reset(index, seed=index)
    faults = 0
    for _ in range(1000):
        step = vector.step(np.zeros(4, int))
        assert np.isfinite(step.next_obs).all()
        for fault in step.faults:
            faults += 1
            vector.rebuild(fault.env_index)
            vector.reset(fault.env_index, seed=faults)
    assert faults == 40


def test_a_deep_recursion_in_the_environment_is_a_short_trace():
    def recurse():
        recurse()

    with pytest.raises(RecursionError) as caught:
        recurse()
    assert len(hostile.trace_of(caught.value).encode()) <= hostile.MAX_TRACE_BYTES


def test_long_text_keeps_its_beginning_and_its_end():
    text = hostile.clipped("begin" + "x" * 100_000 + "end", 1000)
    assert len(text.encode()) <= 1000
    assert text.startswith("begin")
    assert text.endswith("end")
