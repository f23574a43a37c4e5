"""When a checkpoint of the whole run is due, between two rounds."""

from types import SimpleNamespace

from mlxe_async.settings import Checkpoint
from mlxe_async.supervisor.checkpointing import due as module
from mlxe_async.supervisor.checkpointing.due import CheckpointDue
from mlxe_async.supervisor.plan.budget import Counters


def after_rounds(due, counters, *rounds):
    """Whether it is due after each of these rounds, and saved where it is."""
    found = []
    for steps in rounds:
        counters.env_steps += steps
        due.note_boundary()
        found.append(due.now())
        if found[-1]:
            due.note_saved()
    return found


def test_by_steps_it_is_due_before_the_next_round_would_lead_past_the_interval():
    counters = Counters()
    due = CheckpointDue(Checkpoint(interval_s=0.0, interval_steps=100), counters, round_rows=40)
    assert after_rounds(due, counters, 40, 40, 40, 40, 40) == [False, True, False, True, False]


def test_a_round_of_unknown_length_is_taken_to_be_as_long_as_the_longest_of_the_last_ones():
    counters = Counters()
    due = CheckpointDue(Checkpoint(interval_s=0.0, interval_steps=100), counters, round_rows=None)
    assert after_rounds(due, counters, 60, 10, 30, 10) == [True, False, False, True]
    many = [1] * module.RECENT_ROUNDS
    assert after_rounds(due, counters, *many, 50) == [False] * len(many) + [True]  # 58 steps, and the last took 50


def test_rounds_longer_than_the_interval_are_saved_one_by_one():
    counters = Counters()
    due = CheckpointDue(Checkpoint(interval_s=0.0, interval_steps=100), counters, round_rows=500)
    assert after_rounds(due, counters, 500, 500) == [True, True]


def test_by_seconds_it_is_due_only_if_something_was_done(monkeypatch):
    now, counters = [0.0], Counters()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    due = CheckpointDue(Checkpoint(interval_s=30.0, interval_steps=0), counters, round_rows=None)
    now[0] = 31.0
    assert not due.now()
    counters.env_steps = 1
    assert due.now()
    due.note_saved()
    counters.env_steps, now[0] = 2, 60.0
    assert not due.now()


def test_without_intervals_it_never_is():
    counters = Counters()
    due = CheckpointDue(Checkpoint(interval_s=0.0, interval_steps=0), counters, round_rows=10)
    assert after_rounds(due, counters, 10**6, 10**6) == [False, False]
