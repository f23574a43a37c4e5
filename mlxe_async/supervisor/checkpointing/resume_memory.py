"""Filling shared memory from a whole checkpoint: replay memory, lanes and weights, before any process is started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mlxe_async.errors import RunFailed
from mlxe_async.ipc.lanes import LaneWriter, format_lane
from mlxe_async.ipc.segments import Segment
from mlxe_async.ipc.weights import WeightsWriter
from mlxe_async.memory.bookkeeping import Bookkeeping
from mlxe_async.memory.moments import mean_and_variance, pooled
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.rollouts import RolloutMemory, RolloutShape
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.rows import Array
from mlxe_async.storage.array_files import read_arrays, read_into
from mlxe_async.supervisor.checkpointing.resume_point import ResumePoint
from mlxe_async.supervisor.checkpointing.whole import SUFFIX
from mlxe_async.supervisor.startup.blueprint import Blueprint


def fill(point: ResumePoint, segments: Mapping[str, Segment], blueprint: Blueprint) -> None:
    """Put memory, lanes and weights in their places, before any process is started.

    Raises:
        RunFailed: a file is not what its manifest says.
    """
    whole, state = point.whole, point.state
    assert whole is not None  # noqa: S101 - see ResumePoint.state
    saved = state["memory_shape"]
    keeps_memory = saved == blueprint.memory_to_keep
    learner = read_arrays(whole.path / f"learner{SUFFIX}", lambda name: name.startswith("algorithm."))
    same = not point.told and not point.other_versions and keeps_memory
    point.exact = blueprint.traits.deterministic and same and bool(learner)
    _fill_memory(point, segments, blueprint, keeps=keeps_memory)
    writer = WeightsWriter(segments["weights"])
    flat = np.concatenate([whole.tensors[name].ravel() for name, _ in whole.facts["parameters"]])
    writer.begin_after(point.first_version - 1)
    writer.publish(flat.astype(np.float32))


def _fill_memory(point: ResumePoint, segments: Mapping[str, Segment], blueprint: Blueprint, *, keeps: bool) -> None:
    whole, state = point.whole, point.state
    assert whole is not None  # noqa: S101 - see ResumePoint.state
    path, shape = whole.path / f"memorizer{SUFFIX}", blueprint.memory_shape
    kind = ReplayMemory if isinstance(shape, ReplayShape) else RolloutMemory
    if not keeps:
        point.former_rows = state["counters"]["env_steps"]
        _keep_moments(point, segments, shape)
        return
    memory: Any = kind(shape, segments["memory"].buffer)  # type: ignore[arg-type]  # they go together
    for name, target in memory.raw().items():
        read_into(path, f"memory.{name}", target)
    memory.reload()
    waiting = read_arrays(path, lambda name: name.startswith("waiting."))
    payload = blueprint.layout.nbytes(blueprint.chunk_rows)
    for lane in range(blueprint.executors):
        segment = segments[f"lane-{lane}"]
        schema = blueprint.layout.schema_hash
        slots = blueprint.settings.memory.lane_slots
        format_lane(segment, slots, payload, schema, memory.position(lane), memory.epoch(lane))
        about = state["waiting"][lane]
        if about:
            refill(LaneWriter(segment, schema), waiting[f"waiting.{lane}"], about)
    del memory


def _keep_moments(point: ResumePoint, segments: Mapping[str, Segment], shape: ReplayShape | RolloutShape) -> None:
    """A memory of another shape counts its observations on from the saved moments."""
    assert point.whole is not None  # noqa: S101 - see ResumePoint.state
    saved = {name: value for name, value in point.state["memory_shape"].items() if name != "block_rows"}
    if not isinstance(shape, ReplayShape) or not shape.moments or saved.get("moments") != shape.moments:
        return
    (books,) = read_arrays(point.whole.path / f"memorizer{SUFFIX}", lambda name: name == "memory.bookkeeping").values()
    mean, variance, count = mean_and_variance(pooled(Bookkeeping(ReplayShape(**saved), books).moments))
    if count:
        ReplayMemory(shape, segments["memory"].buffer).begin_moments(mean, variance, count)


def refill(writer: LaneWriter, blocks: Array, about: Iterable[Mapping[str, int]]) -> None:
    """Commit blocks that waited in a lane, under the epochs they had."""
    for block, facts in zip(blocks, about, strict=True):
        while writer.epoch < facts["epoch"]:
            writer.renew()
        payload = writer.reserve()
        if payload is None:
            raise RunFailed("a lane has room for fewer blocks than waited in it: memory.lane_slots is smaller now")
        payload[: len(block)] = block.data
        writer.commit(facts["count"])
