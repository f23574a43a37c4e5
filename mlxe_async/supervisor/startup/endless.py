"""Episodes that nothing but the environment ends: where a rollout of one is cut, so that it is ever delivered."""

from __future__ import annotations

from mlxe_async.memory.rollouts import RolloutShape
from mlxe_async.supervisor.plan.blueprint import Blueprint
from mlxe_async.supervisor.plan.budget import Budget


def most_rows(blueprint: Blueprint, budget: Budget) -> int | None:
    """Rows at which an episode is cut: an executor's share of the steps that are left, and what the memory can hold.

    None: rollouts end by themselves, or the algorithm does not value what follows a cut.
    """
    facts, shape = blueprint.facts, blueprint.memory_shape
    is_whole = blueprint.settings.schedule.sync == "episode" and not facts["task"]["max_episode_steps"]
    if not is_whole or not facts.get("bootstraps", True):
        return None
    bounds = [budget.share(blueprint.executors), shape.slot_rows if isinstance(shape, RolloutShape) else None]
    return min((bound for bound in bounds if bound is not None), default=None)
