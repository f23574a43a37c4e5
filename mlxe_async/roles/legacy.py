"""What an executor leaves to its successor, so that episodes under way are lived again and no rollout comes twice.

After each rollout, before its last block is committed, an executor writes down where it stands, and its answer. Both
are kept under the position in the lane where that block ends. So the successor finds them if, and only if, the rollout
was delivered: then it goes on from there, and gives the answer again to a supervisor that did not hear it. If it was
not, it finds what was kept before and generates the rollout again, from the same episodes.

Actions of episodes under way lie in a ring of their own: only those of the last rollout are written each time.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from zlib import crc32

import numpy as np

from mlxe_async.rows import Array

ACTION_BYTES = 2 << 20
"""Most bytes of the actions that are kept of all environments; of longer episodes they are not known."""
MOST_ANSWER_BYTES = 1 << 20
AFTER_RESUMING = -1
"""Stands for the rollout where what is kept is what a run was resumed with."""
_ANSWER_BYTES, _EPISODE_BYTES = 4096, 160
_PAGE = 4096
_FACTS = 5


class Store(Protocol):
    """Where it lies, `ipc.shared.kept.KeptState`."""

    def keep(self, label: int, arrays: Mapping[str, Array], *, spare: int | None = None) -> None:
        """Write arrays under a label; what `find(spare)` finds stays."""

    def find(self, most: int) -> tuple[int, dict[str, Array]] | None:
        """The newest arrays whose label is at most `most`, and their label."""


@dataclass(frozen=True)
class LegacyShape:
    """Sizes, known before a run begins.

    Args:
        envs: environments B.
        dtype: numpy dtype string of an action.
        shape: shape A of one action.
        steps: most steps of an episode; None: any number.
        ended: most episodes that can end in one rollout.
    """

    envs: int
    dtype: str
    shape: tuple[int, ...]
    steps: int | None
    ended: int

    @property
    def step_bytes(self) -> int:
        """Bytes of the actions of one step of all environments."""
        return self.envs * int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @property
    def span(self) -> int:
        """Steps of an episode whose actions are kept: longer ones cannot be lived again."""
        most = max(1, ACTION_BYTES // self.step_bytes)
        return most if self.steps is None else max(1, min(most, self.steps))

    @property
    def answer_bytes(self) -> int:
        """Most bytes of an answer."""
        return min(MOST_ANSWER_BYTES, _ANSWER_BYTES + _EPISODE_BYTES * self.ended)

    @property
    def nbytes(self) -> int:
        """Bytes of actions and answers."""
        return -(-(2 * self.span * self.step_bytes + 2 * self.answer_bytes) // _PAGE) * _PAGE


@dataclass(frozen=True)
class Found:
    """What was left.

    Args:
        rollout: number of the rollout that led there; `AFTER_RESUMING`: none.
        state: as `Executor.restore` takes it.
        answer: what was answered then; None: it was too long to be kept.
    """

    rollout: int
    state: dict[str, Array]
    answer: dict[str, Any] | None


class Legacy:
    """Both ends: the executor's, and after its death its successor's.

    Args:
        shape: the sizes.
        store: for where environments stand.
        buffer: shared bytes, `shape.nbytes` of them from `offset` on, for actions and answers.
        offset: where they begin.
    """

    def __init__(self, shape: LegacyShape, store: Store, buffer: Any, offset: int = 0) -> None:
        self.shape, self._store, self._span = shape, store, shape.span
        size = 2 * shape.span * shape.step_bytes
        ring = np.frombuffer(buffer, np.uint8, size, offset).view(shape.dtype)
        self._ring = ring.reshape((2 * shape.span, shape.envs, *shape.shape))
        answers = memoryview(buffer).cast("B")[offset + size : offset + size + 2 * shape.answer_bytes]
        self._answers = answers[: shape.answer_bytes], answers[shape.answer_bytes :]
        self._total = self._side = 0
        self._packed: _Packed | None = None

    def keep(
        self,
        position: int,
        committed: int,
        heads: Mapping[str, Array],
        *,
        rollout: int,
        answer: Mapping[str, Any],
        actions: Array | None,
        over: Array,
    ) -> None:
        """Write down where all environments stand.

        Args:
            position: where the rollout's last block ends in the lane, and what is kept counts from.
            committed: where the lane stands; what is found there is not overwritten.
            heads: where they stand, of the same names and shapes each time; with `step` and `running`.
            rollout: that led there.
            answer: to the caller, plain JSON.
            actions: of the last steps (t, B, *A); None: they are not known.
            over: environments (B,) whose episode ended with the very last step.
        """
        if actions is not None:
            self._append(actions)
        known = (heads["running"] | over) & (heads["step"] <= (-1 if actions is None else self._span))
        text = marshal.dumps(dict(answer))  # of thousands of episodes a tenth of the time of json
        side, length = 1 - self._side, len(text) if len(text) <= len(self._answers[0]) else 0
        self._answers[side][:length] = text[:length]
        if self._packed is None:
            self._packed = _Packed(heads)
        packed = self._packed.put(heads, known, (rollout, self._total, side, length, crc32(text)))
        self._store.keep(position, {"packed": packed}, spare=committed)
        self._side = side

    def put(self, state: Mapping[str, Array]) -> None:
        """Take actions up that were known before this memory was made: of a state as `Executor.restore` takes it."""
        self._total += self._span
        for env, steps in enumerate(state["step"].tolist()):
            if steps <= self._span and len(actions := state.get(f"actions.{env}", ())) == steps:
                self._ring[self._places(steps), env] = actions

    def find(self, committed: int, heads: Mapping[str, Array]) -> Found | None:
        """What a predecessor left that counts where the lane stands; `heads`: of the names and shapes of its own."""
        found = self._store.find(committed)
        if found is None:
            return None
        state, known, facts = _Packed(heads).get(found[1]["packed"])
        rollout, self._total, self._side, length, crc = facts
        for env in np.flatnonzero(known).tolist():
            state[f"actions.{env}"] = self._ring[self._places(int(state["step"][env])), env].copy()
        text = bytes(self._answers[self._side][:length])
        is_whole = length and crc32(text) == crc
        return Found(rollout, state, marshal.loads(text) if is_whole else None)  # noqa: S302 - of the run's own processes

    def _append(self, actions: Array) -> None:
        """Write the last actions (t, B, *A) behind those that are known."""
        actions = actions[-self._span :]
        self._total += len(actions)
        self._ring[self._places(len(actions))] = actions

    def _places(self, steps: int) -> Any:
        """Return where the last actions lie."""
        end = self._total % len(self._ring)
        return slice(end - steps, end) if end >= steps else np.arange(end - steps, end)


class _Packed:
    """Where environments stand, in one array of bytes: many small ones take longer to keep.

    Args:
        heads: arrays of the names, dtypes and shapes that there are each time.
    """

    def __init__(self, heads: Mapping[str, Array]) -> None:
        sizes = [_FACTS * 8, len(heads["step"]), *(array.nbytes for array in heads.values())]
        ends = np.cumsum([-(-size // 8) * 8 for size in sizes]).tolist()
        self._bytes = np.zeros(ends[-1], np.uint8)
        parts = [self._bytes[begin : begin + size] for begin, size in zip([0, *ends], sizes, strict=False)]
        self._facts, self._known = parts[0].view(np.int64), parts[1].view(np.bool_)
        self._heads = {
            name: part.view(array.dtype).reshape(array.shape)
            for part, (name, array) in zip(parts[2:], heads.items(), strict=True)
        }

    def put(self, heads: Mapping[str, Array], known: Array, facts: tuple[int, ...]) -> Array:
        """All bytes (n,), which the next call overwrites."""
        self._facts[:], self._known[:] = facts, known
        for name, view in self._heads.items():
            view[...] = heads[name]
        return self._bytes

    def get(self, packed: Array) -> tuple[dict[str, Array], Array, list[int]]:
        """Copies of the heads, which actions are known, and the facts."""
        self._bytes[:] = packed
        return {name: view.copy() for name, view in self._heads.items()}, self._known.copy(), self._facts.tolist()
