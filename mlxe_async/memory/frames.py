"""Observations that are stacks of frames, with each frame stored once.

A stack of k frames is named by a *reference*: the number of its newest frame, how many frames it has, and what stands
for those that are missing at an episode's start, its oldest frame repeated or zeros. Frames are numbered in the order
they come to a stream, and frame number i lies at place i modulo the ring's size, so that the frames of a stack lie side
by side and the stack after one step is named by one frame more.

Nothing is believed about who made the stacks: what a reference says is compared with what came, entry by entry, and a
stack that does not continue the one before is stored anew. Whatever a wrapper does, the same bits come out; frames are
shared only where they are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from mlxe_async.rows import Array

MOST = 128
"""Frames of one stack at most."""
_BITS = 8


@dataclass
class Layout:
    """Where the frames of a segment of n rows are to lie, and by which references (n,) its stacks are known.

    Args:
        head: number of the next frame.
        last: reference of the newest stack, if the next one may continue it.
    """

    head: int
    last: int | None
    references: dict[str, Array] = field(default_factory=dict)
    pieces: list[tuple[int, Array]] = field(default_factory=list)

    def append(self, frames: Array) -> None:
        """Frames (n, bytes) come next."""
        self.pieces.append((self.head, frames))
        self.head += len(frames)


class FrameRing:
    """The frames of all streams, on bytes given by the caller.

    Args:
        buffer: writable bytes, zero where no frame was stored; at least `offset + nbytes(...)`.
        offset: where they start.
        streams: number of streams.
        rows: frames kept of each.
        depth: frames k of a stack.
        frame_bytes: bytes of a frame.
    """

    def __init__(self, buffer: object, offset: int, streams: int, rows: int, depth: int, frame_bytes: int) -> None:
        self.rows, self.depth, self.frame_bytes = rows, depth, frame_bytes
        count = streams * rows + 1
        flat = np.frombuffer(buffer, np.uint8, count * frame_bytes, offset)  # type: ignore[call-overload]  # any buffer
        self._frames = flat.reshape(count, frame_bytes)
        self._nothing = count - 1
        self._back = np.arange(depth - 1, -1, -1)
        self._word = next(word for word in ("<u8", "<u4", "<u2", "|u1") if frame_bytes % np.dtype(word).itemsize == 0)

    @staticmethod
    def nbytes(streams: int, rows: int, frame_bytes: int) -> int:
        """Bytes of the frames of all streams, and of one that is all zeros."""
        return (streams * rows + 1) * frame_bytes

    # -- storing --------------------------------------------------------------------------------------------------

    def words(self, stacks: Array) -> Array:
        """Stacks (n, k, ...) as (n, k, words of a frame)."""
        n = len(stacks)
        return np.ascontiguousarray(stacks).reshape(n, self.depth, -1).view(self._word)

    def lay_out(self, head: int, last: int | None, stacks: Mapping[str, Array]) -> Layout:
        """Find which stacks of a segment continue which.

        Args:
            head: number of the next frame.
            last: reference of the stack that was stored last, if the first `obs` is the same.
            stacks: `obs`, `next_obs` and what was derived from them, each (n, k, ...).
        """
        words = {name: self.words(column) for name, column in stacks.items()}
        layout = Layout(head, last)
        obs, after = words.pop("obs"), words.pop("next_obs")
        layout.references["obs"], layout.references["next_obs"] = self._chain(layout, obs, after)
        for name, column in words.items():
            layout.references[name] = self._found(layout, column, obs, after)
        return layout

    def _chain(self, layout: Layout, obs: Array, after: Array) -> tuple[Array, Array]:
        n = len(obs)
        moved = _alike(obs[:, 1:], after[:, :-1])
        stays = np.concatenate(([layout.last is not None], _alike(obs[1:], after[:-1])))
        breaks = np.append(np.flatnonzero(~(moved & stays)), n)
        of_obs, of_after = np.empty(n, np.int64), np.empty(n, np.int64)
        row, reference = 0, layout.last or 0
        while row < n:
            if not stays[row]:
                reference = self._anew(layout, obs[row])
            of_obs[row] = reference
            if not moved[row]:
                of_after[row] = reference = self._anew(layout, after[row])
                row += 1
                continue
            end = int(breaks[breaks.searchsorted(row, side="right")])
            steps = np.arange(end - row)
            different = np.minimum(self.depth, (reference >> 1) % MOST + 2 + steps)
            of_after[row:end] = _reference(layout.head + steps, different, reference & 1)
            of_obs[row + 1 : end] = of_after[row : end - 1]
            layout.append(after[row:end, -1].view(np.uint8))
            row, reference = end, int(of_after[end - 1])
        layout.last = reference
        return of_obs, of_after

    def _anew(self, layout: Layout, stack: Array) -> int:
        """Store a stack (k, words) that continues none; its first frames once if they are alike, never if zeros."""
        same = _alike(stack, stack[:1])
        alike = self.depth if same.all() else int(same.argmin())
        zeros = alike < self.depth and not stack[0].any()
        frames = stack[alike if zeros else alike - 1 :]
        layout.append(frames.view(np.uint8))
        return int(_reference(layout.head - 1, len(frames), int(zeros)))

    def _found(self, layout: Layout, column: Array, obs: Array, after: Array) -> Array:
        """References of derived stacks (n, k, words): of the stacks they are copies of, in their own or later rows.

        Earlier rows are not looked at: their frames may go before those of the row itself.
        """
        n = len(column)
        ahead = int(_alike(after, column[:1]).argmax())
        found = layout.references["next_obs"][np.minimum(np.arange(n) + ahead, n - 1)]
        same = np.concatenate((_alike(column[: n - ahead], after[ahead:]), _alike(column[n - ahead :], after[-1:])))
        for row in np.flatnonzero(~same):
            for name, others in (("next_obs", after), ("obs", obs)):
                there = np.flatnonzero(_alike(others[row:], column[row : row + 1]))
                if len(there):
                    found[row] = layout.references[name][row + there[0]]
                    break
            else:
                found[row] = self._anew(layout, column[row])
                layout.last = None  # it is not the newest any more
        return found

    def write(self, stream: int, layout: Layout) -> None:
        """Store the frames of a layout in the part of a stream; of more than it holds the last ones."""
        oldest = layout.head - self.rows
        for first, frames in layout.pieces:
            numbers = np.arange(max(first, oldest), first + len(frames))
            if len(numbers):
                self._frames[stream * self.rows + numbers % self.rows] = frames[len(frames) - len(numbers) :]

    # -- gathering ------------------------------------------------------------------------------------------------

    def places(self, stream: Array, reference: Array) -> Array:
        """Return where the frames (..., k) of stacks lie, oldest first, given their streams and references (...)."""
        back = np.minimum(self._back, older := ((reference >> 1) % MOST)[..., None])
        place = ((reference >> _BITS) % self.rows)[..., None] - back
        place += np.where(place < 0, self.rows, 0)
        place += (stream * self.rows)[..., None]
        if (reference & 1).any():
            place[(reference & 1).astype(bool)[..., None] & (self._back > older)] = self._nothing
        return np.asarray(place)

    def take(self, places: Array, out: Array) -> None:
        """Copy frames at some places (...) into `out` (..., frame_bytes), which must be contiguous."""
        # With another mode numpy would copy by way of an array of its own.
        np.take(self._frames, places.ravel(), axis=0, out=out.reshape(-1, self.frame_bytes), mode="clip")

    def is_step(self, reference: Array, after: Array) -> bool:
        """Return whether all stacks `after` (n,) are those of `reference` (n,) with one frame more."""
        different = np.minimum(self.depth, (reference >> 1) % MOST + 2)
        return bool((after == _reference((reference >> _BITS) + 1, different, reference & 1)).all())


def oldest_frame(reference: Array | int) -> Array | int:
    """Number of the oldest frame of a stack."""
    return (reference >> _BITS) - ((reference >> 1) % MOST)


def _reference(newest: Array | int, different: Array | int, zeros: Array | int) -> Array:
    return np.asarray(newest << _BITS | (different - 1) << 1 | zeros)


def _alike(left: Array, right: Array) -> Array:
    """Which rows (n, ...) are the same, entry by entry; `right` may be one row (1, ...)."""
    same: Array = (left == right).all(axis=tuple(range(1, left.ndim)))
    return same
