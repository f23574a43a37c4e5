"""A place in shared memory where the workers of an update exchange numbers: each gives some, and gets those of all.

Each worker has two slots with a tag each, used in turn, and a word: how many exchanges of which attempt it has given
to. It writes its slot, then the word, and waits until the words of all others say as much. Nothing is overwritten that
another may still read: who gives for the second time from now has seen that all have given for the next one, so all
have read this one. There is one wait for an exchange.

A worker that dies leaves its word behind. The supervisor then declares the attempt broken, which ends the waiting of
the others; the whole attempt is made again under the next number, by a successor and by the others, from the state that
was published last. Nothing of a broken attempt is published.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxe_async.errors import AttemptBroken, StepsDiffer
from mlxe_async.fences import fence
from mlxe_async.ipc.shared.futex import Futex
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.ipc.shared.words import WORD_STRIDE, Words

SPIN_S = 50e-6
"""A worker looks for this long before it sleeps: no core is burnt longer by waiting."""
_LOOK_S = 0.005  # between two looks for whether the attempt is broken
_STEP_BITS = 32
_LENGTH_BITS = 40
_BROKEN = "broken"
_ALIGNED = 64


def meeting_bytes(workers: int, slot_bytes: int) -> int:
    """Bytes of the memory in which `workers` exchange at most `slot_bytes` each."""
    return WORD_STRIDE * (1 + 3 * workers) + 2 * workers * _aligned(slot_bytes)


def declare_broken(segment: Segment, attempt: int) -> None:
    """End the waiting in this attempt and in those before it: the supervisor's alone."""
    words = Words(segment.buffer, 0, (_BROKEN,))
    words.set(_BROKEN, attempt)
    words.release()


class Meeting:
    """One worker's end of it.

    Args:
        segment: of `meeting_bytes`, zero when new.
        index: which of the workers this is, from 0.
        workers: how many there are.
        kinds: what may be exchanged; a worker that gives another kind than the others is told so.
        slot_bytes: most bytes of one exchange.
        waiting: entered around each wait that is longer than `SPIN_S`.
    """

    def __init__(
        self,
        segment: Segment,
        index: int,
        workers: int,
        *,
        kinds: Sequence[str],
        slot_bytes: int,
        waiting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.index, self.workers = index, workers
        self._kinds, self._slot_bytes, self._waiting = tuple(kinds), slot_bytes, waiting
        self._given = [f"given-{k}" for k in range(workers)]
        self._tags = [[f"tag-{turn}-{k}" for k in range(workers)] for turn in (0, 1)]
        self._words = Words(segment.buffer, 0, (_BROKEN, *self._given, *self._tags[0], *self._tags[1]))
        view = memoryview(segment.buffer).cast("B")[: self._words.nbytes].cast("Q")
        self._futexes = [Futex(view, (1 + k) * (WORD_STRIDE // 8)) for k in range(workers)]
        start, stride = self._words.nbytes, _aligned(slot_bytes)
        self._slots = [
            [segment.array(start + (2 * k + turn) * stride, slot_bytes, np.uint8) for k in range(workers)]
            for turn in (0, 1)
        ]
        self._attempt = self._step = 0

    def begin(self, attempt: int) -> None:
        """Begin an attempt, numbered from 1 and higher than all before: no exchange of it was made yet."""
        self._attempt, self._step = attempt, 0

    def give(self, kind: str, numbers: NDArray[Any]) -> Callable[[], list[NDArray[Any]]]:
        """Give numbers (N,); what is returned waits for those of all, and is called before more is given.

        It returns what each worker gave, in their order, as views that are valid until more is given. It raises
        `StepsDiffer` if another worker gave something else, and `AttemptBroken` if another worker is no more.
        """
        if numbers.nbytes > self._slot_bytes:
            raise ValueError(f"meeting: expected at most {self._slot_bytes} bytes, got {numbers.nbytes}")
        slots, tags, me = self._slots[self._step % 2], self._tags[self._step % 2], self.index
        slots[me][: numbers.nbytes].view(numbers.dtype)[...] = numbers
        tag = self._kinds.index(kind) << _LENGTH_BITS | numbers.nbytes
        self._words.set(tags[me], tag)
        fence()
        self._step += 1
        due = self._attempt << _STEP_BITS | self._step
        self._words.set(self._given[me], due)
        self._futexes[me].wake()

        def gather() -> list[NDArray[Any]]:
            self._await(due)
            fence()
            told = [self._words.get(name) for name in tags]
            if odd := [k for k in range(self.workers) if told[k] != tag]:
                raise StepsDiffer(self._differences(tag, odd[0], told[odd[0]]))
            return [slot[: numbers.nbytes].view(numbers.dtype) for slot in slots]

        return gather

    def release(self) -> None:
        """Let go of the shared memory."""
        self._words.release()
        for futex in self._futexes:
            futex.release()
        self._slots.clear()

    def _await(self, due: int) -> None:
        missing = [k for k in range(self.workers) if not self._has_given(k, due)]
        until = time.perf_counter() + SPIN_S
        while missing and time.perf_counter() < until:
            missing = [k for k in missing if not self._has_given(k, due)]
        if not missing:
            return
        with self._waiting():
            for k in missing:
                while not self._has_given(k, due):
                    if self._words.get(_BROKEN) >= self._attempt:
                        raise AttemptBroken(f"worker {self.index}: worker {k} is no more, or has given up")
                    known = self._words.get(self._given[k])
                    if known < due:
                        self._futexes[k].wait(known, _LOOK_S)

    def _has_given(self, worker: int, due: int) -> bool:
        return self._words.get(self._given[worker]) >= due

    def _differences(self, mine: int, worker: int, theirs: int) -> str:
        def told(tag: int) -> str:
            kind = self._kinds[tag >> _LENGTH_BITS]
            length = tag & ((1 << _LENGTH_BITS) - 1)
            return f"{kind} of {length:,} bytes"

        return (
            f"exchange {self._step} of an update: worker {self.index} gave {told(mine)}, worker {worker} "
            f"{told(theirs)}; expected the same steps of each: their number must not depend on a worker's own rows"
        )


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED
