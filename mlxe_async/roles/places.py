"""Where each environment of an executor stands, in memory that outlives the executor.

An executor that is killed cannot say any more what it was doing. So what it counts anyway (episode, seed, step of each
environment) it counts in shared memory; that costs a step nothing. The supervisor reads it when the executor is dead.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mlxe_async.rows import Array

UNKNOWN = -1
_WORD = 8
_LINE = 128
_NUMBERS = ("episode", "seed", "step", "finished")


class Place(NamedTuple):
    """Where one environment stood.

    Args:
        env: which of the executor's environments, from 0.
        phase: `"step"`, or `"reset"` before its first observation.
        episode: number of its episode.
        seed: of that episode.
        step: the step that was under way, counted from 1; 0 in a reset.
        finished: finished episodes of the run, as the environment was told at its reset.
        action: of that step (*A), as the policy chose it.
    """

    env: int
    phase: str
    episode: int
    seed: int
    step: int
    finished: int
    action: Array


class Places:
    """The places of B environments; written by their executor alone.

    Args:
        envs: B.
        dtype: numpy dtype string of an action.
        shape: shape A of one action.
        buffer: shared memory; None for memory of its own.
        offset: where in it; a multiple of 8.

    Attributes:
        cursor: one number, the environment that is being called.
        taken: one number, the rows made so far, in all lives.
        episode: number of the present or next episode (B,).
        seed: its seed (B,), -1 before the first.
        step: steps taken in it (B,).
        finished: finished episodes of the run, as told at the reset (B,).
        running: whether it is under way (B,).
        action: actions of the step that is under way (B, *A).
    """

    def __init__(self, envs: int, dtype: str, shape: tuple[int, ...], buffer: Any = None, offset: int = 0) -> None:
        whole = bytearray(self.nbytes(envs, dtype, shape)) if buffer is None else buffer
        self.cursor: memoryview[int] = memoryview(whole).cast("B")[offset : offset + _WORD].cast("q")
        self.taken: memoryview[int] = memoryview(whole).cast("B")[offset + _WORD : offset + 2 * _WORD].cast("q")
        numbers = np.frombuffer(whole, np.int64, len(_NUMBERS) * envs, offset + 2 * _WORD).reshape(-1, envs)
        self.episode, self.seed, self.step, self.finished = numbers
        place = offset + 2 * _WORD + numbers.nbytes
        self.running = np.frombuffer(whole, np.bool_, envs, place)
        place += -(-envs // _WORD) * _WORD
        count = envs * int(np.prod(shape, dtype=np.int64))
        self.action = np.frombuffer(whole, dtype, count, place).reshape((envs, *shape))

    @staticmethod
    def nbytes(envs: int, dtype: str, shape: tuple[int, ...]) -> int:
        """Bytes they take, a multiple of 128."""
        action = envs * int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        whole = _WORD * (2 + len(_NUMBERS) * envs) + -(-envs // _WORD) * _WORD + action
        return -(-whole // _LINE) * _LINE

    def clear(self) -> None:
        """Forget the former life: no environment has an episode."""
        self.cursor[0] = UNKNOWN
        self.seed[:] = UNKNOWN
        for numbers in (self.episode, self.step, self.finished):
            numbers[:] = 0
        self.running[:] = False

    def present(self) -> Place | None:
        """Where the environment stands that is being called; None when none has been, or the words are damaged."""
        env = int(self.cursor[0])
        if not 0 <= env < len(self.seed) or self.seed[env] == UNKNOWN:
            return None
        running = bool(self.running[env])
        return Place(
            env=env,
            phase="step" if running else "reset",
            episode=int(self.episode[env]),
            seed=int(self.seed[env]),
            step=int(self.step[env]) + 1 if running else 0,
            finished=int(self.finished[env]),
            action=self.action[env].copy(),
        )
