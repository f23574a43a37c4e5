"""Where a run goes on from: finds the newest whole checkpoint that is fit, and judges which settings may change."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxe_async.errors import CorruptRecord, ResourceError, RunFailed, SettingsError
from mlxe_async.ipc.shared.segments import available_memory
from mlxe_async.logs import events
from mlxe_async.rows import Array
from mlxe_async.settings import Settings, as_tables, load_settings
from mlxe_async.settings.resuming import Change, changes
from mlxe_async.storage import checkpoints
from mlxe_async.storage.array_files import read_arrays
from mlxe_async.storage.run_folder import RunFolder
from mlxe_async.storage.safe_text import REDACTED, visible
from mlxe_async.supervisor.checkpointing.log_end import LogEnd, read_log_end, tells_of_checkpoints
from mlxe_async.supervisor.checkpointing.saved_state import OWN, SUFFIX, check_whole
from mlxe_async.supervisor.plan.provenance import about_run, versions

BEGINS_ANEW = "the run ended before its first checkpoint was written; it begins anew"
MOST_SITTINGS = 1000
_OF_ODD_VALUES = (ArithmeticError, AttributeError, BufferError, LookupError, TypeError, ValueError)


@dataclass
class ResumePoint:
    """What a run goes on from.

    Args:
        folder: the run's folder, held by this process.
        settings: of the run so far.
        log_end: how its log ends.
        rejected: number and cause of each checkpoint that was not fit.
        whole: the checkpoint; None when none was fit.
        cause: why none was fit.
        has_saved: whether any checkpoint was saved, also one that is gone by now; only known where none is fit.
        changed: settings that are others now, the cosmetic ones too.
        about: what the run's `run.json` says.
    """

    folder: RunFolder
    settings: Settings
    log_end: LogEnd
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
            ResourceError: it cannot be used, or belongs to another user.
            SettingsError: its settings cannot be read.
        """
        folder = RunFolder.reopen(path)
        try:
            _check_owner(folder.path)
            settings = load_settings(folder.path / "settings.toml", of_run=True)
            log_end = read_log_end(folder.log_path, writes=writes)
            point = cls(folder, settings, log_end, about=about_run(folder.path))
            note = point.rejected.append
            try:
                point.whole = checkpoints.load_whole(
                    folder.checkpoints_path,
                    lambda number, cause: note((number, cause)),
                    functools.partial(check_whole, envs=settings.schedule.envs_per_executor),
                    _foreseen(settings),
                )
            except RunFailed as error:
                point.cause = str(error)
                point.has_saved = bool(checkpoints.numbers(folder.checkpoints_path)) or tells_of_checkpoints(folder)
        except BaseException:
            folder.close()
            raise
        return point

    def begins_anew(self, settings: Settings) -> bool:
        """Return whether it begins from nothing: no checkpoint was ever saved, and its schedule repeats the same run.

        Args:
            settings: those it would begin with.
        """
        return self.whole is None and not self.has_saved and self._repeats(settings)

    def _repeats(self, settings: Settings) -> bool:
        return self.settings.schedule.reproducible and settings.schedule.reproducible

    @property
    def begun_with(self) -> events.InitFrom | None:
        """The weights of another run that it began with, if any."""
        told = self.about.get("init_from")
        try:
            return events.InitFrom(**told) if told else None
        except TypeError:  # another program wrote it
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
            kind = next(one.schedule.kind for one in (settings, self.settings) if not one.schedule.reproducible)
            why = f': nothing was saved before it ended, and under schedule "{kind}" beginning anew is another run'
        file = shlex.quote(visible(str(self.folder.path / "settings.toml")))
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
        """Return what going on would use, what it would not, and what would be lost, a line each.

        Args:
            settings: those it would go on with.

        Raises:
            RunFailed: there is no checkpoint to go on from.
        """
        lines = [f"spoilt        checkpoint {number}: {cause}" for number, cause in self.rejected]
        lines += [f"changed       {change}" for change in self.told]
        reached = f"{self.log_end.env_steps:,} steps and {self.log_end.episodes:,} episodes"
        if self.whole is not None:
            counted = self.state["counters"]
            steps, episodes = self.log_end.env_steps - counted["env_steps"], self.log_end.episodes - counted["episodes"]
            used = f"version {self.version:,}, {counted['env_steps']:,} steps, {counted['updates']:,} updates"
            lost = f"{max(0, steps):,} steps and {max(0, episodes):,} episodes, of {reached}"
            return [f"goes on from  checkpoint {self.whole.number}: {used}", *lines, f"lost          {lost}"]
        if self.begins_anew(settings):
            return [f"goes on from  nothing: {self.anew}", *lines, f"done again    {reached}"]
        raise self.refusal(settings)

    @property
    def state(self) -> dict[str, Any]:
        """What the supervisor told of itself."""
        assert self.whole is not None  # noqa: S101 - callers have seen that there is one
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
    def went_otherwise(self) -> bool:
        """True if the run went on from this checkpoint, or a newer one, as another run: later numbers are taken."""
        number = self.whole.number if self.whole else 0
        return any(
            one.get("exact") is False and isinstance(one.get("checkpoint"), int) and one["checkpoint"] >= number
            for one in self.former_sittings
        )

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
        return max(self.version, self.log_end.version, checkpoints.newest_version(self.folder.checkpoints_path))

    def own_arrays(self) -> dict[str, Array]:
        """The supervisor's arrays."""
        assert self.whole is not None  # noqa: S101 - see state
        return read_arrays(self.whole.path / f"{OWN}{SUFFIX}")


def _foreseen(settings: Settings) -> checkpoints.Foresee:
    """Judges a checkpoint before its weights are read; an algorithm of the user's own, is not asked here."""
    if ":" in settings.algorithm.name:
        return checkpoints.check_facts
    from mlxe_async.foreseen import Foreseen  # here, for runs that do not go on with another

    return Foreseen(settings, available_memory())


def _hidden(table: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Keys whose values were left out when settings were written."""
    for key, value in table.items():
        if value == REDACTED:
            yield f"{path}{key}"
        elif isinstance(value, Mapping):
            yield from _hidden(value, f"{path}{key}.")


def _check_owner(path: Path) -> None:
    about = path.stat()
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise ResourceError(f"the run folder {path} can be written to by others than the user of this process")
