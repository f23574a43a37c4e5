"""Letting handles and roles go on from a whole checkpoint; what cannot begins afresh, and that is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxe_async.errors import ProcessDied, RunFailed
from mlxe_async.ipc.process import Process
from mlxe_async.ipc.remote_error import RemoteError
from mlxe_async.supervisor.checkpointing.resume_point import ResumePoint
from mlxe_async.supervisor.checkpointing.whole import SUFFIX
from mlxe_async.supervisor.event_log import Story
from mlxe_async.supervisor.handles.evaluator import EvaluatorHandle
from mlxe_async.supervisor.handles.executor import ExecutorHandle
from mlxe_async.supervisor.handles.learner import LearnerHandle
from mlxe_async.supervisor.handles.memorizer import MemorizerHandle

_NOT_EXACT = {
    "begun_anew": "environment {} did not come to the same observation by the same seed and actions; its episode is "
    "begun anew, and the run does not go on exactly",
    "unlike": "the last episode of environment {}, lived again by its seed and actions, did not end at the same "
    "observation: it keeps something from one episode to the next, or draws from what no seed governs, so the run does "
    "not go on exactly",
}
"What an executor may tell of environments it could not bring back, and the sentence about them."


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


async def restore_roles(point: ResumePoint, homes: Mapping[str, Process], story: Story, *, free_running: bool) -> None:
    """Have learner, memorizer and executors go on; what cannot, begins afresh, and that is told.

    Raises:
        RunFailed: a role cannot take up what is in its file.
    """
    assert point.whole is not None  # noqa: S101 - see ResumePoint.state
    names = ["learner", *([] if point.former_rows else ["memorizer"])]
    if not free_running:
        names += [name for name in homes if name.startswith("executor-")]
    for name in names:
        file = f"{name}{SUFFIX}"
        if file not in point.whole.files:
            continue
        said = await _restored(point, homes[name], name, point.whole.path / file, story.warn)
        if said.get("exact") is False:
            point.exact = False
            if name == "learner":
                story.warn(
                    f"the learner goes on from the saved weights {point.version}; this algorithm has no state() and "
                    "restore(), so its optimiser starts fresh",
                    "learner",
                )
        for fault, sentence in _NOT_EXACT.items():
            if said.get(fault):
                point.exact = False
                index = int(name.removeprefix("executor-"))
                envs = ", ".join(map(str, said[fault]))
                story.warn(f"executor {index}: {sentence.format(envs)}", "executor", index)
    if point.former_rows:
        story.warn("the memory has another shape than the saved one: it begins empty")


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
