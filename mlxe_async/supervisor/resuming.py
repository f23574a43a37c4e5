"""Going on with a run from the newest whole checkpoint in its folder that is fit."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mlxe_async import checkpoints
from mlxe_async.array_files import read_arrays, read_into
from mlxe_async.errors import CorruptRecord, ProcessDied, ResourceError, RunFailed, SettingsError
from mlxe_async.files import open_plain, read_bounded
from mlxe_async.ipc.lanes import LaneWriter, format_lane
from mlxe_async.ipc.process import Process
from mlxe_async.ipc.remote_error import RemoteError
from mlxe_async.ipc.segments import Segment
from mlxe_async.ipc.weights import WeightsWriter
from mlxe_async.logs import events
from mlxe_async.logs.journal import open_log
from mlxe_async.logs.reader import event_of
from mlxe_async.logs.safe import REDACTED, visible
from mlxe_async.memory.bookkeeping import Bookkeeping
from mlxe_async.memory.moments import mean_and_variance, pooled
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.rollouts import RolloutMemory, RolloutShape
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.plain import MOST_COUNT
from mlxe_async.rows import Array
from mlxe_async.run_folder import EARLIER, RUN, RunFolder
from mlxe_async.settings import Settings, as_tables, load_settings
from mlxe_async.settings.model import REPEATED
from mlxe_async.settings.resuming import Change, changes
from mlxe_async.supervisor.blueprint import Blueprint
from mlxe_async.supervisor.handles.evaluator import EvaluatorHandle
from mlxe_async.supervisor.handles.executor import ExecutorHandle
from mlxe_async.supervisor.handles.learner import LearnerHandle
from mlxe_async.supervisor.handles.memorizer import MemorizerHandle
from mlxe_async.supervisor.host import versions
from mlxe_async.supervisor.keeping import OWN, SUFFIX
from mlxe_async.supervisor.saved_state import check_whole
from mlxe_async.supervisor.story import Story

BEGINS_ANEW = "the run ended before its first checkpoint was written; it begins anew"
TAIL_BYTES = 2**20
LONGEST_RUN_JSON = 16 * 2**20
MOST_SITTINGS = 1000
_OF_ODD_VALUES = (ArithmeticError, AttributeError, BufferError, LookupError, TypeError, ValueError)
_NOT_EXACT = {
    "begun_anew": "environment {} did not come to the same observation by the same seed and actions; its episode is "
    "begun anew, and the run does not go on exactly",
    "unlike": "the last episode of environment {}, lived again by its seed and actions, did not end at the same "
    "observation: it keeps something from one episode to the next, or draws from what no seed governs, so the run does "
    "not go on exactly",
}
"What an executor may tell of environments it could not bring back, and the sentence about them."


@dataclass(frozen=True)
class LogEnd:
    """How the log of the run so far ends.

    Args:
        next_seq: number of the line that comes next.
        version: newest version that its last lines tell of.
        has_last_word: whether the run ended by itself or was asked to.
        env_steps: environment steps that its last lines tell of.
        episodes: finished episodes that they tell of.
        whole_bytes: bytes up to the end of its last whole line.
        torn: what stands behind it: a line of which only the beginning was written.
        is_open: whether the last whole line lacks its newline.
    """

    next_seq: int
    version: int
    has_last_word: bool
    env_steps: int = 0
    episodes: int = 0
    whole_bytes: int = field(default=0, compare=False)
    torn: bytes = b""
    is_open: bool = False

    def mend(self, path: Path) -> None:
        """Cut off what is torn and end what is open, so that each line of the log is JSON.

        Raises:
            OSError: the log cannot be written.
        """
        if not self.torn and not self.is_open:
            return
        descriptor = open_log(path)
        try:
            if self.torn:
                os.ftruncate(descriptor, self.whole_bytes)
            if self.is_open:
                os.write(descriptor, b"\n")
        finally:
            os.close(descriptor)


@dataclass
class ResumePoint:
    """What a run goes on from.

    Args:
        folder: the run's folder, held by this process.
        settings: of the run so far.
        log: how its log ends.
        rejected: number and cause of each checkpoint that was not fit.
        whole: the checkpoint; None when none was fit.
        cause: why none was fit.
        has_saved: whether any checkpoint was saved, also one that is gone by now; only known where none is fit.
        changed: settings that are others now, the cosmetic ones too.
        about: what the run's `run.json` says.
    """

    folder: RunFolder
    settings: Settings
    log: LogEnd
    rejected: list[tuple[int, str]] = field(default_factory=list)
    whole: checkpoints.Whole | None = None
    cause: str = ""
    has_saved: bool = False
    changed: list[Change] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    exact: bool = False
    former_rows: int = 0

    @classmethod
    def find(cls, path: str | os.PathLike[str], *, writes: bool = True) -> ResumePoint:
        """Hold the folder, and look for the newest whole checkpoint that is fit.

        Args:
            path: the run's folder.
            writes: see that the log can be written to, too; not to be done by who only looks.

        Raises:
            RunFolderBusy: another process holds the folder.
            ResourceError: it cannot be used, or belongs to somebody else.
            SettingsError: its settings cannot be read.
        """
        folder = RunFolder.reopen(path)
        try:
            _check_owner(folder.path)
            settings = load_settings(folder.path / "settings.toml", of_run=True)
            log = _log_end(folder.log_path, writes=writes)
            point = cls(folder, settings, log, about=_about(folder.path / RUN))
            note = point.rejected.append
            try:
                point.whole = checkpoints.load_whole(
                    folder.checkpoints_path,
                    lambda number, cause: note((number, cause)),
                    functools.partial(check_whole, envs=settings.schedule.envs_per_executor),
                )
            except RunFailed as error:
                point.cause = str(error)
                point.has_saved = bool(checkpoints.numbers(folder.checkpoints_path)) or _tells_of_checkpoints(folder)
        except BaseException:
            folder.close()
            raise
        return point

    def begins_anew(self, settings: Settings) -> bool:
        """Whether it begins from nothing: no checkpoint was ever saved, and its schedule repeats the same run.

        Args:
            settings: those it would begin with.
        """
        return self.whole is None and not self.has_saved and self._repeats(settings)

    def _repeats(self, settings: Settings) -> bool:
        return {self.settings.schedule.kind, settings.schedule.kind} <= REPEATED

    @property
    def begun_with(self) -> events.InitFrom | None:
        """The weights of another run that it began with, if any."""
        told = self.about.get("init_from")
        try:
            return events.InitFrom(**told) if told else None
        except TypeError:  # somebody else wrote it
            return None

    @property
    def anew(self) -> str:
        """That it begins anew, in words."""
        return f"{BEGINS_ANEW}, {'with the changed settings' if self.told else 'which is the same run'}"

    def refusal(self, settings: Settings) -> RunFailed:
        """Why there is nothing to go on from, and what to do instead."""
        if self.rejected:
            return RunFailed(self.cause)
        why = ""
        if not self.has_saved and not self._repeats(settings):
            kind = next(one.schedule.kind for one in (settings, self.settings) if one.schedule.kind not in REPEATED)
            why = f': nothing was saved before it ended, and under schedule "{kind}" beginning anew is another run'
        file = visible(str(self.folder.path / "settings.toml"))
        return RunFailed(f"{self.cause}{why}; begin a new run with its settings: python -m mlxe_async {file}")

    def refuse_other_weights(self, digest: str | None) -> None:
        """A run that begins anew begins with the weights that it began with.

        Args:
            digest: of the weights of another run that it would begin with now, None for its own.

        Raises:
            RunFailed: they are others.
        """
        if digest != (None if self.begun_with is None else self.begun_with.weights_hash) and not self.told:
            raise RunFailed(
                f"the run in {visible(str(self.folder.path))} ended before its first checkpoint was written and cannot "
                "begin anew: run.init_from has other weights by now than it began with; expected the same, or a new run"
            )

    def outlook(self, settings: Settings) -> list[str]:
        """What going on would use, what it would not, and what would be lost, a line each.

        Args:
            settings: those it would go on with.

        Raises:
            RunFailed: there is no checkpoint to go on from.
        """
        lines = [f"spoilt        checkpoint {number}: {cause}" for number, cause in self.rejected]
        lines += [f"changed       {change}" for change in self.told]
        reached = f"{self.log.env_steps:,} steps and {self.log.episodes:,} episodes"
        if self.whole is not None:
            counted = self.state["counters"]
            steps, episodes = self.log.env_steps - counted["env_steps"], self.log.episodes - counted["episodes"]
            used = f"version {self.version:,}, {counted['env_steps']:,} steps, {counted['updates']:,} updates"
            lost = f"{max(0, steps):,} steps and {max(0, episodes):,} episodes, of {reached}"
            return [f"goes on from  checkpoint {self.whole.number}: {used}", *lines, f"lost          {lost}"]
        if self.begins_anew(settings):
            return [f"goes on from  nothing: {self.anew}", *lines, f"done again    {reached}"]
        raise self.refusal(settings)

    @property
    def state(self) -> dict[str, Any]:
        """What the supervisor told of itself."""
        assert self.whole is not None  # noqa: S101 - whoever asks has seen that there is one
        state: dict[str, Any] = self.whole.facts["state"]
        return state

    def refuse_another_algorithm(self, settings: Settings) -> None:
        """Say so before the new one is asked about keys that were the old one's.

        Raises:
            SettingsError: the settings name another algorithm than the run had.
        """
        old, new = self.settings.algorithm.name, settings.algorithm.name
        if old != new:
            place, run = settings.places.of(("algorithm", "name")), visible(str(self.folder.path))
            raise SettingsError(
                [
                    f'{place}: algorithm.name: got "{visible(new)}", expected "{visible(old)}": a run goes on with the '
                    f"algorithm it began with; a new run may begin with its weights, if the networks are alike: "
                    f'--set run.init_from="{run}"'
                ]
            )

    def judge(self, settings: Settings, facts: Mapping[str, Any]) -> None:
        """Compare settings, resolved with the algorithm's defaults, and refuse those that must stay.

        Raises:
            SettingsError: keys are others that must not be, each named.
            RunFailed: there is no checkpoint to go on from.
        """
        goes_on = self.whole is not None or self.begins_anew(settings)
        hidden = [key for key in _hidden(as_tables(settings)) if goes_on]
        if hidden:
            told = "got nothing, expected its value by --set or in a settings file: secrets are not saved with a run"
            raise SettingsError([f"{settings.places.source}: {key}: {told}" for key in hidden])
        idle = [tuple(problem["path"]) for problem in facts.get("idle", [])]
        self.changed = list(changes(self.settings, settings, facts["stays"], idle))
        refused = [change for change in self.changed if change.kind == "forbidden"]
        if self.whole is not None and not refused and self.whole.facts["parameters"] != facts["parameters"]:
            refused = [change for change in self.changed if change.path[0] in ("algorithm", "task", "run")]
            if not refused:
                raise SettingsError(["algorithm: the network of this program has other shapes than the saved one"])
        if refused:
            raise SettingsError(
                [
                    f"{settings.places.of(change.path)}: {change}; must stay as it was to go on with a run, "
                    "expected the old value, or a new run"
                    for change in refused
                ]
            )

    @property
    def told(self) -> list[str]:
        """The changes that are more than cosmetic, in words."""
        return [str(change) for change in self.changed if change.kind == "allowed"]

    @property
    def former_sittings(self) -> list[dict[str, Any]]:
        """Versions and host of each sitting of the run so far, the first one first, as far as its folder tells."""
        told = self.about.get("sittings")
        if isinstance(told, list):
            return [one for one in told if isinstance(one, dict)][-MOST_SITTINGS:]
        kept = ("versions", "host")
        return [{name: self.about[name] for name in kept if name in self.about}] if self.about else []

    @property
    def other_versions(self) -> list[str]:
        """Python or packages that are others now than in the sitting before, with the old and the new version."""
        former = (self.former_sittings or [{}])[-1].get("versions")
        if not isinstance(former, dict):
            return []
        now = versions()
        return [
            f"{visible(str(name), 60)} {visible(str(former.get(name, 'none')), 60)} -> {now.get(name, 'none')}"
            for name in dict.fromkeys((*former, *now))
            if former.get(name) != now.get(name)
        ]

    @contextlib.contextmanager
    def taking_up(self) -> Iterator[None]:
        """Say of what does not fit together, although each file is whole, that it is the checkpoint's fault.

        Raises:
            RunFailed: something in the block was not to be had from the checkpoint.
        """
        assert self.whole is not None  # noqa: S101 - see state
        try:
            yield
        except (*_OF_ODD_VALUES, CorruptRecord) as error:
            raise RunFailed(
                f"the run cannot go on from {visible(str(self.whole.path))}: what it holds does not fit together: "
                f"{type(error).__name__}: {visible(str(error), 500)}; without it the one before is taken"
            ) from error

    # -- shared memory ------------------------------------------------------------------------------------------------

    def fill(self, segments: Mapping[str, Segment], blueprint: Blueprint) -> None:
        """Put memory, lanes and weights in their places, before any process is started.

        Raises:
            RunFailed: a file is not what its manifest says.
        """
        whole, state = self.whole, self.state
        assert whole is not None  # noqa: S101 - see state
        saved = state["memory_shape"]
        keeps_memory = saved == blueprint.memory_to_keep
        learner = read_arrays(whole.path / f"learner{SUFFIX}", lambda name: name.startswith("algorithm."))
        same = not self.told and not self.other_versions and keeps_memory
        self.exact = blueprint.alike and same and bool(learner)
        self._fill_memory(segments, blueprint, keeps=keeps_memory)
        writer = WeightsWriter(segments["weights"])
        flat = np.concatenate([whole.tensors[name].ravel() for name, _ in whole.facts["parameters"]])
        writer.begin_after(self.first_version - 1)
        writer.publish(flat.astype(np.float32))

    @property
    def version(self) -> int:
        """The version in the checkpoint."""
        assert self.whole is not None  # noqa: S101 - see state
        return int(self.whole.facts["version"])

    @property
    def first_version(self) -> int:
        """Under which number the saved weights are published.

        The versions that came after them are made again, alike; or they were others, whose numbers are passed over.
        """
        assert self.whole is not None  # noqa: S101 - see state
        if self.exact:
            return self.version
        return max(self.version, self.log.version, checkpoints.newest_version(self.folder.checkpoints_path))

    def _fill_memory(self, segments: Mapping[str, Segment], blueprint: Blueprint, *, keeps: bool) -> None:
        whole, state = self.whole, self.state
        assert whole is not None  # noqa: S101 - see state
        path, shape = whole.path / f"memorizer{SUFFIX}", blueprint.memory_shape
        kind = ReplayMemory if isinstance(shape, ReplayShape) else RolloutMemory
        if not keeps:
            self.former_rows = state["counters"]["env_steps"]
            self._keep_moments(segments, shape)
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
                _refill(LaneWriter(segment, schema), waiting[f"waiting.{lane}"], about)
        del memory

    def _keep_moments(self, segments: Mapping[str, Segment], shape: ReplayShape | RolloutShape) -> None:
        """A memory of another shape counts its observations on from the saved moments."""
        assert self.whole is not None  # noqa: S101 - see state
        saved = {name: value for name, value in self.state["memory_shape"].items() if name != "block_rows"}
        if not isinstance(shape, ReplayShape) or not shape.moments or saved.get("moments") != shape.moments:
            return
        (books,) = read_arrays(
            self.whole.path / f"memorizer{SUFFIX}", lambda name: name == "memory.bookkeeping"
        ).values()
        mean, variance, count = mean_and_variance(pooled(Bookkeeping(ReplayShape(**saved), books).moments))
        if count:
            ReplayMemory(shape, segments["memory"].buffer).begin_moments(mean, variance, count)

    # -- handles and roles --------------------------------------------------------------------------------------------

    def restore_handles(
        self,
        executors: Sequence[ExecutorHandle],
        memorizer: MemorizerHandle,
        learner: LearnerHandle,
        evaluator: EvaluatorHandle,
        ingested: int,
    ) -> int:
        """Let the handles go on. Returns the episodes begun by executors that are no more."""
        state = self.state
        arrays = self.own_arrays()
        for executor, facts in zip(executors, state["executors"], strict=False):
            prefix = f"executor-{executor.index}."
            own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            executor.restore(facts, own)
        gone = range(len(executors), len(state["executors"]))
        if not self.former_rows:
            memorizer.restore(state["memorizer"], ingested)
        passed = {n.removeprefix("passed."): array for n, array in arrays.items() if n.startswith("passed.")}
        evaluator.restore(state["evaluator"], passed)
        learner.is_published = self.first_version == self.version
        return sum(int(arrays[f"executor-{index}.begun"].sum()) for index in gone)

    def own_arrays(self) -> dict[str, Array]:
        """The supervisor's arrays."""
        assert self.whole is not None  # noqa: S101 - see state
        return read_arrays(self.whole.path / f"{OWN}{SUFFIX}")

    async def restore_roles(self, homes: Mapping[str, Process], story: Story, *, free_running: bool) -> None:
        """Have learner, memorizer and executors go on; what cannot, begins afresh, and that is told.

        Raises:
            RunFailed: a role cannot take up what is in its file.
        """
        assert self.whole is not None  # noqa: S101 - see state
        names = ["learner", *([] if self.former_rows else ["memorizer"])]
        if not free_running:
            names += [name for name in homes if name.startswith("executor-")]
        for name in names:
            file = f"{name}{SUFFIX}"
            if file not in self.whole.files:
                continue
            said = await self._restored(homes[name], name, self.whole.path / file, story.warn)
            if said.get("exact") is False:
                self.exact = False
                if name == "learner":
                    story.warn(
                        f"the learner goes on from the saved weights {self.version}; this algorithm has no state() and "
                        "restore(), so its optimiser starts fresh",
                        "learner",
                    )
            for fault, sentence in _NOT_EXACT.items():
                if said.get(fault):
                    self.exact = False
                    index = int(name.removeprefix("executor-"))
                    envs = ", ".join(map(str, said[fault]))
                    story.warn(f"executor {index}: {sentence.format(envs)}", "executor", index)
        if self.former_rows:
            story.warn("the memory has another shape than the saved one: it begins empty")

    async def _restored(self, process: Process, name: str, path: Path, warn: Callable[[str], None]) -> dict[str, Any]:
        while True:
            try:
                said: dict[str, Any] = await process.call("restore", role="keeper", name=name, path=str(path))
            except ProcessDied as error:
                if name.startswith("executor-"):
                    self.exact = False
                    warn(f"{name} died taking up its state, and begins its episodes anew: {error}")
                    return {}
            except RemoteError as error:
                place = f"checkpoint {path.parent.name} ({path.name})"
                raise RunFailed(f"{name} cannot go on from {place}: {error}") from error
            else:
                return said


def _hidden(table: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Keys whose values were left out when settings were written."""
    for key, value in table.items():
        if value == REDACTED:
            yield f"{path}{key}"
        elif isinstance(value, Mapping):
            yield from _hidden(value, f"{path}{key}.")


def _refill(writer: LaneWriter, blocks: Array, about: Iterable[Mapping[str, int]]) -> None:
    """Commit blocks that waited in a lane, under the epochs they had."""
    for block, facts in zip(blocks, about, strict=True):
        while writer.epoch < facts["epoch"]:
            writer.renew()
        payload = writer.reserve()
        if payload is None:
            raise RunFailed("a lane has room for fewer blocks than waited in it: memory.lane_slots is smaller now")
        payload[: len(block)] = block.data
        writer.commit(facts["count"])


def _check_owner(path: Path) -> None:
    about = path.stat()
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise ResourceError(f"the run folder {path} can be written to by others than the user of this process")


def _last_bytes(path: Path, end: int, most: int) -> bytes:
    begin = max(0, end - most)
    with open_plain(path) as file:
        file.seek(begin)
        return file.read(end - begin)


def _log_end(path: Path, *, writes: bool = True) -> LogEnd:
    """Read the last lines of a log, and see that it can be written to, if that is wanted."""
    try:
        descriptor = open_log(path) if writes else None
    except OSError as error:
        raise ResourceError(f"{path} cannot be written: {error.strerror}") from error
    try:
        if descriptor is None and not path.exists():
            return LogEnd(0, 0, has_last_word=False)
        size = path.lstat().st_size
    finally:
        if descriptor is not None:
            os.close(descriptor)
    for most in (TAIL_BYTES, size):  # of a line that is longer than all that was read, all is torn
        torn = _last_bytes(path, size, most).rpartition(b"\n")[2]
        if len(torn) < most:
            break
    is_open = event_of(torn) is not None
    if is_open:
        torn = b""
    whole_bytes = size - len(torn)
    data = _last_bytes(path, whole_bytes, TAIL_BYTES)
    if size < TAIL_BYTES:  # a new file has been begun lately, or the log is short
        earlier = path.with_name(path.name + EARLIER)
        with contextlib.suppress(OSError):
            data = _last_bytes(earlier, earlier.lstat().st_size, TAIL_BYTES) + b"\n" + data
    seq, version, last, counted = -1, 0, "", dict.fromkeys(("env_steps", "episodes"), 0)
    for line in data.splitlines():
        event = event_of(line)
        if event is not None and _is_count(event.get("seq")):
            seq, last = event["seq"], str(event.get("event"))
            if _is_count(event.get("version")):
                version = max(version, event["version"])
            for name, before in counted.items():
                if _is_count(event.get(name)):
                    counted[name] = event[name] if last == "run_resume" else max(before, event[name])
    return LogEnd(seq + 1, version, last == "run_end", **counted, whole_bytes=whole_bytes, torn=torn, is_open=is_open)


def _tells_of_checkpoints(folder: RunFolder) -> bool:
    """Whether the log tells of a checkpoint that was saved."""
    for path in (folder.log_path, folder.log_path.with_name(folder.log_path.name + EARLIER)):
        with contextlib.suppress(FileNotFoundError), open_plain(path) as file:
            if any(b'"event": "checkpoint"' in line for line in file):
                return True
    return False


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_COUNT


def _about(path: Path) -> dict[str, Any]:
    """What `run.json` says of the run so far; empty if it cannot be read."""
    try:
        about = event_of(read_bounded(path, LONGEST_RUN_JSON))
    except OSError:
        return {}
    return about or {}
