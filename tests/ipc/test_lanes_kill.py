"""SIGKILL at random moments and at every marked point: what was committed arrives once, whole and in order.

The evidence does not come from the lane alone: after each commit the writer counts on a page of its own, and every
payload says which record of which life it is, in all of its words.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import numpy as np
import pytest
from memory_tools import SCHEMA, STORES, chance, child, fork, kill, lane_of, mortal, wait_for_end

from mlxe_async.errors import CorruptRecord
from mlxe_async.ipc.lanes import MARK, Chunk, LaneReader, LaneWriter, begin_epoch, lane_state, mark
from mlxe_async.ipc.segments import Segment
from mlxe_async.ipc.words import MASK, PAGE_BYTES, Words

WORDS = 128  # uint64 per payload
SLOTS = 128
START = 2**64 - 1000
RAMP = np.arange(WORDS, dtype=np.uint64)
PATIENCE_S = 60


def content(sequence: int, epoch: int) -> np.ndarray:
    """The payload (WORDS,) of a record: no two records share a word at any place."""
    return RAMP + np.uint64((sequence * 1000 + epoch * 2**40) & MASK)


class CommitFirst(LaneWriter):
    """Broken on purpose: promises a record before it is there."""

    def reserve(self) -> memoryview | None:
        payload = super().reserve()
        if payload is not None:
            self._headers[self.slot][MARK] = mark(self._next)
            self._control.set("commit", self._next + 1)
        return payload


class Trusting(LaneReader):
    """Broken on purpose: believes the commit word and checks nothing."""

    def _copy(self, into: memoryview) -> Chunk:
        sequence = self._position
        into[:] = self._payloads[sequence & self._mask]
        header = self._headers[sequence & self._mask]
        return Chunk(sequence, header[1], header[3], bool(header[2]), self.payload_bytes)


@dataclass
class Tally:
    read: int = 0
    lost: int = 0
    torn: int = 0
    half_written: int = 0
    uncut: int = 0

    @property
    def clean(self) -> bool:
        return self.lost == self.torn == self.uncut == 0


class Auditor:
    """Reads a lane and compares every record with what its writer must have meant."""

    def __init__(self, segment: Segment, reader_class: type[LaneReader]) -> None:
        self.reader = reader_class(segment, SCHEMA, retry_pause_s=0.0001)
        self.into = np.empty(WORDS, dtype=np.uint64)
        self.expected, self.last_epoch = START, 0
        self.tally = Tally()

    def drain(self) -> None:
        """Read all there is."""
        while True:
            try:
                chunk = self.reader.read(self.into)
            except CorruptRecord:
                self.tally.lost += 1
                self.reader.release(self.reader.skip())
                self.expected = (self.expected + 1) & MASK
                continue
            if chunk is None:
                return
            self.tally.read += 1
            # Also says that none came twice and none is missing: the sequence is the audit's own count.
            self.tally.torn += bool((self.into != content(self.expected, chunk.epoch)).any())
            self.tally.torn += chunk.sequence != self.expected
            self.tally.uncut += chunk.cut != (chunk.epoch != self.last_epoch)
            self.expected, self.last_epoch = (self.expected + 1) & MASK, chunk.epoch
            self.reader.release(chunk.sequence)


def write_for_ever(segment: Segment, page: Words, writer_class: type[LaneWriter]) -> None:
    """A writer's life: as fast as the lane allows, counting on its own page what it committed."""
    writer = writer_class(segment, SCHEMA)
    views = [np.frombuffer(payload, dtype=np.uint64) for payload in writer.payloads]
    while True:
        if writer.reserve() is not None:
            views[writer.slot][:] = content(writer.sequence, writer.epoch)
            page.set("counted", writer.commit(WORDS) + 1)


def kill_loop(kills: int, seed: int, writer_class: type[LaneWriter], reader_class: type[LaneReader]) -> Tally:
    """Start a writer, let it run for a random while, kill it (some stopped first), look at the lane; again and again.

    Half of the lives are read all along; in the others the writer has the processor to itself while it writes.
    """
    draw = chance(seed)
    with lane_of(SLOTS, 8 * WORDS, START) as segment, Segment.create("page", PAGE_BYTES) as own:
        page = Words(own.buffer, 0, ("counted",))
        page.set("counted", START)
        audit = Auditor(segment, reader_class)
        for _ in range(kills):
            begin_epoch(segment)
            began = lane_state(segment).commit
            pid = fork(lambda: write_for_ever(segment, page, writer_class))
            try:
                deadline = time.monotonic() + PATIENCE_S
                while lane_state(segment).commit == began and time.monotonic() < deadline:
                    assert not wait_for_end(pid, 0.0005)
                seconds = draw.uniform(0, 0.001)
                if draw.random() < 0.5:
                    assert not wait_for_end(pid, seconds)
                else:
                    until = time.perf_counter() + seconds
                    while time.perf_counter() < until:
                        audit.drain()
                if draw.random() < 0.5:
                    os.kill(pid, signal.SIGSTOP)
                    audit.drain()
            finally:
                assert os.WTERMSIG(kill(pid)) == signal.SIGKILL
            audit.drain()
            state = lane_state(segment)
            assert state.commit != began
            # The writer counts after it commits: it is at most one behind, and never ahead.
            audit.tally.lost += (state.commit - page.get("counted")) & MASK not in (0, 1)
            audit.tally.lost += audit.expected != state.commit
            audit.tally.half_written += audit.reader._headers[state.commit % SLOTS][MARK] == 0
        return audit.tally


@pytest.mark.parametrize("kills", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_committed_record_is_lost_repeated_or_torn_whenever_its_writer_is_killed(kills):
    tally = kill_loop(kills, seed=1, writer_class=LaneWriter, reader_class=LaneReader)
    assert tally.clean, tally
    assert tally.read > kills
    assert tally.half_written > 0, "no kill met a record half way: the test would not see a broken protocol"


@pytest.mark.parametrize("reader_class", [LaneReader, Trusting])
def test_the_same_loop_catches_a_protocol_that_promises_before_it_delivers(reader_class):
    assert not kill_loop(30, seed=2, writer_class=CommitFirst, reader_class=reader_class).clean


@pytest.mark.parametrize("store", range(STORES + 1))
def test_a_writer_killed_between_any_two_stores_leaves_exactly_what_it_committed(store):
    """Three lives, each killed in its second record at the marked point, then one that ends well."""
    with lane_of(SLOTS, 8 * WORDS, START) as segment:
        audit = Auditor(segment, LaneReader)

        def life(stores: int | None) -> None:
            writer = LaneWriter(segment, SCHEMA)
            for n in range(2):
                assert writer.reserve() is not None
                room = np.frombuffer(writer.payloads[writer.slot], dtype=np.uint64)
                whole = content(writer.sequence, writer.epoch)
                room[:] = whole
                writer.commit(WORDS)
                if n == 0 and stores is not None:
                    fuse = mortal(writer, stores, die=lambda: os.kill(os.getpid(), signal.SIGKILL))
                    assert writer.reserve() is not None
                    room = np.frombuffer(writer.payloads[writer.slot], dtype=np.uint64)
                    whole = content(writer.sequence, writer.epoch)
                    fuse.burn()
                    room[: WORDS // 2] = whole[: WORDS // 2]
                    fuse.burn()
                    room[WORDS // 2 :] = whole[WORDS // 2 :]
                    writer.commit(WORDS)
                    return

        for stores in (store, store, store, None):
            begin_epoch(segment)
            with child(lambda stores=stores: life(stores)) as pid:
                status = os.waitpid(pid, 0)[1]
            assert os.WIFSIGNALED(status) == (stores is not None and stores < STORES)
            audit.drain()
        assert audit.tally.clean, audit.tally
        assert audit.tally.read == 3 * (1 + (store == STORES)) + 2
        assert audit.expected == lane_state(segment).commit


def own_for_ever(segment: Segment, page: Words) -> None:
    """A reader's life: take over where the last one stopped owning, own each record, then give it back."""
    reader = LaneReader(segment, SCHEMA)
    reader.seek((START + page.get("owned")) & MASK)
    into = np.empty(WORDS, dtype=np.uint64)
    while True:
        chunk = reader.read(into)
        if chunk is not None:
            owned = page.get("owned")
            right = chunk.sequence == (START + owned) & MASK
            right &= not (into != content(chunk.sequence, chunk.epoch)).any()
            page.set("wrong", page.get("wrong") + (not right))
            page.set("owned", owned + 1)
            reader.release(chunk.sequence)


@pytest.mark.parametrize("kills", [50, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_reader_that_seeks_to_what_it_owns_gets_each_record_once_whenever_it_is_killed(kills):
    draw = chance(3)
    with lane_of(SLOTS, 8 * WORDS, START) as segment, Segment.create("page", PAGE_BYTES) as own:
        page = Words(own.buffer, 0, ("owned", "wrong"))
        begin_epoch(segment)
        writer = LaneWriter(segment, SCHEMA)

        def write_while(condition) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while condition() and time.monotonic() < deadline:
                room = writer.reserve()
                if room is not None:
                    np.frombuffer(room, dtype=np.uint64)[:] = content(writer.sequence, writer.epoch)
                    writer.commit(WORDS)

        for _ in range(kills):
            before = page.get("owned")
            with child(lambda: own_for_ever(segment, page)):
                write_while(lambda before=before: page.get("owned") == before)
                until = time.perf_counter() + draw.uniform(0, 0.002)
                write_while(lambda until=until: time.perf_counter() < until)
            assert page.get("owned") > before
        with child(lambda: own_for_ever(segment, page)):
            written = (writer.sequence - START) & MASK
            deadline = time.monotonic() + PATIENCE_S
            while page.get("owned") < written and time.monotonic() < deadline:
                os.sched_yield()
        assert (page.get("owned"), page.get("wrong")) == (written, 0)
