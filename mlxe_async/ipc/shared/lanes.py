"""A lane: a ring of slots in shared memory, one writer, one reader; what a dead writer left half written is not read.

No lock is shared, because a lock whose owner was killed stays locked. Instead every block certifies itself::

    slot   = mark | epoch | cut | count | length | crc32 | payload
    words  = commit (the writer's) | tail (the reader's) | epoch, even_start, odd_start (the supervisor's)

The writer of sequence number s waits until slot s % capacity is read, voids its mark, writes the payload in place,
then epoch, counts and CRC, then the mark 2s + 1, then `commit` = s + 1. Blocks below `commit` are committed: they
survive the writer's death, exactly once. The reader checks mark and epoch, copies the block out, checks the CRC of its
copy and the mark once more, and moves `tail` only when the copy is owned. On x86 the order of stores alone would do;
elsewhere a reader may meet new words beside old bytes, and then the checks turn what it saw into another try.

A writer that dies leaves at most one half-written slot, at `commit`. Only when it is proven dead, the supervisor begins
a new epoch; the next writer starts at `commit` and writes over whatever is there. A slot may be complete and marked yet
never committed: that is why the epoch is part of the check. The first block of an epoch is marked as a *cut*, for no
sequence of steps may be joined across it.

Where an epoch starts has a word for even epochs and one for odd ones. The start of a new epoch is stored beside that of
the present one, and the epoch's own word, one store, makes it count. So a reader never meets a new start with an old
epoch, however long the supervisor is kept between its stores.

Sequence numbers count modulo 2^64, and are compared by their distance, never by their size.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

from mlxe_async.errors import CorruptRecord, ProtocolError
from mlxe_async.fences import fence
from mlxe_async.ipc.shared.checksums import checksum_of
from mlxe_async.ipc.shared.segments import STAMP_BYTES, Segment, read_stamp, write_stamp
from mlxe_async.ipc.shared.words import MASK, Words

MAGIC = b"MLXELANE"
CONTROL = ("commit", "tail", "epoch", "even_start", "odd_start")
STARTS = ("even_start", "odd_start")
SLOT_HEADER_BYTES = 64
RETRIES = 3

# Places of the slot header's words.
MARK, EPOCH, CUT, COUNT, LENGTH, CRC = range(6)

_HEAD = STAMP_BYTES * (1 + len(CONTROL))
_HALF = 2**63
_SUMMED = Struct("=5Q")


@dataclass(frozen=True, slots=True)
class Block:
    """One block as read.

    Args:
        sequence: its number in the lane.
        epoch: which life of the writer wrote it.
        count: rows in it, as the writer said.
        cut: nothing before it in this lane may be joined with it.
        length: bytes of payload copied out.
    """

    sequence: int
    epoch: int
    count: int
    cut: bool
    length: int


class LaneState(NamedTuple):
    """A lane's control words at one moment, for ledgers: `commit` written, `tail` given back, `backlog` between."""

    commit: int
    tail: int
    epoch: int
    epoch_start: int
    backlog: int


def lane_capacity(slots: int) -> int:
    """Slots a lane really gets: the next power of two, so that slot numbers stay regular where sequences wrap.

    Raises:
        ValueError: `slots` is not positive.
    """
    if slots <= 0:
        raise ValueError(f"lane: slots must be positive, got {slots}")
    return 1 << (slots - 1).bit_length()


def lane_bytes(slots: int, payload_bytes: int) -> int:
    """Bytes of a lane of at least `slots` slots of `payload_bytes` bytes each.

    Raises:
        ValueError: a size is not positive.
    """
    return _HEAD + lane_capacity(slots) * _stride(payload_bytes) + STAMP_BYTES


def format_lane(
    segment: Segment, slots: int, payload_bytes: int, schema_hash: int, start_sequence: int = 0, epoch: int = 0
) -> None:
    """Make an empty lane of a segment: the supervisor's, once, before anybody else attaches.

    Args:
        segment: memory of exactly `lane_bytes(slots, payload_bytes)` bytes.
        slots: number of blocks that can wait at least; rounded up to a power of two.
        payload_bytes: the largest payload of one block.
        schema_hash: 64-bit fingerprint of what a payload means.
        start_sequence: number of the first block.
        epoch: of the last writer, in the run that this lane goes on with.

    Raises:
        ValueError: the segment has another size.
    """
    if segment.size != (need := lane_bytes(slots, payload_bytes)):
        raise ValueError(f"lane {segment.name}: expected a segment of {need} bytes, got {segment.size}")
    capacity, stride = lane_capacity(slots), _stride(payload_bytes)
    for slot in range(capacity):
        start = _HEAD + slot * stride
        segment.buffer[start : start + SLOT_HEADER_BYTES] = bytes(SLOT_HEADER_BYTES)
    control = Words(segment.buffer, STAMP_BYTES, CONTROL)
    control.set("epoch", epoch)
    for name in ("commit", "tail", *STARTS):
        control.set(name, start_sequence)
    write_stamp(segment, MAGIC, schema_hash & MASK, capacity, payload_bytes, stride)


def begin_epoch(segment: Segment) -> int:
    """Open the lane for a new writer: the supervisor's, only after the old writer is proven dead.

    Returns:
        the new epoch, from 1.

    Raises:
        ProtocolError: the segment is no lane.
    """
    read_stamp(segment, MAGIC, 4)
    control = Words(segment.buffer, STAMP_BYTES, CONTROL)
    epoch = control.get("epoch") + 1
    _open(control, epoch, control.get("commit"))
    return epoch


def _open(control: Words, epoch: int, start: int) -> None:
    """Begin an epoch with block `start`: what was said of the present one stays until the last store."""
    control.set(STARTS[epoch % 2], start)
    fence()
    control.set("epoch", epoch)


def _present_epoch(control: Words) -> tuple[int, int]:
    """The present epoch and the number of its first block; looked at again while it changes."""
    epoch = control.get("epoch")
    while True:
        fence()
        start = control.get(STARTS[epoch % 2])
        fence()
        if (again := control.get("epoch")) == epoch:
            return epoch, start
        epoch = again


def lane_state(segment: Segment) -> LaneState:
    """The control words of a lane, read one after the other while others may move them.

    Raises:
        ProtocolError: the segment is no lane.
    """
    read_stamp(segment, MAGIC, 4)
    control = Words(segment.buffer, STAMP_BYTES, CONTROL)
    tail = control.get("tail")  # before commit, so that the backlog is never negative
    commit = control.get("commit")
    return LaneState(commit, tail, *_present_epoch(control), (commit - tail) & MASK)


class _Lane:
    """What writer and reader see alike: geometry, control words, slots."""

    def __init__(self, segment: Segment, schema_hash: int) -> None:
        found, capacity, payload_bytes, stride = read_stamp(segment, MAGIC, 4)
        self.name = segment.name
        if found != schema_hash & MASK:
            raise ProtocolError(
                f"lane {self.name}: its rows have schema {found:016x}, this process expects {schema_hash & MASK:016x}"
            )
        if segment.size != lane_bytes(capacity, payload_bytes) or stride != _stride(payload_bytes):
            raise ProtocolError(f"lane {self.name}: {segment.size} bytes do not hold {capacity} slots of {stride}")
        self.capacity = capacity
        self.payload_bytes = payload_bytes
        self._mask = capacity - 1
        self._control = Words(segment.buffer, STAMP_BYTES, CONTROL)
        self._headers: list[memoryview[int]] = []
        self._payloads: list[memoryview[int]] = []
        for start in range(_HEAD, _HEAD + capacity * stride, stride):
            body = start + SLOT_HEADER_BYTES
            self._headers.append(segment.buffer[start:body].cast("Q"))
            self._payloads.append(segment.buffer[body : body + payload_bytes])

    def _distance(self, behind: str, ahead: int, from_: int) -> int:
        """`ahead` - `from_`, which no lane in order has outside 0..capacity: the words are other processes'."""
        distance = (ahead - from_) & MASK
        if distance > self.capacity:
            raise ProtocolError(f"lane {self.name}: {behind} is {distance} blocks off, capacity {self.capacity}")
        return distance


class LaneWriter(_Lane):
    """The one writer of a lane in the present epoch.

    Args:
        segment: a formatted lane.
        schema_hash: fingerprint of what this process puts into a payload.

    Raises:
        ProtocolError: the segment is no lane, is damaged, or has another schema.
    """

    def __init__(self, segment: Segment, schema_hash: int) -> None:
        super().__init__(segment, schema_hash)
        self.epoch = self._control.get("epoch")
        self._next = self._first = self._control.get("commit")
        self._tail = self._control.get("tail")
        self._reserved = False

    @property
    def sequence(self) -> int:
        """The number the next block gets."""
        return self._next

    @property
    def slot(self) -> int:
        """The slot the next block goes to, 0..capacity-1, for views that are made once per slot."""
        return self._next & self._mask

    @property
    def payloads(self) -> list[memoryview[int]]:
        """The payload of every slot in order; write only to the one `reserve` gave."""
        return list(self._payloads)

    def renew(self) -> int:
        """Begin another epoch: what was written in the former one and is not complete by itself never will be.

        The words are the supervisor's, who writes them while no writer is alive; the living writer may do so itself,
        between two blocks. A reserved slot stays reserved.

        Returns:
            the new epoch.
        """
        self.epoch += 1
        _open(self._control, self.epoch, self._next)
        self._first = self._next
        return self.epoch

    def free_slots(self) -> int:
        """Blocks that can be written before the reader must give room back.

        Raises:
            ProtocolError: the reader's word is impossible.
        """
        self._tail = self._control.get("tail")
        return self.capacity - self._distance("the reader's tail", self._next, self._tail)

    def reserve(self) -> memoryview[int] | None:
        """The next slot's payload (payload_bytes,), writable in place; None while the lane is full.

        Until `commit` the slot is void: a writer that dies now leaves nothing. Asking twice gives the same slot.

        Raises:
            ProtocolError: the reader's word is impossible.
        """
        slot = self._next & self._mask
        if not self._reserved:
            if (self._next - self._tail) & MASK >= self.capacity and not self.free_slots():
                return None
            self._headers[slot][MARK] = 0
            self._reserved = True
        return self._payloads[slot]

    def commit(self, count: int, length: int | None = None) -> int:
        """Make the reserved slot visible.

        Args:
            count: rows in it; 0 <= count < 2^32.
            length: bytes of the payload that matter, from its start; None: all.

        Returns:
            the sequence number committed.

        Raises:
            RuntimeError: nothing is reserved.
            ValueError: `count` or `length` is out of range.
        """
        if not self._reserved:
            raise RuntimeError(f"lane {self.name}: commit without reserve")
        if length is None:
            length = self.payload_bytes
        if not 0 <= length <= self.payload_bytes or not 0 <= count < 2**32:
            raise ValueError(f"lane {self.name}: a block of {count} rows in {length} bytes cannot be committed")
        sequence = self._next
        slot = sequence & self._mask
        header = self._headers[slot]
        cut = sequence == self._first
        header[EPOCH] = self.epoch
        header[CUT] = cut
        header[COUNT] = count
        header[LENGTH] = length
        header[CRC] = checksum(sequence, self.epoch, cut, count, self._payloads[slot][:length])
        fence()
        header[MARK] = mark(sequence)
        fence()
        self._next = (sequence + 1) & MASK
        self._control.set("commit", self._next)
        self._reserved = False
        return sequence


class LaneReader(_Lane):
    """The one reader of a lane.

    Args:
        segment: a formatted lane.
        schema_hash: fingerprint of what this process takes a payload for.
        retry_pause_s: pause before a block that failed its checks is looked at again.

    Raises:
        ProtocolError: the segment is no lane, is damaged, or has another schema.
    """

    def __init__(self, segment: Segment, schema_hash: int, *, retry_pause_s: float = 0.001) -> None:
        super().__init__(segment, schema_hash)
        self._retry_pause_s = retry_pause_s
        self._tail = self._position = self._control.get("tail")
        self._commit = self._tail
        self._last_epoch: int | None = None
        self._gap = False

    @property
    def position(self) -> int:
        """The number of the next block to read."""
        return self._position

    def backlog(self) -> int:
        """Committed blocks not yet read.

        Raises:
            ProtocolError: the writer's word is impossible.
        """
        self._commit = self._control.get("commit")
        committed = self._distance("the writer's commit", self._commit, self._tail)
        return committed - ((self._position - self._tail) & MASK)

    def read(self, into: Any) -> Block | None:
        """Copy the next block out and check the copy. The lane keeps the block until `release`.

        Args:
            into: memoryview or contiguous array of at least `payload_bytes` bytes; after an error its content is void.

        Returns:
            what was read, or None while there is nothing new.

        Raises:
            CorruptRecord: the block fails its checks again and again; `skip` goes past it.
            ProtocolError: the writer's word is impossible.
            ValueError: `into` is too small.
        """
        if self._position == self._commit and not self.backlog():
            return None
        # The commit word was read before anything it covers, and before the epoch it was written in.
        fence()
        if type(into) is not memoryview or into.format != "B" or into.ndim != 1:
            into = memoryview(into).cast("B")
        if len(into) < self.payload_bytes:
            raise ValueError(f"lane {self.name}: {self.payload_bytes} bytes are needed to read into, got {len(into)}")
        fault = ""
        for attempt in range(1 + RETRIES):
            if attempt:
                time.sleep(self._retry_pause_s)
                fence()
            found = self._copy(into)
            if type(found) is Block:
                self._position = (found.sequence + 1) & MASK
                self._last_epoch = found.epoch
                self._gap = False
                return found
            fault = str(found)
        raise CorruptRecord(f"lane {self.name}: block {self._position} {fault}; looked at {1 + RETRIES} times")

    def skip(self) -> int:
        """Go past the block at `position` without reading it; the next one read is a cut.

        Returns:
            the sequence number skipped, to be released like one that was read.

        Raises:
            RuntimeError: there is nothing to skip.
        """
        if not self.backlog():
            raise RuntimeError(f"lane {self.name}: no block to skip")
        skipped = self._position
        self._position = (skipped + 1) & MASK
        self._gap = True
        return skipped

    def release(self, sequence: int) -> None:
        """Give every slot up to and including block `sequence` back to the writer, once the copies are owned.

        Raises:
            ValueError: that block was not read yet, or is given back already.
        """
        tail = (sequence + 1) & MASK
        if not 0 < (tail - self._tail) & MASK <= (self._position - self._tail) & MASK:
            raise ValueError(f"lane {self.name}: block {sequence} cannot be released at position {self._position}")
        self._tail = tail
        self._control.set("tail", tail)

    def seek(self, sequence: int) -> None:
        """Read `sequence` next: a restarted reader goes on after what it already owns.

        Raises:
            ValueError: the block is released already or not committed yet.
        """
        self._commit = self._control.get("commit")
        if (sequence - self._tail) & MASK > self._distance("the writer's commit", self._commit, self._tail):
            raise ValueError(f"lane {self.name}: block {sequence} is not between {self._tail} and {self._commit}")
        self._position = sequence
        self._last_epoch = None

    def _copy(self, into: memoryview[int]) -> Block | str:
        """Copy the block at `position` and check the copy; a sentence's end says what is wrong with it."""
        sequence = self._position
        slot = sequence & self._mask
        header = self._headers[slot]
        expected = mark(sequence)
        if header[MARK] != expected:
            return f"bears mark {header[MARK]}, expected {expected}"
        epoch, cut, count, length, crc = header[EPOCH], header[CUT], header[COUNT], header[LENGTH], header[CRC]
        present, start = _present_epoch(self._control)
        if (sequence - start) & MASK < _HALF:
            if epoch != present:
                return f"is of epoch {epoch}, expected {present}"
        elif epoch >= present:
            return f"is of epoch {epoch}, expected one before {present}"
        if length > self.payload_bytes:
            return f"claims {length} bytes, at most {self.payload_bytes} fit"
        copy = into[:length]
        copy[:] = self._payloads[slot][:length]
        if checksum(sequence, epoch, cut, count, copy) != crc:
            return "does not match its checksum"
        fence()
        if header[MARK] != expected:
            return "was overwritten while it was read"
        follows = self._last_epoch is None or self._last_epoch == epoch
        return Block(sequence, epoch, count, bool(cut) or self._gap or not follows, length)


class LaneRemains(_Lane):
    """The slots of a dead writer, read or not, for reports about its death.

    Args:
        segment: a formatted lane.
        schema_hash: fingerprint of what a payload is taken for.

    Raises:
        ProtocolError: the segment is no lane, is damaged, or has another schema.
    """

    def blocks(self) -> Iterator[tuple[memoryview[int], int | None]]:
        """Payload and rows of the blocks of the present epoch that are still there, in order.

        The last one is the slot that was being written: what is in it, and how much, is not known (None).
        """
        commit, epoch = self._control.get("commit"), self._control.get("epoch")
        for sequence in range(commit - self.capacity + 1, commit):
            slot = sequence & self._mask
            header = self._headers[slot]
            if header[MARK] == mark(sequence & MASK) and header[EPOCH] == epoch:
                yield self._payloads[slot], header[COUNT]
        yield self._payloads[commit & self._mask], None


def mark(sequence: int) -> int:
    """A written slot's mark: odd for every sequence number, so that 0 is none."""
    return (2 * sequence + 1) & MASK


def checksum(sequence: int, epoch: int, cut: int, count: int, payload: memoryview[int]) -> int:
    """Checksum of a block. The sequence number is in it, so that old bytes under a new mark do not pass."""
    return checksum_of(payload, crc32(_SUMMED.pack(sequence, epoch, cut, count, len(payload))))


def _stride(payload_bytes: int) -> int:
    if payload_bytes <= 0:
        raise ValueError(f"lane: payload bytes must be positive, got {payload_bytes}")
    return SLOT_HEADER_BYTES + -(-payload_bytes // SLOT_HEADER_BYTES) * SLOT_HEADER_BYTES
