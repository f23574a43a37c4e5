"""The rate that each schedule would have, by the measured costs of a step, of the policy and of an update.

The model is small: it knows no messages, no copies and no tests. In rounds, playing and learning come one after the
other; where no process waits, the slower of the two sets the pace, as far as there are cores for both.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mlxe_async.analysis.verdict import Setup, Spent, Verdict, verdict

ROUNDS = 100
"""Rounds of the imagined run that a verdict is made of."""


@dataclass(frozen=True)
class Costs:
    """Seconds of what a run is made of.

    Args:
        step_s: of one environment's step, resets shared out among them.
        act_s: of the policy's answer for all environments of an executor.
        update_s: of one update.
        updates_per_row: for each new row.
    """

    step_s: float
    act_s: float
    update_s: float
    updates_per_row: float


@dataclass(frozen=True)
class Shape:
    """The layout of a run.

    Args:
        kind: of the schedule.
        executors: how many there are.
        envs: environments of each.
        cores: that the run may use.
        rows: that an executor delivers at once.
        rollout_steps: of each environment; None: rollouts are episodes.
        own_memorizer: the memory has a process of its own.
    """

    kind: str
    executors: int
    envs: int
    cores: int
    rows: int
    rollout_steps: int | None = None
    own_memorizer: bool = False


def rates(costs: Costs, shape: Shape, kinds: Collection[str]) -> dict[str, float]:
    """Rows per second under each kind of schedule."""
    play, learn = _play(costs, shape), costs.update_s * costs.updates_per_row
    side_by_side = min(shape.executors, shape.cores)
    in_rounds, in_turn = play / side_by_side + learn, play + learn
    # A core is shared by all that would work at the same time.
    crowd = (play + learn) / shape.cores
    known = {
        "serial": in_turn,
        "istb": in_turn,  # threads of one process take turns
        "is": in_rounds,
        "ia": in_rounds,
        "oa": max(play / shape.executors, learn, crowd),
    }
    return {kind: 1 / known[kind] for kind in kinds if known[kind] > 0}


def _play(costs: Costs, shape: Shape) -> float:
    """Seconds of one executor for a row."""
    return costs.step_s + costs.act_s / shape.envs


def outlook(costs: Costs, shape: Shape) -> Verdict:
    """Judge a run that was never made, as if it had spent its time by these costs."""
    rounds, rows = ROUNDS, shape.rows * shape.executors
    acting = costs.act_s / shape.envs * shape.rows * rounds
    stepping = costs.step_s * shape.rows * rounds
    updating = costs.update_s * costs.updates_per_row * rows * rounds
    spread = min(shape.executors, shape.cores)
    if shape.kind == "oa":
        wall = max(acting + stepping, updating, ((acting + stepping) * shape.executors + updating) / shape.cores)
    elif shape.kind in ("serial", "istb"):
        wall = (acting + stepping) * shape.executors + updating
    else:
        wall = (acting + stepping) * shape.executors / spread + updating
    # Executors that share a core each take longer by the clock.
    slower = shape.executors / spread if shape.kind in ("is", "ia") else 1.0
    takes_turns = shape.kind in ("serial", "istb")  # so that together they are as one
    lanes = 1 if takes_turns else shape.executors
    slower = shape.executors if takes_turns else slower
    spent = [
        _spent("executor", number, wall, {"acting": acting * slower, "stepping": stepping * slower})
        for number in range(lanes)
    ]
    setup = Setup(
        "serial" if takes_turns else shape.kind,
        lanes,
        shape.envs,
        shape.cores,
        own_memorizer=shape.own_memorizer,
        rollout_steps=shape.rollout_steps,
    )
    return verdict([*spent, _spent("learner", None, wall, {"updating": updating})], setup)


def _spent(role: str, idx: int | None, wall: float, seconds: dict[str, float]) -> Spent:
    return Spent(role, idx, {**seconds, "waiting": max(0.0, wall - sum(seconds.values()))})
