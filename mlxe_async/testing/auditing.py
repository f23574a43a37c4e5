"""Whether the rows that a run keeps are what its environments lived through: needs `CountingEnv`."""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mlxe_async.errors import ResourceError
from mlxe_async.rows import Array
from mlxe_async.storage.run_folder import RUN, SETTINGS, find_run
from mlxe_async.testing.counting import Place, decode, reward_of

if TYPE_CHECKING:
    from mlxe_async.ipc.shared.segments import Segment
    from mlxe_async.memory.shape import ReplayShape

MOST_PROBLEMS = 20

Lanes = Mapping[int, Mapping[str, Array]]


@dataclass
class Audit:
    """What an audit found.

    Args:
        rows: rows looked at.
        lives: rows found of each (executor, life).
        problems: a sentence each, at most twenty; empty when all is as it should be.
    """

    rows: int = 0
    lives: dict[tuple[int, int], int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return not self.problems

    def _found(self, sentence: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(sentence)


def audit(run: str | os.PathLike[str] | Lanes, *, whole: bool = True) -> Audit:
    """Prove from rows that no step was lost, told twice, torn, or joined with one it does not follow.

    Checked for each row: its observations are not torn; `next_obs` is the step after `obs` of the same episode of the
    same life of the same executor; reward, step number and lane fit. Checked over all rows of a lane: none comes twice;
    lives follow one another and never mix; within a life of an environment the rows are, without a gap, the steps it
    took from the first on; within a segment (rows counted down by `left`, from which returns are computed) nothing but
    steps of one episode that follow on each other.

    Args:
        run: the folder of a run that is going on, or a name as for `find_run`; or lane -> columns of its rows in the
            order they came, as `rows_of` gives them.
        whole: nothing has been forgotten yet, so each life must begin at its first step. False for a memory that has
            overwritten old rows or keeps only the last ones of an episode.

    Raises:
        ResourceError: the run is over, or keeps its rows in another way.
    """
    lanes = run if isinstance(run, Mapping) else rows_of(run)
    result = Audit()
    for lane, rows in lanes.items():
        _audit_lane(result, lane, rows, whole=whole)
    return result


def rows_of(run: str | os.PathLike[str]) -> dict[int, dict[str, Array]]:
    """The rows that a living run's replay memory holds at this moment: lane -> columns, in the order they came.

    Read through `/proc` from the outside, while the run goes on; a row that is being replaced just then is left out.

    Args:
        run: as for `find_run`.

    Raises:
        NotFound: there is no such run.
        ResourceError: it is over, or has no replay memory.
    """
    # Here, because an environment that lives beside this module must not wait for it.
    from mlxe_async.memory.shape import ReplayShape
    from mlxe_async.settings import load_settings
    from mlxe_async.supervisor.plan.blueprint import Blueprint

    folder = find_run(run)
    try:
        pid = int(json.loads((folder / "lock").read_text())["pid"])
        facts = json.loads((folder / RUN).read_text())["facts"]
    except (OSError, ValueError, KeyError) as error:
        raise ResourceError(f"{folder.name}: the run has not begun, or is of another kind: {error}") from error
    shape = Blueprint(load_settings(folder / SETTINGS, of_run=True), facts).memory_shape
    if not isinstance(shape, ReplayShape):
        raise ResourceError(f"{folder.name}: its algorithm keeps no replay memory, expected one")
    with _memory_of(pid, shape.nbytes) as segment:
        return _rows(shape, segment)


@contextlib.contextmanager
def _memory_of(pid: int, size: int) -> Iterator[Segment]:
    from mlxe_async.ipc.shared.segments import Segment

    try:
        entries = sorted(Path(f"/proc/{pid}/fd").iterdir())
        for entry in entries:
            if "memfd:mlxe-memory" in os.readlink(entry) and entry.stat().st_size == size:  # noqa: PTH115 - not a path
                with Segment.attach("memory", os.open(entry, os.O_RDWR | os.O_CLOEXEC), size) as segment:
                    yield segment
                return
    except OSError as error:
        raise ResourceError(f"process {pid} cannot be looked at: {error.strerror}") from error
    raise ResourceError(f"process {pid} holds no memory of a run of {size} bytes")


def _rows(shape: ReplayShape, segment: Segment) -> dict[int, dict[str, Array]]:
    ring = shape.ring(segment.buffer)
    before = ring["stamp"].copy()
    copied = {name: column.copy() for name, column in ring.items()}
    steady = (before > 0) & (before == ring["stamp"])
    lanes = {}
    for lane in range(shape.lanes):
        size = shape.envs * shape.stream_rows
        mine = lane * size + np.flatnonzero(steady[lane * size : (lane + 1) * size])
        mine = mine[np.argsort(before[mine], kind="stable")]
        lanes[lane] = {name: column[mine] for name, column in copied.items()}
    return lanes


def _audit_lane(result: Audit, lane: int, rows: Mapping[str, Array], *, whole: bool) -> None:
    seen: set[Place] = set()
    last: dict[int, Place] = {}  # of each environment of the lane
    totals: dict[tuple[int, int], list[int]] = defaultdict(list)
    segment: dict[int, tuple[int, Place]] = {}
    count = len(rows["env"])
    result.rows += count
    for i in range(count):
        here, there = decode(rows["obs"][i]), decode(rows["next_obs"][i])
        name = f"lane {lane}, row {i}"
        if here is None or there is None:
            result._found(f"{name}: torn: obs {rows['obs'][i].tolist()}, next_obs {rows['next_obs'][i].tolist()}")
            continue
        env = int(rows["env"][i])
        if there != here.after_one_step():
            result._found(f"{name}: joined: {there} does not follow {here}")
        if here.executor != lane:
            result._found(f"{name}: of executor {here.executor}, expected {lane}")
        if int(rows["step"][i]) != here.step:
            result._found(f"{name}: is called step {int(rows['step'][i])}, is step {here.step}")
        if float(rows["reward"][i]) != reward_of(there):
            result._found(f"{name}: reward {float(rows['reward'][i])}, expected {reward_of(there)}")
        if here in seen:
            result._found(f"{name}: {here} came before")
        seen.add(here)
        if env in last and _age(here) < _age(last[env]):
            result._found(f"{name}: {here} comes after {last[env]}")
        last[env] = here
        totals[here.life, here.instance].append(here.total)
        result.lives[lane, here.life] = result.lives.get((lane, here.life), 0) + 1
        if "left" in rows:
            _audit_segment(result, name, segment, env, int(rows["left"][i]), here)
    for (life, instance), steps in totals.items():
        first = 0 if whole else min(steps)
        if sorted(steps) != list(range(first, first + len(steps))):
            missing = sorted(set(range(first, max(steps) + 1)) - set(steps))
            result._found(
                f"lane {lane}, life {life}, environment {instance}: steps up to {max(steps)} with {len(missing)} "
                f"missing, first {missing[:3]}"
            )


def _age(place: Place) -> tuple[int, int, int]:
    return place.life, place.instance, place.total


def _audit_segment(
    result: Audit, name: str, segment: dict[int, tuple[int, Place]], env: int, left: int, here: Place
) -> None:
    """Rows of one segment count down to 1, and are steps of one episode that follow on each other."""
    before = segment.pop(env, None)
    if before is not None and (before[0] - 1 != left or before[1].after_one_step() != here):
        result._found(f"{name}: a segment joins {before[1]} ({before[0]} left) with {here} ({left} left)")
    if left > 1:
        segment[env] = (left, here)
