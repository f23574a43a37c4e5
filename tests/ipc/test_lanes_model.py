"""A lane against a Python list, while writer and reader die between any two of their stores."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from memory_tools import SCHEMA, STORES, Died, make_lane, mortal, starts

from mlxe_async.errors import CorruptRecord
from mlxe_async.ipc.lanes import LaneReader, LaneWriter, begin_epoch, lane_state

PAYLOAD_BYTES = 48
MASK = 2**64 - 1
MANY = int(os.environ.get("MLXE_TEST_EXAMPLES", "5000"))


@dataclass
class Record:
    payload: bytes
    count: int
    epoch: int
    cut: bool
    damaged: bool = False


class LaneMachine(RuleBasedStateMachine):
    """`records` were committed, `owned` of them reached the reader's own memory, `released` were given back."""

    @initialize(slots=st.sampled_from([1, 2, 4]), data=st.data())
    def make(self, slots: int, data: st.DataObject) -> None:
        self.start = data.draw(st.sampled_from(starts(slots)))
        self.slots = slots
        self.segment = make_lane(slots, PAYLOAD_BYTES, self.start)
        self.records: list[Record] = []
        self.owned = self.released = self.epoch = 0
        self.gap = False
        self.reader = LaneReader(self.segment, SCHEMA, retry_pause_s=0)
        self.restart_writer()

    def teardown(self) -> None:
        if hasattr(self, "segment"):
            self.segment.close()

    def sequence(self, n: int) -> int:
        return (self.start + n) & MASK

    @property
    def full(self) -> bool:
        return len(self.records) - self.released == self.slots

    def write_record(self, payload: bytes, count: int, between: Callable[[], None]) -> None:
        room = self.writer.reserve()
        assert room is not None
        half = len(payload) // 2
        between()
        room[:half] = payload[:half]
        between()
        room[half : len(payload)] = payload[half:]
        assert self.writer.commit(count, len(payload)) == self.sequence(len(self.records))
        self.records.append(Record(payload, count, self.epoch, self.first))
        self.first = False

    @precondition(lambda self: not self.full)
    @rule(payload=st.binary(max_size=PAYLOAD_BYTES), count=st.integers(0, 2**32 - 1))
    def write(self, payload: bytes, count: int) -> None:
        self.write_record(payload, count, lambda: None)

    @precondition(lambda self: self.full)
    @rule()
    def write_when_full(self) -> None:
        assert self.writer.reserve() is None

    @precondition(lambda self: not self.full)
    @rule(payload=st.binary(max_size=PAYLOAD_BYTES), stores=st.integers(0, STORES))
    def writer_dies_writing(self, payload: bytes, stores: int) -> None:
        fuse = mortal(self.writer, stores)
        try:
            self.write_record(payload, 1, fuse.burn)
            assert stores == STORES
        except Died:
            assert stores < STORES
        self.restart_writer()

    @rule()
    def restart_writer(self) -> None:
        self.epoch += 1
        assert begin_epoch(self.segment) == self.epoch
        self.writer = LaneWriter(self.segment, SCHEMA)
        self.first = True

    @rule(release=st.booleans())
    def read(self, release: bool) -> None:
        into = bytearray(PAYLOAD_BYTES)
        assert self.reader.position == self.sequence(self.owned)
        if self.owned == len(self.records):
            assert self.reader.read(into) is None
            return
        record = self.records[self.owned]
        if record.damaged:
            with pytest.raises(CorruptRecord):
                self.reader.read(into)
            assert self.reader.skip() == self.sequence(self.owned)
            self.gap = True
        else:
            chunk = self.reader.read(into)
            assert chunk is not None
            assert (chunk.sequence, chunk.epoch, chunk.count) == (
                self.sequence(self.owned),
                record.epoch,
                record.count,
            )
            assert chunk.cut == (record.cut or self.gap)
            assert bytes(into[: chunk.length]) == record.payload
            self.gap = False
        self.owned += 1
        if release:
            self.release()

    @precondition(lambda self: self.owned > self.released)
    @rule()
    def release(self) -> None:
        self.reader.release(self.sequence(self.owned - 1))
        self.released = self.owned

    @rule(copied=st.booleans())
    def reader_dies(self, copied: bool) -> None:
        """Before anything, or after a copy that its memory never came to own; owned records may be unreleased."""
        if copied and self.owned < len(self.records) and not self.records[self.owned].damaged:
            self.reader.read(bytearray(PAYLOAD_BYTES))
        self.reader = LaneReader(self.segment, SCHEMA, retry_pause_s=0)
        assert self.reader.position == self.sequence(self.released)
        self.reader.seek(self.sequence(self.owned))
        self.gap = False

    @precondition(lambda self: self.owned < len(self.records) and self.records[-1].payload)
    @rule(bit=st.integers(0, 8 * PAYLOAD_BYTES - 1))
    def damage(self, bit: int) -> None:
        """Someone's stray write hits the newest record that is not read yet."""
        record = self.records[-1]
        bit %= 8 * len(record.payload)
        slot = self.sequence(len(self.records) - 1) % self.slots
        self.writer.payloads[slot][bit // 8] ^= 1 << bit % 8
        record.damaged = bytes(self.writer.payloads[slot][: len(record.payload)]) != record.payload

    @invariant()
    def ledger(self) -> None:
        if not hasattr(self, "segment"):
            return
        state = lane_state(self.segment)
        assert state.commit == self.sequence(len(self.records))
        assert state.tail == self.sequence(self.released)
        assert state.backlog == len(self.records) - self.released
        assert self.reader.backlog() == len(self.records) - self.owned
        assert self.writer.free_slots() == self.slots - state.backlog


@pytest.mark.parametrize(
    "examples", [pytest.param(300, id="default"), pytest.param(MANY, id="many", marks=pytest.mark.slow)]
)
def test_whoever_dies_wherever_committed_records_arrive_once_whole_and_in_order(examples):
    run_state_machine_as_test(
        LaneMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            derandomize=examples != MANY,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
