"""Writers and readers of a lane that are killed at random moments and at every marked point.

The evidence does not come from the lane alone: after each commit the writer counts on a page of its own, and every
payload says which block of which life it is, in all of its words.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from memory_tools import SCHEMA, STORES, chance, child, fork, kill, lane_of, mortal, wait_for_end

from mlxe_async.errors import CorruptRecord
from mlxe_async.ipc.shared import kept
from mlxe_async.ipc.shared.kept import LEAST_BYTES, KeptState
from mlxe_async.ipc.shared.lanes import (
    COUNT,
    CUT,
    EPOCH,
    MARK,
    Block,
    LaneReader,
    LaneWriter,
    begin_epoch,
    lane_state,
    mark,
)
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.ipc.shared.words import MASK, PAGE_BYTES, Words

WORDS = 128  # uint64 per payload
SLOTS = 128
START = 2**64 - 1000
RAMP = np.arange(WORDS, dtype=np.uint64)
PATIENCE_S = 60


def content(sequence: int, epoch: int) -> np.ndarray:
    """The payload (WORDS,) of a block: no two blocks share a word at any place."""
    return RAMP + np.uint64((sequence * 1000 + epoch * 2**40) & MASK)


class CommitFirst(LaneWriter):
    """Broken on purpose: promises a block before it is there."""

    def reserve(self) -> memoryview | None:
        payload = super().reserve()
        if payload is not None:
            self._headers[self.slot][MARK] = mark(self._next)
            self._control.set("commit", self._next + 1)
        return payload


class Trusting(LaneReader):
    """Broken on purpose: believes the commit word and checks nothing."""

    def _copy(self, into: memoryview) -> Block:
        sequence = self._position
        into[:] = self._payloads[sequence & self._mask]
        header = self._headers[sequence & self._mask]
        return Block(sequence, header[EPOCH], header[COUNT], bool(header[CUT]), self.payload_bytes)


@dataclass
class Tally:
    read: int = 0
    corrupt: int = 0
    miscounted: int = 0
    lost: int = 0
    torn: int = 0
    half_written: int = 0
    uncut: int = 0

    @property
    def clean(self) -> bool:
        """No fault so far."""
        return not (self.corrupt or self.miscounted or self.lost or self.torn or self.uncut)


class Auditor:
    """Reads a lane and compares every block with what its writer must have meant."""

    def __init__(self, segment: Segment, reader_class: type[LaneReader]) -> None:
        self.reader = reader_class(segment, SCHEMA, retry_pause_s=0.0001)
        self.into = np.empty(WORDS, dtype=np.uint64)
        self.expected, self.last_epoch = START, 0
        self.tally = Tally()

    def drain(self) -> None:
        """Read all there is at this moment; a writer that is as fast as we are must not keep us here for ever."""
        for _ in range(self.reader.backlog()):
            try:
                got = self.reader.read(self.into)
            except CorruptRecord:
                self.tally.corrupt += 1
                self.reader.release(self.reader.skip())
                self.expected = (self.expected + 1) & MASK
                continue
            if got is None:
                return
            self.tally.read += 1
            # Also says that none came twice and none is missing: the sequence is the audit's own count.
            self.tally.torn += bool((self.into != content(self.expected, got.epoch)).any())
            self.tally.torn += got.sequence != self.expected
            self.tally.uncut += got.cut != (got.epoch != self.last_epoch)
            self.expected, self.last_epoch = (self.expected + 1) & MASK, got.epoch
            self.reader.release(got.sequence)


def write_for_ever(segment: Segment, page: Words, writer_class: type[LaneWriter]) -> None:
    """A writer's life: as fast as the lane allows, counting on its own page what it committed."""
    writer = writer_class(segment, SCHEMA)
    views = [np.frombuffer(payload, dtype=np.uint64) for payload in writer.payloads]
    while True:
        if writer.reserve() is not None:
            views[writer.slot][:] = content(writer.sequence, writer.epoch)
            page.set("counted", writer.commit(WORDS) + 1)


WRITERS = {"right": LaneWriter, "promises first": CommitFirst}
READERS = {"right": LaneReader, "trusts": Trusting}


def kill_writers(kills: int, seed: int, writer: str, reader: str) -> dict[str, int]:
    """Start a writer, let it run for a random while, kill it (some stopped first), look at the lane; again and again.

    Half of the lives are read all along; in the others the writer has the processor to itself while it writes.
    """
    draw = chance(seed)
    with lane_of(SLOTS, 8 * WORDS, START) as segment, Segment.create("page", PAGE_BYTES) as own:
        page = Words(own.buffer, 0, ("counted",))
        audit = Auditor(segment, READERS[reader])
        for _ in range(kills):
            begin_epoch(segment)
            began = lane_state(segment).commit
            page.set("counted", began)
            pid = fork(lambda: write_for_ever(segment, page, WRITERS[writer]))
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
            audit.tally.miscounted += (state.commit - page.get("counted")) & MASK not in (0, 1)
            audit.tally.lost += audit.expected != state.commit
            audit.tally.half_written += audit.reader._headers[state.commit % SLOTS][MARK] == 0
            if not audit.tally.clean:
                break  # one fault is enough
        return asdict(audit.tally)


def killed_at(store: int) -> dict[str, int]:
    """Three lives, each killed in its second block before its `store`th store, then one that ends well."""
    with lane_of(SLOTS, 8 * WORDS, START) as segment:
        audit = Auditor(segment, LaneReader)

        def write(writer: LaneWriter, between: Callable[[], None]) -> None:
            assert writer.reserve() is not None
            room = np.frombuffer(writer.payloads[writer.slot], dtype=np.uint64)
            whole = content(writer.sequence, writer.epoch)
            between()
            room[: WORDS // 2] = whole[: WORDS // 2]
            between()
            room[WORDS // 2 :] = whole[WORDS // 2 :]
            writer.commit(WORDS)

        def life(stores: int) -> None:
            writer = LaneWriter(segment, SCHEMA)
            write(writer, lambda: None)
            fuse = mortal(writer, stores, die=lambda: os.kill(os.getpid(), signal.SIGKILL))
            write(writer, fuse.burn)

        deaths = 0
        for stores in (store, store, store, STORES):
            begin_epoch(segment)
            with child(lambda stores=stores: life(stores)) as pid:
                deaths += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
            audit.drain()
        audit.tally.lost += audit.expected != lane_state(segment).commit
        return {"deaths": deaths, **asdict(audit.tally)}


def killed_at_each_store() -> list[dict[str, int]]:
    """`killed_at` each store of a block, and after the last."""
    return [killed_at(store) for store in range(STORES + 1)]


def own_for_ever(segment: Segment, page: Words) -> None:
    """A reader's life: take over where the last one stopped owning, own each block, then give it back."""
    reader = LaneReader(segment, SCHEMA)
    reader.seek((START + page.get("owned")) & MASK)
    into = np.empty(WORDS, dtype=np.uint64)
    while True:
        got = reader.read(into)
        if got is not None:
            owned = page.get("owned")
            right = got.sequence == (START + owned) & MASK
            right &= not (into != content(got.sequence, got.epoch)).any()
            page.set("wrong", page.get("wrong") + (not right))
            page.set("owned", owned + 1)
            reader.release(got.sequence)


def kill_readers(kills: int, seed: int) -> dict[str, int]:
    """Write all the time while readers come and are killed; the last one owns what is left."""
    draw = chance(seed)
    with lane_of(SLOTS, 8 * WORDS, START) as segment, Segment.create("page", PAGE_BYTES) as own:
        page = Words(own.buffer, 0, ("owned", "wrong"))
        begin_epoch(segment)
        writer = LaneWriter(segment, SCHEMA)

        def write_while(condition: Callable[[], bool]) -> None:
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
                until = time.perf_counter() + draw.uniform(0, 0.001)
                write_while(lambda until=until: time.perf_counter() < until)
            assert page.get("owned") > before
        written = (writer.sequence - START) & MASK
        with child(lambda: own_for_ever(segment, page)) as pid:
            deadline = time.monotonic() + PATIENCE_S
            while page.get("owned") < written and time.monotonic() < deadline:
                assert not wait_for_end(pid, 0.001)
        return {"written": written, "owned": page.get("owned"), "wrong": page.get("wrong")}


class Paced(dict[str, np.ndarray]):
    """Arrays that are copied with a pause in between, so that most of the time of a life is spent inside `keep`."""

    def items(self):  # type: ignore[no-untyped-def, override]  # what `keep` asks for, and no more
        """Name and array, slowly."""
        for pair in super().items():
            yield pair
            time.sleep(0.0003)


def keep_for_ever(segment: Segment, page: Words) -> None:
    """A learner's life under `oa`: find what is left, then keep and publish, and publish without keeping."""
    write = kept._Slot.write

    def slowly(slot: Any, number: int, to: int, arrays: dict[str, np.ndarray]) -> None:
        write(slot, number, to, Paced(arrays))

    kept._Slot.write = slowly  # type: ignore[method-assign]  # only in this child
    store = KeptState(Segment.attach("learner", os.dup(segment.fd)))
    version = page.get("published")
    found = store.find(version)
    if version and found is None:
        page.set("lost", page.get("lost") + 1)
    if found is not None:
        label, arrays = found
        page.set("torn", page.get("torn") + any(bool((array != label).any()) for array in arrays.values()))
    page.set("begun", page.get("begun") + 1)
    while True:
        arrays = {name: np.full(200, version + 1) for name in "abcd"}
        page.set("inside", 1)
        store.keep(version + 1, arrays, spare=version)
        page.set("inside", 0)
        for _ in range(2):
            version += 1
            page.set("published", version)


def kill_keepers(kills: int, seed: int) -> dict[str, int]:
    """Kill a learner that keeps its state now and then, again and again, inside `keep` alone."""
    draw, words = chance(seed), ("published", "begun", "lost", "torn", "inside")
    half_written = done = 0
    with (
        Segment.create("learner", LEAST_BYTES, grows=True) as segment,
        Segment.create("page", PAGE_BYTES) as own,
    ):
        page = Words(own.buffer, 0, words)
        while done < kills:
            lives = page.get("begun")
            with child(lambda: keep_for_ever(segment, page)) as pid:
                deadline = time.monotonic() + PATIENCE_S
                while page.get("begun") == lives and time.monotonic() < deadline:
                    assert not wait_for_end(pid, 0.0002)
                # A life in a few is so short that it publishes nothing: deaths in a row are what is looked for.
                wait_for_end(pid, draw.uniform(0, 0.0025))
                os.kill(pid, signal.SIGSTOP)
                os.waitpid(pid, os.WUNTRACED)
                inside = page.get("inside")
                kill(pid)
            done += inside
            if inside:
                half_written += _half_written(segment)
            page.set("inside", 0)
        return {"kills": done, "half_written": half_written, "lost": page.get("lost"), "torn": page.get("torn")}


def _half_written(segment: Segment) -> bool:
    """Whether a slot bears the odd number of a write that never ended."""
    left = KeptState(Segment.attach("learner", os.dup(segment.fd)))
    return any(slot.sequence % 2 for slot in left._slots)
