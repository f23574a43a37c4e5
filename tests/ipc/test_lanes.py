from __future__ import annotations

import numpy as np
import pytest
from memory_tools import SCHEMA, lane_of, make_lane, starts

from mlxe_async.errors import CorruptRecord, ProtocolError
from mlxe_async.ipc.shared.lanes import (
    CONTROL,
    LaneReader,
    LaneWriter,
    begin_epoch,
    format_lane,
    lane_bytes,
    lane_capacity,
    lane_state,
)
from mlxe_async.ipc.shared.segments import STAMP_BYTES, Segment
from mlxe_async.ipc.shared.words import Words

MASK = 2**64 - 1


@pytest.fixture(params=starts(4), ids=lambda start: f"from {start}")
def lane(request):
    """A lane of 4 slots of 64 bytes, at each awkward start."""
    with lane_of(start=request.param) as segment:
        begin_epoch(segment)
        yield segment


@pytest.fixture
def small():
    with lane_of() as segment:
        begin_epoch(segment)
        yield segment


def writer(segment: Segment) -> LaneWriter:
    return LaneWriter(segment, SCHEMA)


def reader(segment: Segment) -> LaneReader:
    return LaneReader(segment, SCHEMA, retry_pause_s=0)


def write(lane_writer: LaneWriter, value: int, count: int = 1, length: int | None = None) -> int:
    payload = lane_writer.reserve()
    assert payload is not None
    payload[:] = bytes([value]) * len(payload)
    return lane_writer.commit(count, length)


def read(lane_reader: LaneReader) -> tuple[int, bytes]:
    into = bytearray(lane_reader.payload_bytes)
    got = lane_reader.read(into)
    assert got is not None
    lane_reader.release(got.sequence)
    return got.sequence, bytes(into[: got.length])


def control(segment: Segment) -> Words:
    return Words(segment.buffer, STAMP_BYTES, CONTROL)


def test_blocks_come_out_as_they_went_in_and_in_order(lane):
    into, out = writer(lane), reader(lane)
    first = out.position
    for n in range(20):
        assert write(into, n) == (first + n) & MASK
        assert read(out) == ((first + n) & MASK, bytes([n]) * 64)
    assert out.read(bytearray(64)) is None


def test_a_full_lane_makes_its_writer_wait_until_room_is_given_back(lane):
    into, out = writer(lane), reader(lane)
    for n in range(4):
        assert into.free_slots() == 4 - n
        write(into, n)
    assert into.reserve() is None
    assert into.free_slots() == 0
    read(out)
    assert into.free_slots() == 1
    write(into, 4)
    assert [read(out)[1][0] for _ in range(4)] == [1, 2, 3, 4]


def test_reading_alone_gives_no_room_back(lane):
    into, out = writer(lane), reader(lane)
    sequences = [write(into, n) for n in range(4)]
    for _ in range(4):
        assert out.read(bytearray(64)) is not None
    assert into.reserve() is None
    out.release(sequences[2])
    assert into.free_slots() == 3


def test_an_episode_ten_times_as_long_as_its_lane_passes(lane):
    into, out = writer(lane), reader(lane)
    written, got = 0, []
    while len(got) < 40:
        while written < 40 and into.reserve() is not None:
            write(into, written)
            written += 1
        got.append(read(out)[1][0])
    assert got == list(range(40))


def test_the_backlog_is_what_is_committed_and_not_read(lane):
    into, out = writer(lane), reader(lane)
    assert out.backlog() == 0
    write(into, 1)
    write(into, 2)
    assert out.backlog() == 2
    out.read(bytearray(64))
    assert out.backlog() == 1
    assert lane_state(lane).backlog == 2


def test_nothing_is_visible_before_commit(lane):
    into, out = writer(lane), reader(lane)
    payload = into.reserve()
    assert payload is not None
    payload[:] = b"x" * 64
    assert out.backlog() == 0
    assert out.read(bytearray(64)) is None


def test_reserving_twice_gives_the_same_slot(small):
    into = writer(small)
    first = into.reserve()
    assert first is not None
    first[0] = 7
    again = into.reserve()
    assert again is not None
    assert again[0] == 7
    assert into.slot == 0


def test_views_of_a_slot_can_be_made_once_and_kept(small):
    into, out = writer(small), reader(small)
    views = [np.frombuffer(payload, dtype="<f4") for payload in into.payloads]
    for n in range(9):
        assert into.reserve() is not None
        views[into.slot][:] = n
        into.commit(1)
        landed = np.empty(16, dtype="<f4")
        got = out.read(landed)
        assert got is not None
        out.release(got.sequence)
        assert set(landed) == {n}


def test_payloads_are_aligned_for_numpy(small):
    assert {np.frombuffer(payload, "u1").ctypes.data % 64 for payload in writer(small).payloads} == {0}


def test_a_block_carries_its_counts(small):
    into, out = writer(small), reader(small)
    write(into, 5, count=17, length=10)
    into.reserve()
    into.commit(0, 0)
    landed = bytearray(b"." * 64)
    got = out.read(landed)
    assert got is not None
    assert (got.count, got.length, got.epoch) == (17, 10, 1)
    assert landed == b"\5" * 10 + b"." * 54
    empty = out.read(landed)
    assert empty is not None
    assert (empty.count, empty.length) == (0, 0)


@pytest.mark.parametrize(("count", "length"), [(-1, None), (2**32, None), (1, -1), (1, 65)])
def test_impossible_counts_are_refused_and_nothing_is_committed(small, count, length):
    into = writer(small)
    into.reserve()
    with pytest.raises(ValueError, match="cannot be committed"):
        into.commit(count, length)
    assert reader(small).backlog() == 0


def test_committing_what_was_not_reserved_is_an_error(small):
    into = writer(small)
    with pytest.raises(RuntimeError, match="without reserve"):
        into.commit(1)


def test_a_restarted_writer_goes_on_after_the_last_commit_and_its_first_block_is_a_cut(lane):
    out, first = reader(lane), reader(lane).position
    dead = writer(lane)
    write(dead, 1)
    write(dead, 2)
    half = dead.reserve()
    assert half is not None
    half[:32] = b"h" * 32
    assert begin_epoch(lane) == 2
    alive = writer(lane)
    assert alive.epoch == 2
    assert write(alive, 3) == (first + 2) & MASK
    write(alive, 4)
    landed = bytearray(64)
    found = [out.read(landed) for _ in range(4)]
    assert [(c.epoch, c.cut) for c in found if c] == [(1, True), (1, False), (2, True), (2, False)]
    assert landed == b"\4" * 64


def test_an_epoch_in_which_nothing_was_committed_leaves_one_cut(lane):
    out = reader(lane)
    write(writer(lane), 1)
    for _ in range(3):
        begin_epoch(lane)
        writer(lane).reserve()
    begin_epoch(lane)
    write(writer(lane), 2)
    found = [out.read(bytearray(64)) for _ in range(2)]
    assert [(c.epoch, c.cut) for c in found if c] == [(1, True), (5, True)]


def test_a_restarted_reader_meets_again_what_was_not_released(lane):
    into = writer(lane)
    for n in range(4):
        write(into, n)
    dead = reader(lane)
    read(dead)
    assert dead.read(bytearray(64)) is not None
    alive = reader(lane)
    assert [read(alive)[1][0] for _ in range(3)] == [1, 2, 3]


def test_a_restarted_reader_can_seek_past_what_it_owns(lane):
    into = writer(lane)
    sequences = [write(into, n) for n in range(4)]
    alive = reader(lane)
    alive.seek(sequences[2])
    assert read(alive) == (sequences[2], b"\2" * 64)
    assert into.free_slots() == 3


@pytest.mark.parametrize("offset", [-1, 3])
def test_seeking_what_is_released_or_not_committed_is_refused(lane, offset):
    into, out = writer(lane), reader(lane)
    write(into, 1)
    _, tail = read(out)[0], out.position
    write(into, 2)
    write(into, 3)
    with pytest.raises(ValueError, match="is not between"):
        out.seek((tail + offset) & MASK)


def test_releasing_what_was_not_read_or_is_released_is_refused(lane):
    into, out = writer(lane), reader(lane)
    sequence = write(into, 1)
    with pytest.raises(ValueError, match="cannot be released"):
        out.release(sequence)
    read(out)
    with pytest.raises(ValueError, match="cannot be released"):
        out.release(sequence)


def test_a_slot_that_bears_an_old_block_is_corrupt_when_a_new_one_was_promised(small):
    into, out = writer(small), reader(small)
    write(into, 1)
    control(small).set("commit", 2)
    read(out)
    with pytest.raises(CorruptRecord, match="block 1 bears mark 0, expected 3"):
        out.read(bytearray(64))


def test_a_complete_block_of_a_dead_writer_that_was_never_committed_is_not_served(lane):
    """Only the epoch tells it from a committed one: number, length and checksum are right."""
    dead, out = writer(lane), reader(lane)
    write(dead, 1)
    control(lane).set("commit", out.position)
    begin_epoch(lane)
    control(lane).set("commit", out.position + 1)
    with pytest.raises(CorruptRecord, match="is of epoch 1, expected 2"):
        out.read(bytearray(64))


def test_a_block_of_the_present_epoch_before_its_start_is_corrupt(small):
    into, out = writer(small), reader(small)
    write(into, 1)
    control(small).set("odd_start", 1)
    with pytest.raises(CorruptRecord, match="expected one before 1"):
        out.read(bytearray(64))


@pytest.mark.parametrize("begins", ["the supervisor", "the writer itself"])
def test_committed_blocks_can_be_read_between_any_two_stores_of_a_new_epoch(lane, begins, monkeypatch):
    for life in range(4):
        into = writer(lane)
        for value in (1, 2):
            write(into, 10 * life + value)
        read_meanwhile = []

        def stored(words, name, value, seen=read_meanwhile, set_word=Words.set):
            set_word(words, name, value)
            if name != "tail" and not seen:
                seen.append(read(reader(lane))[1][0])

        with monkeypatch.context() as patched:
            patched.setattr(Words, "set", stored)
            begin_epoch(lane) if begins == "the supervisor" else into.renew()
        assert read_meanwhile == [10 * life + 1]
        assert read(reader(lane))[1][0] == 10 * life + 2


def test_going_past_a_corrupt_block_makes_the_next_one_a_cut(small):
    into, out = writer(small), reader(small)
    for n in range(3):
        write(into, n)
    read(out)
    into.payloads[1][5] ^= 1
    landed = bytearray(64)
    with pytest.raises(CorruptRecord, match="does not match its checksum"):
        out.read(landed)
    assert out.skip() == 1
    got = out.read(landed)
    assert got is not None
    assert (got.sequence, got.cut, landed[0]) == (2, True, 2)
    out.release(got.sequence)
    assert into.free_slots() == 4


def test_there_is_nothing_to_skip_in_an_empty_lane(small):
    with pytest.raises(RuntimeError, match="no block to skip"):
        reader(small).skip()


def test_impossible_control_words_are_a_protocol_error(small):
    into, out = writer(small), reader(small)
    write(into, 1)
    control(small).set("commit", 5)
    with pytest.raises(ProtocolError, match="capacity 4"):
        out.read(bytearray(64))
    control(small).set("tail", 2)
    with pytest.raises(ProtocolError, match="capacity 4"):
        into.free_slots()


def test_a_target_too_small_is_refused(small):
    write(writer(small), 1)
    with pytest.raises(ValueError, match="64 bytes are needed"):
        reader(small).read(bytearray(63))


@pytest.mark.parametrize("side", [LaneWriter, LaneReader])
def test_a_process_with_another_schema_is_refused(small, side):
    with pytest.raises(ProtocolError, match="schema 0000000000005eed"):
        side(small, SCHEMA + 1)


def test_memory_that_is_no_lane_is_refused():
    with Segment.create("blank", 4096) as segment:
        for attach in (begin_epoch, lane_state, writer, reader):
            with pytest.raises(ProtocolError, match="segment blank"):
                attach(segment)


def test_a_segment_of_another_size_cannot_become_a_lane():
    with Segment.create("odd", 4096) as segment, pytest.raises(ValueError, match="expected a segment of"):
        format_lane(segment, 4, 64, SCHEMA)


@pytest.mark.parametrize(("slots", "capacity"), [(1, 1), (2, 2), (3, 4), (64, 64), (65, 128)])
def test_the_number_of_slots_is_rounded_up_to_a_power_of_two(slots, capacity):
    assert lane_capacity(slots) == capacity
    assert lane_bytes(slots, 100) == lane_bytes(capacity, 100)
    with lane_of(slots, 100) as segment:
        assert LaneWriter(segment, SCHEMA).free_slots() == capacity


@pytest.mark.parametrize(("slots", "payload_bytes"), [(0, 64), (-1, 64), (4, 0), (4, -64)])
def test_sizes_that_are_no_sizes_are_refused(slots, payload_bytes):
    with pytest.raises(ValueError, match="must be positive"):
        lane_bytes(slots, payload_bytes)


def test_a_lane_of_one_slot_works_across_the_wrap():
    with make_lane(slots=1, start=2**64 - 4) as segment:
        begin_epoch(segment)
        into, out = writer(segment), reader(segment)
        for n in range(10):
            write(into, n)
            assert into.reserve() is None
            assert read(out)[1][0] == n
