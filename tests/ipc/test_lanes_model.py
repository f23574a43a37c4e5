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
from mlxe_async.ipc.shared.lanes import LaneReader, LaneWriter, begin_epoch, lane_state

PAYLOAD_BYTES = 48
MASK = 2**64 - 1
MANY = int(os.environ.get("MLXE_TEST_EXAMPLES", "5000"))


@dataclass
class Written:
    payload: bytes
    count: int
    epoch: int
    cut: bool
    damaged: bool = False


class LaneMachine(RuleBasedStateMachine):
    """`blocks` were committed, `owned` of them reached the reader's own memory, `released` were given back."""

    @initialize(slots=st.sampled_from([1, 2, 4]), data=st.data())
    def make(self, slots: int, data: st.DataObject) -> None:
        self.start = data.draw(st.sampled_from(starts(slots)))
        self.slots = slots
        self.segment = make_lane(slots, PAYLOAD_BYTES, self.start)
        self.blocks: list[Written] = []
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
        return len(self.blocks) - self.released == self.slots

    def write_block(self, payload: bytes, count: int, between: Callable[[], None]) -> None:
        room = self.writer.reserve()
        assert room is not None
        half = len(payload) // 2
        between()
        room[:half] = payload[:half]
        between()
        room[half : len(payload)] = payload[half:]
        assert self.writer.commit(count, len(payload)) == self.sequence(len(self.blocks))
        self.blocks.append(Written(payload, count, self.epoch, self.first))
        self.first = False

    @precondition(lambda self: not self.full)
    @rule(payload=st.binary(max_size=PAYLOAD_BYTES), count=st.integers(0, 2**32 - 1))
    def write(self, payload: bytes, count: int) -> None:
        self.write_block(payload, count, lambda: None)

    @precondition(lambda self: self.full)
    @rule()
    def write_when_full(self) -> None:
        assert self.writer.reserve() is None

    @precondition(lambda self: not self.full)
    @rule(payload=st.binary(max_size=PAYLOAD_BYTES), stores=st.integers(0, STORES))
    def writer_dies_writing(self, payload: bytes, stores: int) -> None:
        fuse = mortal(self.writer, stores)
        try:
            self.write_block(payload, 1, fuse.burn)
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
        if self.owned == len(self.blocks):
            assert self.reader.read(into) is None
            return
        block = self.blocks[self.owned]
        if block.damaged:
            with pytest.raises(CorruptRecord):
                self.reader.read(into)
            assert self.reader.skip() == self.sequence(self.owned)
            self.gap = True
        else:
            got = self.reader.read(into)
            assert got is not None
            assert (got.sequence, got.epoch, got.count) == (
                self.sequence(self.owned),
                block.epoch,
                block.count,
            )
            assert got.cut == (block.cut or self.gap)
            assert bytes(into[: got.length]) == block.payload
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
        """Before anything, or after a copy that its memory never came to own; owned blocks may be unreleased."""
        if copied and self.owned < len(self.blocks) and not self.blocks[self.owned].damaged:
            self.reader.read(bytearray(PAYLOAD_BYTES))
        self.reader = LaneReader(self.segment, SCHEMA, retry_pause_s=0)
        assert self.reader.position == self.sequence(self.released)
        self.reader.seek(self.sequence(self.owned))
        self.gap = False

    @precondition(lambda self: self.owned < len(self.blocks) and self.blocks[-1].payload)
    @rule(bit=st.integers(0, 8 * PAYLOAD_BYTES - 1))
    def damage(self, bit: int) -> None:
        """Someone's stray write hits the newest block that is not read yet."""
        block = self.blocks[-1]
        bit %= 8 * len(block.payload)
        slot = self.sequence(len(self.blocks) - 1) % self.slots
        self.writer.payloads[slot][bit // 8] ^= 1 << bit % 8
        block.damaged = bytes(self.writer.payloads[slot][: len(block.payload)]) != block.payload

    @invariant()
    def ledger(self) -> None:
        if not hasattr(self, "segment"):
            return
        state = lane_state(self.segment)
        assert state.commit == self.sequence(len(self.blocks))
        assert state.tail == self.sequence(self.released)
        assert state.backlog == len(self.blocks) - self.released
        assert self.reader.backlog() == len(self.blocks) - self.owned
        assert self.writer.free_slots() == self.slots - state.backlog


@pytest.mark.long
@pytest.mark.parametrize(
    "examples", [pytest.param(300, id="default"), pytest.param(MANY, id="many", marks=pytest.mark.slow)]
)
def test_whoever_dies_wherever_committed_blocks_arrive_once_whole_and_in_order(examples):
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
