"""The learner's side of a replay memory: minibatches of a plan, copied out of the ring into arrays that are reused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlxe_async.fences import fence
from mlxe_async.memory.frames import FrameRing
from mlxe_async.memory.shape import REFERENCE, WORD, ReplayShape, page
from mlxe_async.rows import Array

# Bytes of minibatches that are gathered in one go: few calls, and still near when they are learned from.
GATHERED_TOGETHER = 1 << 19
BOTH = "obs and next_obs"


class Gatherer:
    """Copies rows, windows and stacks of frames out of a memory.

    Args:
        shape: the memory's sizes.
        buffer: the shared bytes.
    """

    def __init__(self, shape: ReplayShape, buffer: Any) -> None:
        self._shape, self._packed, self._frames = shape, shape.payload, shape.frame_ring(buffer)
        self._ring = shape.ring(buffer)
        self._words = self._packed.rows(buffer, shape.capacity, shape.offset("ring"))
        self._plain = [name for name in self._packed.names if not name.endswith(REFERENCE)]
        self._ahead: _Ahead | None = None
        self._part = (0, 1)
        plan_bytes = page(shape.plan_layout.nbytes(shape.plan_updates))
        self.plans = [
            shape.plan_layout.views(buffer, shape.plan_updates, shape.offset("plans") + slot * plan_bytes)
            for slot in range(shape.plan_slots)
        ]

    def gather(
        self, plan: Mapping[str, Any], k: int, window: int = 1, *, reuse: bool = False
    ) -> tuple[dict[str, Array], Array]:
        """See `ReplayMemory.gather`."""
        if reuse and window == 1:
            ahead = self._filled(plan, k)
            batch, is_whole = ahead.batches[k - ahead.first].copy(), ahead.is_whole[k - ahead.first]
            if is_whole and self._frames is None:
                return batch, ahead.everywhere
            whole = ahead.whole[k - ahead.first]
            if self._frames is not None:
                whole = self._take_stacks(self._frames, ahead, plan, k)
                batch |= ahead.stacked
        else:
            slot, mine = self.plans[plan["slot"]], self._mine(plan)
            batch, whole = self._gather(slot["index"][k, mine], slot["stamp"][k, mine], window)
            batch["weight"] = slot["weight"][k, mine]
        if whole.all():
            return batch, np.arange(len(whole))
        positions = np.flatnonzero(whole)
        batch = {
            name: column[:, positions] if window > 1 and name != "weight" else column[positions]
            for name, column in batch.items()
        }
        return batch, positions

    def share(self, part: int, parts: int) -> None:
        """See `ReplayMemory.share`."""
        self._part, self._ahead = (part, parts), None

    def rows_of(self, plan: Mapping[str, Any]) -> int:
        """See `ReplayMemory.rows_of`."""
        mine = self._mine(plan)
        return int(mine.stop - mine.start)

    def _mine(self, plan: Mapping[str, Any]) -> slice:
        """The samples of a minibatch that are gathered."""
        rows, (part, parts) = int(plan["rows"]), self._part
        return slice(rows * part // parts, rows * (part + 1) // parts)

    def drawn(self, plan: Mapping[str, Any]) -> tuple[Array, Array]:
        """See `ReplayMemory.drawn`."""
        slot, updates, mine = self.plans[plan["slot"]], slice(0, plan["updates"]), self._mine(plan)
        return slot["index"][updates, mine].copy(), slot["stamp"][updates, mine].copy()

    def rows_at(self, index: Array, stamp: Array) -> tuple[dict[str, Array], Array]:
        """See `ReplayMemory.rows_at`."""
        return self._gather(index, stamp, 1)

    def in_plan(self, plan: Mapping[str, Any], positions: Array) -> Array:
        """The places in a minibatch of samples that `gather` told the positions of."""
        first = self._mine(plan).start
        return positions + first if first else positions

    def columns(self, index: Array) -> dict[str, Array]:
        """Copies of the columns, derived ones included, of some rows of the ring (n, ...)."""
        columns = self._packed.views(self._words.take(index, axis=0))
        if self._frames is None:
            return columns
        found, stacks = self._places(self._frames, columns, index), {}
        for name, places in found.items():
            stacks[name] = np.empty((*places.shape, self._frames.frame_bytes), np.uint8)
            self._frames.take(places, stacks[name])
        return {name: columns[name] for name in self._plain} | self._as_columns(stacks)

    def _places(self, frames: FrameRing, columns: Mapping[str, Array], index: Array) -> dict[str, Array]:
        """Return where the frames (..., k) of some rows' stacks lie, by column.

        The observation after a step has one frame that the one before has not: `BOTH` are gathered together.
        """
        stream = index // self._shape.stream_rows
        references = {name: columns[name + REFERENCE] for name in self._shape.stacked}
        found, obs, after = {}, references["obs"], references["next_obs"]
        if frames.is_step(obs, after):
            del references["obs"], references["next_obs"]
            newest = frames.places(stream, after)[..., -1:]
            found[BOTH] = np.concatenate((frames.places(stream, obs), newest), axis=-1)
        for name, reference in references.items():
            if name == "next_obs" or (reference != after).any():  # what is the same everywhere is gathered once
                found[name] = frames.places(stream, reference)
        return found

    def _as_columns(self, stacks: dict[str, Array]) -> dict[str, Array]:
        """Stacks as bytes (..., k, frame_bytes) as observations, without a copy: those of `BOTH` overlap.

        A column that was not gathered has the observations after the step.
        """
        columns = {name: stack for name, stack in stacks.items() if name != BOTH}
        if BOTH in stacks:
            columns["obs"], columns["next_obs"] = stacks[BOTH][..., :-1, :], stacks[BOTH][..., 1:, :]
        columns = {name: columns.get(name, columns["next_obs"]) for name in self._shape.stacked}
        dtype, frame = self._shape.frame
        return {name: stack.view(dtype).reshape((*stack.shape[:-1], *frame)) for name, stack in columns.items()}

    def _gather(self, index: Array, stamp: Array, window: int) -> tuple[dict[str, Array], Array]:
        """Columns of rows or windows in fresh arrays, and which of them (M,) are still there."""
        where, stamps, valid = index, stamp, None
        if window > 1:
            ahead, size = np.arange(window)[:, None], self._shape.stream_rows
            left = np.clip(self._ring["left"][index], 1, window)
            valid, further = ahead < left, np.minimum(ahead, left - 1)
            start = (index // size) * size
            where = start + (index - start + further) % size
            # The rows of a window were stamped one after the other.
            stamps = stamp + further
        columns = self.columns(where)
        # Afterwards: the writer takes the stamp of a row away before it replaces the row.
        fence()
        whole = self._ring["stamp"][where] == stamps
        if valid is not None:
            columns["valid"], whole = valid, whole.all(axis=0)
        return columns, whole

    def _filled(self, plan: Mapping[str, Any], k: int) -> _Ahead:
        """Arrays that hold the k-th minibatch; if they must be filled, some that follow come along."""
        ahead = self._ahead
        if ahead is not None and ahead.plan == plan["number"] and ahead.first <= k < ahead.first + ahead.count:
            return ahead
        mine = self._mine(plan)
        rows = mine.stop - mine.start
        if ahead is None or len(ahead.everywhere) != rows:
            together = max(
                1, min(GATHERED_TOGETHER // (max(1, rows) * self._packed.words * WORD), self._shape.plan_updates)
            )
            ahead = self._ahead = _Ahead(self._shape, together, rows)
        slot = self.plans[plan["slot"]]
        ahead.plan, ahead.first, ahead.count = plan["number"], k, min(plan["updates"] - k, len(ahead.words))
        some = slice(k, k + ahead.count)
        index = slot["index"][some, mine]
        # With another mode numpy would copy by way of an array of its own.
        self._words.take(index, axis=0, out=ahead.words[: ahead.count], mode="clip")
        # Afterwards: the writer takes the stamp of a row away before it replaces the row.
        fence()
        whole = self._ring["stamp"].take(index, mode="clip") == slot["stamp"][some, mine]
        ahead.whole[: ahead.count] = whole
        ahead.is_whole = [True] * ahead.count if whole.all() else whole.all(axis=1).tolist()
        ahead.weights[: ahead.count] = slot["weight"][some, mine]
        if self._frames is not None:
            self._find_stacks(self._frames, ahead, index)
        return ahead

    def _find_stacks(self, frames: FrameRing, ahead: _Ahead, index: Array) -> None:
        """Find all frames of the minibatches that are ahead; they are copied one minibatch after the other."""
        ahead.places = self._places(frames, self._packed.views(ahead.words[: ahead.count]), index)
        for name, places in ahead.places.items():
            if name not in ahead.stacks:
                ahead.stacks[name] = np.full((*places.shape[1:], frames.frame_bytes), 0, np.uint8)
        ahead.stacked = self._as_columns({name: ahead.stacks[name] for name in ahead.places})

    def _take_stacks(self, frames: FrameRing, ahead: _Ahead, plan: Mapping[str, Any], k: int) -> Array:
        """Copy the frames of the k-th minibatch. Returns (M,) whether each row was still in place afterwards."""
        for name, places in ahead.places.items():
            frames.take(places[k - ahead.first], ahead.stacks[name])
        # Afterwards: the writer takes the stamp of a row away before it replaces the row.
        fence()
        slot, mine = self.plans[plan["slot"]], self._mine(plan)
        return np.asarray(self._ring["stamp"].take(slot["index"][k, mine], mode="clip") == slot["stamp"][k, mine])


class _Ahead:
    """Arrays for some minibatches in a row, touched before they are used."""

    def __init__(self, shape: ReplayShape, together: int, rows: int) -> None:
        self.words = np.full((together, rows, shape.payload.words), 0, np.uint64)
        self.weights = np.full((together, rows), 0, np.float32)
        self.whole = np.full((together, rows), False)
        self.batches = [
            {name: column for name, column in shape.payload.views(words).items() if not name.endswith(REFERENCE)}
            | {"weight": weights}
            for words, weights in zip(self.words, self.weights, strict=True)
        ]
        self.is_whole = [False] * together
        self.everywhere = np.arange(rows)
        self.everywhere.flags.writeable = False
        self.places: dict[str, Array] = {}
        self.stacks: dict[str, Array] = {}
        self.stacked: dict[str, Array] = {}
        self.plan, self.first, self.count = -1, 0, 0
