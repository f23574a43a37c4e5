"""An onlooker's view on the rows that a run keeps."""

from __future__ import annotations

from collections.abc import Mapping

from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.rollouts import RolloutMemory
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.supervisor.plan.blueprint import Blueprint


def memory_of(blueprint: Blueprint, segments: Mapping[str, Segment]) -> ReplayMemory | RolloutMemory:
    """An onlooker's view on the memory."""
    shape, buffer = blueprint.memory_shape, segments["memory"].buffer
    if isinstance(shape, ReplayShape):
        return ReplayMemory(shape, buffer, formatted=True)
    return RolloutMemory(shape, buffer, formatted=True)
