"""Arrays by name that outlive their writer: two slots, each certified, for the one process that keeps its state here.

A slot bears a *label*, such as the version of weights that its arrays belong to. One slot is written while the other
stays whole, so a writer that is killed at any moment leaves the arrays of the label before. As with published weights,
a slot bears an odd sequence number while it is written and an even one when it is whole, and a checksum of its bytes.
The slot that a successor would go on from is never written, however many writers die one after the other.

Which arrays there are is known only to the writer. It makes room for two slots with its first write, and lays them out
by a table of names, dtypes and shapes, which lies in the memory too and holds from then on. Arrays lie there by rows or
by columns as they did at the first write: to turn one around costs more than all else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from struct import Struct
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mlxe_async.fences import fence
from mlxe_async.ipc.shared.checksums import checksum_of
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.ipc.shared.words import MASK, PAGE_BYTES, WORD_STRIDE, Words

SLOTS = 2
TRIES = 100
"""Looks of `find_certified` before it gives up."""
LEAST_BYTES = PAGE_BYTES
"""Size of the segment before anything is kept."""

Arrays = Mapping[str, NDArray[Any]]
_HEAD_WORDS = ("table_bytes", "table_crc")
_SLOT_WORDS = ("sequence", "label", "crc")
_HEAD_BYTES = len(_HEAD_WORDS) * WORD_STRIDE
_SLOT_HEAD_BYTES = len(_SLOT_WORDS) * WORD_STRIDE
_SUMMED = Struct("=2Q")
_Table = list[tuple[str, str, tuple[int, ...], bool]]
"""Name, dtype and shape of each array, and whether it lies by columns."""


class KeptState:
    """Both ends of such a memory: the writer's, and after its death its successor's.

    Args:
        segment: made with `grows`, of at least `LEAST_BYTES`, zero when new.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._table: _Table | None = None
        self._slots: list[_Slot] = []
        self._torn: set[_Slot] | None = None
        self._read_table()

    @property
    def is_laid_out(self) -> bool:
        """True once there are slots: they stay where they are."""
        return self._table is not None

    def keep(self, label: int, arrays: Arrays, *, spare: int | None = None) -> None:
        """Write arrays under a label, and leave the other slot as it is.

        Args:
            label: a number from 0; a later write under the same label is found instead of the earlier one.
            arrays: copied; their names, dtypes and shapes are those of the first write.
            spare: what `find(spare)` would find is not overwritten; None: the largest label's.

        Raises:
            ValueError: these are other arrays than those of the first write, or hold Python objects.
            ResourceError: there is no memory for the first write.
        """
        arrays = {name: np.asarray(array) for name, array in arrays.items()}
        if self._table is None:
            self._format(_table_of(arrays))
        elif not self._slots[0].takes(arrays) and (table := _table_of(arrays)) != self._table:
            raise ValueError(self._differences(table))
        slot, torn = self._least_worth(spare)
        self._torn = {*torn, slot}  # until it is whole: an error may end the writing, too
        slot.write(max(map(_sequence, self._slots)) + 2, label, arrays)
        self._torn = torn - {slot}

    def find(self, most: int) -> tuple[int, dict[str, NDArray[Any]]] | None:
        """The newest whole arrays of the largest label that is at most `most`, copied, and that label."""
        for label, slot in self._best_first(most):
            if slot.is_whole():
                return label, slot.read()
        return None

    def find_certified(self, most: int) -> tuple[int, dict[str, NDArray[Any]]] | None:
        """The same while the writer may be writing: what was overwritten meanwhile is looked for again."""
        for _ in range(TRIES):
            for label, slot in self._best_first(most):
                sequence = slot.sequence
                if slot.label != label or not slot.is_whole():
                    continue
                found = slot.read()
                fence()
                if slot.sequence == sequence and slot.is_whole():
                    return label, found
        return None

    def _best_first(self, most: int) -> list[tuple[int, _Slot]]:
        # Each is looked at once: a writer may begin with it between two looks.
        seen = [(slot.label, slot.sequence, place) for place, slot in enumerate(self._slots)]
        fit = [(label, sequence, place) for label, sequence, place in seen if label is not None and label <= most]
        return [(label, self._slots[place]) for label, _, place in sorted(fit, reverse=True)]

    def _least_worth(self, spare: int | None) -> tuple[_Slot, set[_Slot]]:
        """The slot to write next, and those that are torn: these are written before any that is whole."""
        if self._torn is None:  # what a predecessor left; what this writer does is known without a look
            self._torn = {slot for slot in self._slots if not slot.is_whole()}
        torn = self._torn
        best = next((slot for _, slot in self._best_first(MASK if spare is None else spare) if slot not in torn), None)
        return min((slot for slot in self._slots if slot is not best), key=lambda s: (s not in torn, s.sequence)), torn

    def _format(self, table: _Table) -> None:
        text = json.dumps(table).encode()
        start = _start(text)
        self._slots.clear()
        self._segment.grow(start + SLOTS * _slot_bytes(table))
        head = Words(self._segment.buffer, 0, _HEAD_WORDS)
        head.set("table_bytes", 0)
        fence()
        self._segment.buffer[_HEAD_BYTES : _HEAD_BYTES + len(text)] = text
        self._lay_out(table, start)
        for slot in self._slots:
            slot.clear()
        self._torn = set(self._slots)
        head.set("table_crc", crc32(text))
        fence()
        head.set("table_bytes", len(text))

    def _read_table(self) -> None:
        """Take up the table of a predecessor; one that was not finished, or is damaged, is none."""
        head = Words(self._segment.buffer, 0, _HEAD_WORDS)
        length = head.get("table_bytes")
        text = bytes(self._segment.buffer[_HEAD_BYTES : _HEAD_BYTES + length])
        if not length or len(text) != length or crc32(text) != head.get("table_crc"):
            return
        table: _Table = [(name, dtype, tuple(shape), by_columns) for name, dtype, shape, by_columns in json.loads(text)]
        if _start(text) + SLOTS * _slot_bytes(table) <= self._segment.size:
            self._lay_out(table, _start(text))

    def _lay_out(self, table: _Table, start: int) -> None:
        self._table = table
        self._slots = [_Slot(self._segment, start + k * _slot_bytes(table), table) for k in range(SLOTS)]

    def _differences(self, table: _Table) -> str:
        then = {name: rest for name, *rest, _ in self._table or ()}
        now = {name: rest for name, *rest, _ in table}
        odd = sorted(name for name in {*then, *now} if then.get(name) != now.get(name)) or ["their order"]
        return (
            f"keeping state: expected arrays of the same names, dtypes and shapes each time, got others of "
            f"{', '.join(odd[:5])}; have state() tell arrays whose shapes never change"
        )


class _Slot:
    """One of the slots: words, then the arrays one after the other."""

    def __init__(self, segment: Segment, start: int, table: _Table) -> None:
        self._words = Words(segment.buffer, start, _SLOT_WORDS)
        self._arrays: dict[str, NDArray[Any]] = {}
        first = at = start + _SLOT_HEAD_BYTES
        for name, dtype, shape, by_columns in table:
            self._arrays[name] = (
                segment.array(at, shape[::-1], dtype).T if by_columns else segment.array(at, shape, dtype)
            )
            at += _room(dtype, shape)
        self._bytes = segment.buffer[first:at]

    @property
    def sequence(self) -> int:
        """Even when whole; 0 when never written."""
        return self._words.get("sequence")

    @property
    def label(self) -> int | None:
        """The label; None while it is not whole."""
        return None if self.sequence % 2 or not self.sequence else self._words.get("label")

    def takes(self, arrays: Arrays) -> bool:
        """Return whether arrays have the names, dtypes and shapes of its own, in their order."""
        own = self._arrays
        return [*arrays] == [*own] and all(
            one.dtype == mine.dtype and one.shape == mine.shape
            for one, mine in zip(arrays.values(), own.values(), strict=True)
        )

    def clear(self) -> None:
        """Make it one that was never written."""
        self._words.set("sequence", 0)

    def write(self, sequence: int, label: int, arrays: Arrays) -> None:
        """Replace label and arrays; `sequence` is made even by adding 1 where it is odd."""
        sequence += sequence % 2
        self._words.set("sequence", sequence - 1)
        fence()
        for name, array in arrays.items():
            self._arrays[name][...] = array
        self._words.set("label", label)
        self._words.set("crc", self._checksum(sequence, label))
        fence()
        self._words.set("sequence", sequence)

    def is_whole(self) -> bool:
        """Return whether sequence and checksum say so."""
        sequence, label = self.sequence, self.label
        return label is not None and self._words.get("crc") == self._checksum(sequence, label)

    def read(self) -> dict[str, NDArray[Any]]:
        """Copies of the arrays, all by rows."""
        return {name: array.copy() for name, array in self._arrays.items()}

    def _checksum(self, sequence: int, label: int) -> int:
        return checksum_of(self._bytes, crc32(_SUMMED.pack(sequence, label & MASK)))


def _table_of(arrays: Arrays) -> _Table:
    return [
        (name, array.dtype.str, array.shape, array.flags.f_contiguous and not array.flags.c_contiguous)
        for name, array in arrays.items()
    ]


def _sequence(slot: _Slot) -> int:
    return slot.sequence


def _start(text: bytes) -> int:
    """Return where the first slot begins, behind the table."""
    return -(-(_HEAD_BYTES + len(text)) // PAGE_BYTES) * PAGE_BYTES


def _room(dtype: str, shape: tuple[int, ...]) -> int:
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise ValueError(f"keeping state: expected arrays of numbers, got one of Python objects ({dtype} {shape})")
    return -(-kind.itemsize * int(np.prod(shape, dtype=np.int64)) // WORD_STRIDE) * WORD_STRIDE


def _slot_bytes(table: _Table) -> int:
    return _SLOT_HEAD_BYTES + sum(_room(dtype, shape) for _, dtype, shape, _ in table)
