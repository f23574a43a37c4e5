"""What rows/s by number of cores follow from measured costs; `python tests/benchmarks/cores.py` measures them.

A round of `is` is the time of its parts, one after the other. Under `oa` the slowest of three decides: executors,
learner, cores. All costs are microseconds of one core; a step that sleeps takes time and no core. Caches, memory
bandwidth and the system's scheduler are not in it, so what it says is an upper estimate, and a prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

KINDS, GRADIENTS = ("is", "oa"), ("learner", "executors")


@dataclass(frozen=True)
class Costs:
    """What was measured, in microseconds.

    Args:
        act: of choosing an action and stepping, a row.
        sleep: in which a step waits for something that is no core of this machine, a row.
        row: of learning from a row once.
        step: of a step of the optimiser, however many rows it is of.
        publish: of a publication.
        exchange: of an exchange of gradients, for each worker that takes part.
        exchange_byte: the same for each worker and byte.
        apply: that the learner takes for a push, all steps that came with it counted.
    """

    act: float
    sleep: float
    row: float
    step: float
    publish: float
    exchange: float
    exchange_byte: float
    apply: float


@dataclass(frozen=True)
class Work:
    """What a run does.

    Args:
        rows: of one rollout of one executor.
        replays: rows learned from for each that is played.
        batch: rows of a step of the optimiser, of one executor's rollout; or of all together, where they are replayed.
        replayed: whether they are.
        nbytes: of all gradients together, for one step.
    """

    rows: int
    replays: float
    batch: int
    replayed: bool
    nbytes: int


def executors_of(cores: int) -> int:
    """Executors on a number of cores: one each for two; of more, two cores are left to learner and memorizer."""
    return max(min(cores, 2), cores - 2)


def exchange_us(costs: Costs, nbytes: int, workers: int) -> float:
    """Microseconds of one exchange: each worker reads what all gave; 0 of one that is alone."""
    return 0.0 if workers < 2 else workers * (costs.exchange + costs.exchange_byte * nbytes)


def fitted(measured: Sequence[tuple[int, int, float]]) -> tuple[float, float]:
    """`exchange` and `exchange_byte` of `Costs`, by least squares from (workers, bytes, microseconds); none below 0.

    Raises:
        ValueError: fewer than two measurements.
    """
    if len(measured) < 2:
        raise ValueError(f"expected two exchanges at least, got {len(measured)}")
    workers, nbytes, spent = (np.array(column, float) for column in zip(*measured, strict=True))
    (alone, byte), *_ = np.linalg.lstsq(np.stack([workers, workers * nbytes], 1), spent, rcond=None)
    return max(0.0, float(alone)), max(0.0, float(byte))


def of_two_batches(small: tuple[int, float], large: tuple[int, float]) -> tuple[float, float]:
    """`row` and `step` of `Costs` from two pairs: rows of a step of the optimiser, microseconds of learning a row.

    Raises:
        ValueError: both have the same number of rows.
    """
    if small[0] == large[0]:
        raise ValueError(f"expected two sizes of a step, got {small[0]} twice")
    step = max(0.0, (small[1] - large[1]) / (1 / small[0] - 1 / large[0]))
    return max(0.0, large[1] - step / large[0]), step


def predicted(costs: Costs, work: Work, *, cores: int, executors: int, kind: str, gradients: str) -> float:
    """Rows/s that are played and learned from.

    Args:
        costs: microseconds of one core.
        work: what the run does.
        cores: that it may use.
        executors: that play.
        kind: `"is"` or `"oa"`.
        gradients: `"learner"` or `"executors"`.
    """
    act, sleep = work.rows * costs.act, work.rows * costs.sleep
    learned = work.rows * work.replays  # rows of one rollout, each as often as it is learned from
    if kind == "is":
        batch = work.batch if work.replayed else work.batch * executors
        steps = executors * learned / batch
        play = max(act + sleep, executors * act / cores)
        if gradients == "learner":
            learn = executors * learned * costs.row + steps * costs.step
        else:
            own = learned * costs.row + steps * costs.step
            learn = own * max(1.0, executors / cores) + steps * exchange_us(costs, work.nbytes, executors)
        return 1e6 * executors * work.rows / (play + learn + costs.publish)
    own = learned * costs.row + learned / work.batch * costs.step
    if gradients == "learner":
        one, central = act + sleep, own + costs.publish
        busy = act + own + costs.publish
    else:
        pushes = learned / work.batch if work.replayed else 1.0
        central = pushes * costs.apply
        one, busy = act + sleep + own + central, act + own + central
    return 1e6 * work.rows / max(one / executors, central, busy / cores)


def limit(costs: Costs, work: Work, *, cores: int, executors: int) -> float:
    """Rows/s if all cores did nothing but step, choose and learn, and executors that sleep could not be hurried."""
    learn = work.replays * (costs.row + costs.step / work.batch)
    asleep = 1e6 * executors / (costs.act + costs.sleep) if costs.sleep else float("inf")
    return min(1e6 * cores / (costs.act + learn), asleep)
