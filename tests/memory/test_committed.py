"""Counters that change all at once or not at all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxe_async.errors import CorruptRecord
from mlxe_async.memory.committed import Committed, format_memory


def test_a_new_vector_is_zero():
    assert Committed(bytearray(Committed.nbytes(3)), 0, 3).load().tolist() == [0, 0, 0]


def test_zeros_are_damage_where_a_memory_was_made_as_one():
    buffer = bytearray(Committed.nbytes(3))
    format_memory(buffer, 3)
    assert Committed(buffer, 0, 3, formatted=True).load().tolist() == [0, 0, 0]
    buffer[:] = bytes(len(buffer))
    with pytest.raises(CorruptRecord, match="both fail"):
        Committed(buffer, 0, 3, formatted=True).load()


@given(changes=st.lists(st.lists(st.integers(-(2**62), 2**62), min_size=2, max_size=2), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_the_last_stored_values_are_loaded_by_anybody_who_maps_them(changes):
    buffer = bytearray(Committed.nbytes(2))
    writer = Committed(buffer, 0, 2)
    for values in changes:
        writer.store(np.array(values))
        assert Committed(buffer, 0, 2).load().tolist() == values


def test_a_writer_killed_after_any_byte_leaves_the_old_or_the_new_values():
    before = bytearray(Committed.nbytes(4))
    Committed(before, 0, 4).store(np.array([1, 2, 3, 4]))
    after = bytearray(before)
    Committed(after, 0, 4).store(np.array([5, 6, 7, 8]))
    for cut in range(len(before) + 1):
        half = bytearray(after[:cut] + before[cut:])
        assert Committed(half, 0, 4).load().tolist() in ([1, 2, 3, 4], [5, 6, 7, 8])


def test_two_damaged_copies_are_refused():
    buffer = bytearray(Committed.nbytes(2))
    committed = Committed(buffer, 0, 2)
    committed.store(np.array([1, 2]))
    committed.store(np.array([3, 4]))
    buffer[8] ^= 1
    buffer[Committed.nbytes(2) // 2 + 8] ^= 1
    with pytest.raises(CorruptRecord, match="both fail"):
        committed.load()


class Meanwhile:
    """The two copies as an onlooker meets them: one change ends and the next one begins between them."""

    def __init__(self, copies, times):
        self.copies, self.times, self.shape = copies, times, copies.shape

    def __iter__(self):
        for copy in self.copies if self.times else ():
            copy[-1] ^= 1  # a change is under way: all is written but the checksum
            yield copy
            copy[-1] ^= 1
        if not self.times:
            yield from self.copies
        self.times -= 1 if self.times else 0


def onlooker(times):
    buffer = bytearray(Committed.nbytes(2))
    writer = Committed(buffer, 0, 2)
    for values in ([1, 2], [3, 4], [5, 6]):
        writer.store(np.array(values))
    looking = Committed(buffer, 0, 2, formatted=True)
    looking._copies = Meanwhile(looking._copies, times)
    return looking, writer


def test_a_change_that_ends_and_one_that_begins_between_the_copies_make_an_onlooker_look_again():
    looking, writer = onlooker(1)
    assert looking.load().tolist() == [5, 6]
    look, numbers = Committed._look, iter(range(9))

    def looks(self):
        writer.store(np.array([next(numbers), 0]))  # others go on all the time
        return look(self)

    looking, writer = onlooker(5)
    looking._look = looks.__get__(looking)
    assert looking.load().tolist() == [5, 0]


def test_copies_that_fail_and_stay_as_they_are_count_as_damaged_soon(monkeypatch):
    pauses = []
    monkeypatch.setattr("mlxe_async.memory.committed.time.sleep", pauses.append)
    looking, _ = onlooker(9)
    with pytest.raises(CorruptRecord, match="both fail"):
        looking.load()
    assert len(pauses) == 1
