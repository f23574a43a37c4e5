"""Decides which process holds which roles, and which memory it may map."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from mlxe_async.settings import Settings
from mlxe_async.settings.schedules import Traits


@dataclass(frozen=True)
class PlannedProcess:
    """One process to be.

    Args:
        name: its name.
        roles: what it holds.
        segments: what it may map.
        page: its progress page; those of its threads follow.
        threads: roles that work at the same time as the others, each in a thread of its own.
    """

    name: str
    roles: tuple[str, ...]
    segments: tuple[str, ...]
    page: int
    threads: tuple[str, ...] = ()

    @property
    def pages(self) -> range:
        """Numbers of its progress pages."""
        return range(self.page, self.page + 1 + len(self.threads))

    @property
    def threaded(self) -> dict[str, str]:
        """Role -> the thread that serves it; an executor's worker, which makes its gradients, has the executor's."""
        threads = {role: role.replace("worker-", "executor-") for role in self.roles}
        return {role: thread for role, thread in threads.items() if thread in self.threads}


def planned_processes(
    settings: Settings,
    traits: Traits,
    *,
    joined: bool,
    kept: Collection[str],
    meets: bool = False,
    pushes: bool = False,
) -> list[PlannedProcess]:
    """Return all processes of a run, in the order in which they are started.

    Args:
        settings: the run's settings.
        traits: those of its schedule.
        joined: whether the memorizer lives in the learner's process.
        kept: roles that keep something for their successor, each in a segment of its own by that name.
        meets: whether executors learn together with the learner, each in its own process.
        pushes: whether each of them makes its gradients alone, for the learner to step by.
    """
    found = _by_kind(settings, joined=joined)
    executors = settings.schedule.executors

    def also(segment: str, needing: Callable[[str], bool]) -> None:
        """Map a segment in each process that holds a role which needs it."""
        found[:] = [
            replace(one, segments=(*one.segments, segment)) if any(map(needing, one.roles)) else one for one in found
        ]

    if meets:
        found[:] = [_with_worker(one, first=1) for one in found]
        also("exchange", lambda role: role.startswith(("learner", "worker")))
    if pushes:
        found[:] = [_with_worker(one, first=0) for one in found]
        for index, name in enumerate(pushes_of(executors)):
            also(name, {"learner", f"worker-{index}"}.__contains__)
    if settings.learner.promote_best:
        # Under `oa`, only the executor that played with a version still has it.
        needing = {"learner", *(f"executor-{i}" for i in range(executors if traits.free_running else 0))}
        also("best", needing.__contains__)
    if traits.simulated_lag:
        also("delayed", lambda role: role.startswith("executor"))
    for name in kept:
        also(name, name.__eq__)
    return found


def _by_kind(settings: Settings, *, joined: bool) -> list[PlannedProcess]:
    """Return the processes that a schedule has, with the segments that all of its runs need."""
    executors = [f"executor-{i}" for i in range(settings.schedule.executors)]
    lanes = tuple(f"lane-{i}" for i in range(settings.schedule.executors))
    evaluation = settings.evaluation.enabled
    if settings.schedule.kind == "serial":
        roles = (*executors, "learner", "memorizer", *(["evaluator"] if evaluation else []))
        return [PlannedProcess("mlxe-serial", roles, ("control", "weights", "tested", "memory", *lanes), 0)]
    if settings.schedule.kind == "istb":
        roles = (*executors, "learner", "memorizer")
        planned = PlannedProcess(
            "mlxe-istb", roles, ("control", "weights", "memory", *lanes), 0, threads=tuple(executors)
        )
        return [planned, *([_evaluator_post(len(planned.pages))] if evaluation else [])]
    if settings.schedule.executors_as == "threads":
        shared = ("control", "weights", *lanes)
        processes = [PlannedProcess("mlxe-exe", tuple(executors), shared, 0, threads=tuple(executors))]
    else:
        processes = [
            PlannedProcess(f"mlxe-exe-{i}", (role,), ("control", "weights", f"lane-{i}"), i)
            for i, role in enumerate(executors)
        ]
    if joined:
        processes.append(
            PlannedProcess(
                "mlxe-lrn", ("learner", "memorizer"), ("control", "weights", "memory", *lanes), _next_page(processes)
            )
        )
    else:
        processes.append(
            PlannedProcess("mlxe-mem", ("memorizer",), ("control", "weights", "memory", *lanes), _next_page(processes))
        )
        of_learner = ("control", "weights", "memory")
        processes.append(PlannedProcess("mlxe-lrn", ("learner",), of_learner, _next_page(processes)))
    if evaluation:
        processes.append(_evaluator_post(_next_page(processes)))
    return processes


def _next_page(processes: Sequence[PlannedProcess]) -> int:
    return processes[-1].pages.stop


def _evaluator_post(page: int) -> PlannedProcess:
    return PlannedProcess("mlxe-eval", ("evaluator",), ("control", "tested"), page)


def pushes_of(executors: int) -> list[str]:
    """Segments in which workers put what the learner steps by, in their order."""
    return [f"push-{index}" for index in range(executors)]


def _with_worker(planned: PlannedProcess, *, first: int) -> PlannedProcess:
    """The same with the workers of its executors, of those from `first` on."""
    if not planned.name.startswith("mlxe-exe"):
        return planned
    numbers = [int(role.removeprefix("executor-")) for role in planned.roles]
    workers = [f"worker-{number}" for number in numbers if number >= first]
    if not workers:
        return planned
    return replace(planned, roles=(*planned.roles, *workers), segments=(*planned.segments, "memory", "learner"))
