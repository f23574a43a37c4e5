"""Workers of one process: each in a thread, of which one runs at a time, in their order."""

from __future__ import annotations

import functools
import random
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxe_async.errors import AttemptBroken, StepsDiffer

_NUMPYS: Any = np.random  # whose types lack what exchanges its generator


class Turns:
    """Exchanges numbers among the workers of one process, and says whose turn it is.

    A worker goes on to its next exchange, then it is the next one's turn. When it is a worker's turn again, all others
    have given what is to be exchanged. What the process has one of, such as torch's generator, is put back then.

    Args:
        workers: how many there are.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._changed = threading.Condition()
        self._turn = 0
        self._steps: list[int] = []
        self._is_over: list[bool] = []
        self._given: tuple[list[tuple[str, NDArray[Any]]], ...] = ()
        self._error: BaseException | None = None

    def run(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        """Have each worker do its work, the first one in this thread, and return what each comes to.

        Raises:
            BaseException: what the first of them raised that was not told of another's end.
        """
        self._turn, self._error = 0, None
        self._given = tuple([("nothing", np.zeros(0))] * self.workers for _ in range(2))
        self._steps, self._is_over, before = [0] * self.workers, [False] * self.workers, _generators()
        results: list[Any] = [None] * self.workers
        errors: list[BaseException | None] = [None] * self.workers

        def run(index: int) -> None:
            try:
                if index:
                    self._await_turn(index)
                    _one_thread()
                results[index] = work[index]()
            except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that called
                errors[index] = self._error = error
            finally:
                self._is_over[index] = True
                self._pass_on(index)

        threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(1, self.workers)]
        for thread in threads:
            thread.start()
        run(0)
        for thread in threads:
            thread.join()
        _put(before)
        told = [error for error in errors if error is not None]
        for error in sorted(told, key=lambda one: isinstance(one, AttemptBroken)):
            raise error
        return results

    def gathered(self, index: int, kind: str, numbers: NDArray[Any]) -> list[NDArray[Any]]:
        """Give a worker's numbers, and have the others go on to theirs; see `maths.together.Group.give`."""
        given = self._given[self._steps[index] % 2]
        self._steps[index] += 1
        given[index] = (kind, numbers.copy())
        generators = _generators()
        self._pass_on(index)
        self._await_turn(index)
        _put(generators)
        for other, (its, array) in enumerate(given):
            if self._steps[other] < self._steps[index]:
                its, array = "nothing more", array[:0]
            if (its, array.nbytes) != (kind, numbers.nbytes):
                raise StepsDiffer(
                    f"worker {index} gave {kind} of {numbers.nbytes:,} bytes, worker {other} {its} of {array.nbytes:,} "
                    "bytes; expected the same steps of each: their number must not depend on a worker's own rows"
                )
        return [array for _, array in given]

    def _pass_on(self, index: int) -> None:
        with self._changed:
            further = ((index + k) % self.workers for k in range(1, self.workers + 1))
            self._turn = next((one for one in further if not self._is_over[one]), index)
            self._changed.notify_all()

    def _await_turn(self, index: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turn == index or self._error is not None)
        if self._error is not None:
            raise AttemptBroken(f"worker {index}: another one has failed: {self._error}")


class Turn:
    """One worker's end of `Turns`."""

    def __init__(self, turns: Turns, index: int) -> None:
        self.turns, self.index, self.workers = turns, index, turns.workers

    def begin(self, attempt: int) -> None:
        """All begin together whenever they run."""

    def give(self, kind: str, numbers: NDArray[Any]) -> Callable[[], list[NDArray[Any]]]:
        """See `maths.together.Group.give`: it is given when it is gathered, for no other runs in between."""
        return functools.partial(self.turns.gathered, self.index, kind, numbers)


class InTurn:
    """A learner and the workers beside it, as one role that has the learner's verbs.

    Args:
        turns: what they exchange.
        learner: publishes what all come to.
        workers: the others.
    """

    def __init__(self, turns: Turns, learner: Any, workers: Sequence[Any]) -> None:
        self._turns, self._learner, self._workers = turns, learner, workers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def learn(self, plan: Any, **how: Any) -> dict[str, Any]:
        """See `roles.learner.Learner.learn`; an answer that is known already is given by the learner alone."""
        if self._learner.has_answered(how.get("call")):
            return dict(self._learner.learn(plan, **how))
        everyone = [self._learner, *self._workers]
        done = self._turns.run([functools.partial(one.learn, plan, **how) for one in everyone])
        return dict(done[0])


def _generators() -> tuple[Any, ...]:
    """The state of all generators that a process has one of."""
    torch = sys.modules.get("torch")
    return _NUMPYS.get_bit_generator(), random.getstate(), None if torch is None else torch.get_rng_state()


def _put(generators: tuple[Any, ...]) -> None:
    numpys, pythons, torchs = generators
    _NUMPYS.set_bit_generator(numpys)
    random.setstate(pythons)
    if torchs is not None:
        sys.modules["torch"].set_rng_state(torchs)


def _one_thread() -> None:
    """Have torch compute by one thread: their number is a matter of each thread."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
