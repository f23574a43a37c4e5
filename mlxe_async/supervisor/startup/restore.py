"""Filling memory, handles and roles from a whole checkpoint; what cannot go on begins afresh, and that is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlxe_async.errors import ProcessDied, RunFailed
from mlxe_async.ipc.messages.remote_error import RemoteError
from mlxe_async.ipc.processes.process import Process
from mlxe_async.ipc.shared.lanes import LaneWriter, format_lane
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.ipc.shared.weights import WeightsWriter
from mlxe_async.memory.bookkeeping import Bookkeeping
from mlxe_async.memory.moments import mean_and_variance, pooled
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.rollouts import RolloutMemory, RolloutShape
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.rows import Array
from mlxe_async.storage.array_files import read_arrays, read_into
from mlxe_async.supervisor.checkpointing.resume_point import ResumePoint
from mlxe_async.supervisor.checkpointing.saved_state import SUFFIX
from mlxe_async.supervisor.handles.evaluator import EvaluatorHandle
from mlxe_async.supervisor.handles.executor import ExecutorHandle
from mlxe_async.supervisor.handles.memorizer import MemorizerHandle
from mlxe_async.supervisor.learning.learner import LearnerHandle
from mlxe_async.supervisor.plan.blueprint import Blueprint
from mlxe_async.supervisor.plan.event_log import EventLog

_NOT_EXACT = {
    "begun_anew": "environment {} did not come to the same observation by the same seed and actions; its episode is "
    "begun anew, and the run does not go on exactly",
    "unlike": "the last episode of environment {}, lived again by its seed and actions, did not end at the same "
    "observation: it keeps something from one episode to the next, or draws from what no seed governs, so the run does "
    "not go on exactly",
}
"What an executor may tell of environments it could not bring back, and the sentence about them."


def fill_memory(point: ResumePoint, segments: Mapping[str, Segment], blueprint: Blueprint) -> None:
    """Put memory, lanes and weights in their places, before any process is started.

    Raises:
        RunFailed: a file is not what its manifest says.
    """
    whole, state = point.whole, point.state
    assert whole is not None  # noqa: S101 - see ResumePoint.state
    saved = state["memory_shape"]
    keeps_memory = saved == blueprint.memory_to_keep
    learner = read_arrays(whole.path / f"learner{SUFFIX}", lambda name: name.startswith("algorithm."))
    same = not (point.told or point.other_versions or point.went_otherwise) and keeps_memory
    point.exact = blueprint.traits.deterministic and same and bool(learner)
    _fill_rows(point, segments, blueprint, keeps=keeps_memory)
    writer = WeightsWriter(segments["weights"])
    flat = np.concatenate([whole.tensors[name].ravel() for name, _ in whole.facts["parameters"]])
    writer.begin_after(point.first_version - 1)
    writer.publish(flat.astype(np.float32))


def _fill_rows(point: ResumePoint, segments: Mapping[str, Segment], blueprint: Blueprint, *, keeps: bool) -> None:
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
    payload = blueprint.layout.nbytes(blueprint.block_rows)
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
    known = {field.name for field in dataclasses.fields(ReplayShape)}
    saved = {name: value for name, value in point.state["memory_shape"].items() if name in known}
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


def restore_handles(
    point: ResumePoint,
    executors: Sequence[ExecutorHandle],
    memorizer: MemorizerHandle,
    learner: LearnerHandle,
    evaluator: EvaluatorHandle,
    ingested: int,
) -> int:
    """Let the handles go on. Returns the episodes begun by executors that are no more."""
    state = point.state
    arrays = point.own_arrays()
    for executor, facts in zip(executors, state["executors"], strict=False):
        prefix = f"executor-{executor.index}."
        own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        executor.restore(facts, own)
    gone = range(len(executors), len(state["executors"]))
    if not point.former_rows:
        memorizer.restore(state["memorizer"], ingested)
    passed = {n.removeprefix("passed."): array for n, array in arrays.items() if n.startswith("passed.")}
    evaluator.restore(state["evaluator"], passed)
    learner.is_published = point.first_version == point.version
    return sum(int(arrays[f"executor-{index}.begun"].sum()) for index in gone)


async def restore_roles(
    point: ResumePoint, by_role: Mapping[str, Process], log: EventLog, *, free_running: bool
) -> None:
    """Have learner, memorizer and executors go on; what cannot, begins afresh, and that is told.

    Raises:
        RunFailed: a role cannot take up what is in its file.
    """
    assert point.whole is not None  # noqa: S101 - see ResumePoint.state
    names = ["learner", *([] if point.former_rows else ["memorizer"])]
    if not free_running:
        names += [name for name in by_role if name.startswith("executor-")]
    for name in names:
        file = f"{name}{SUFFIX}"
        if file not in point.whole.files:
            _note_missing(point, name, log)
            continue
        said = await _restored(point, by_role[name], name, point.whole.path / file, log.warn)
        if said.get("exact") is False:
            point.exact = False
            if name == "learner":
                log.warn(
                    f"the learner goes on from the saved weights {point.version}; this algorithm has no state() and "
                    "restore(), so its optimiser starts fresh",
                    "learner",
                )
        for fault, sentence in _NOT_EXACT.items():
            if said.get(fault):
                point.exact = False
                index = int(name.removeprefix("executor-"))
                envs = ", ".join(map(str, said[fault]))
                log.warn(f"executor {index}: {sentence.format(envs)}", "executor", index)
    for index, facts in enumerate(point.state["executors"]):
        if facts.get("lost"):
            point.exact = False
            log.warn(f"executor {index} had been given up ({facts['lost']}): it takes part again", "executor", index)
    if point.former_rows:
        log.warn("the memory has another shape than the saved one: it begins empty")


def _note_missing(point: ResumePoint, name: str, log: EventLog) -> None:
    """An executor that was in the middle of a rollout plays it again; an episode from before that is over."""
    role, _, index = name.rpartition("-")
    if role == "executor" and (running := point.own_arrays().get(f"{name}.running")) is not None and running.any():
        point.exact = False
        log.warn(f"executor {index}: its episodes under way were not saved: others begin", "executor", int(index))


async def _restored(
    point: ResumePoint, process: Process, name: str, path: Path, warn: Callable[[str], None]
) -> dict[str, Any]:
    while True:
        try:
            said: dict[str, Any] = await process.call("restore", role="keeper", name=name, path=str(path))
        except ProcessDied as error:
            if name.startswith("executor-"):
                point.exact = False
                warn(f"{name} died taking up its state, and begins its episodes anew: {error}")
                return {}
        except RemoteError as error:
            place = f"checkpoint {path.parent.name} ({path.name})"
            raise RunFailed(f"{name} cannot go on from {place}: {error}") from error
        else:
            return said
