"""Reports about processes that died: text for people, from which `repro` can also read what it needs.

A first line for people; then `name: value` lines, the values in JSON; then what was printed or written at the end.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mlxe_async.errors import NotFound, ResourceError, SettingsError
from mlxe_async.storage import json_checks
from mlxe_async.storage.files import read_bounded, write_new
from mlxe_async.storage.safe_text import visible

SUFFIX = ".txt"
MOST_BYTES = 4 * 2**20
MOST_ACTION_NUMBERS = 50_000
# How many reports are kept: the first ones, which often tell most, and the newest.
MOST_REPORTS, FIRST_REPORTS = 50, 10

_TITLE = "Crash report of mlxe_async. To live it again: python -m mlxe_async repro THIS_FILE"
_STACK, _TRACE = "--- stack ---", "--- traceback ---"


@dataclass(frozen=True)
class CrashReport:
    """What is known about a death.

    Args:
        what: what happened, in a sentence.
        run: the run's name.
        process: the process's name.
        role: what it was: `executor`, `learner`, ...
        pid: its process id.
        epoch: which of its lives, from 1.
        time: wall clock, UTC, ISO 8601.
        signal: name of the signal that ended it, if one did.
        code: its exit code, if it had one.
        executor: which executor, if it was one.
        environment: the environment's id.
        env: which of the executor's environments was being called, from 0; None if none was.
        phase: `"make"`, `"reset"` or `"step"`.
        episode: number of its episode.
        seed: that episode's seed.
        step: the step under way, counted from 1; 0 in a reset.
        finished_episodes: of the run, as the environment was told at its reset.
        actions: of the episode's steps, the one under way included; None if they are not all known.
        stack: what faulthandler wrote.
        trace: the traceback of an exception.
    """

    what: str
    run: str
    process: str
    role: str
    pid: int | None
    epoch: int
    time: str
    signal: str | None = None
    code: int | None = None
    executor: int | None = None
    environment: str | None = None
    env: int | None = None
    phase: str | None = None
    episode: int | None = None
    seed: int | None = None
    step: int | None = None
    finished_episodes: int = 0
    actions: list[Any] | None = None
    stack: str = ""
    trace: str = ""

    @property
    def place(self) -> str:
        """Where it was, in words; empty if it was in no environment."""
        if self.env is None:
            return ""
        where = f"step {self.step}" if self.phase == "step" else str(self.phase)
        episode = "" if self.seed is None else f" of episode {self.episode} (seed {self.seed})"
        return f"executor {self.executor}, environment {self.env} ({self.environment}), {where}{episode}"

    def to_text(self) -> str:
        """The whole report."""
        values = {key: value for key, value in asdict(self).items() if key not in ("stack", "trace")}
        lines = [_TITLE, "", visible(self.what), *([visible(self.place)] if self.place else []), ""]
        lines += [f"{key}: {json.dumps(value)}" for key, value in values.items()]
        for title, text in ((_TRACE, self.trace), (_STACK, self.stack)):
            if text:
                # Foreign text: no line of it may pass for one of ours, nor do anything to a terminal.
                lines += ["", title, *(f"| {visible(line)}" for line in text.splitlines())]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> Path:
        """Write it into a folder, under a name of its own, and remove old ones when there are too many.

        Raises:
            OSError: it cannot be written.
        """
        reports = sorted(folder.glob(f"mlxe-*{SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
        for path in reports[FIRST_REPORTS : len(reports) - MOST_REPORTS + FIRST_REPORTS + 1]:
            if len(reports) >= MOST_REPORTS:
                path.unlink(missing_ok=True)
        data = self.to_text().encode(errors="backslashreplace")
        name = f"{self.process}.{self.epoch}"
        for number in range(1, 2 * MOST_REPORTS):
            path = folder / (f"{name}{SUFFIX}" if number == 1 else f"{name}-{number}{SUFFIX}")
            try:
                write_new(path, data, durable=False)
            except FileExistsError:
                continue
            return path
        raise FileExistsError(17, f"there are too many reports called {name}")


def read_report(path: str | Path) -> CrashReport:
    """Read a report back.

    Raises:
        NotFound: there is no such file.
        ResourceError: it must not be read.
        SettingsError: it is no crash report.
    """
    shown = visible(str(path), 200)
    try:
        text = read_bounded(Path(path), 2 * MOST_BYTES).decode(errors="replace")
    except (OSError, ValueError) as error:
        kind = ResourceError if isinstance(error, PermissionError) else NotFound
        why = getattr(error, "strerror", None) or error
        raise kind(f"{shown} cannot be read ({why}), expected a crash report: RUN/crash/*.txt") from error
    values: dict[str, Any] = {}
    sections: dict[str, list[str]] = {_TRACE: [], _STACK: []}
    section: list[str] | None = None
    known = {field.name for field in fields(CrashReport)}
    expected = "expected a crash report, as runs write them into their folder crash/"
    for line in text.splitlines() if text.startswith(_TITLE) else ():
        if line in sections:
            section = sections[line]
        elif section is not None:
            section.append(line.removeprefix("| "))
        elif (parts := line.partition(": "))[0] in known:
            try:
                values[parts[0]] = json.loads(parts[2])
            except (ValueError, RecursionError):
                got = visible(parts[2], 60)
                raise SettingsError([f"{shown}: {parts[0]}: got {got}, expected JSON"]) from None
    if not values:
        raise SettingsError([f"{shown}: {expected}"])
    needed = [field.name for field in fields(CrashReport) if field.default is MISSING]
    if lacking := [name for name in needed if name not in values]:
        raise SettingsError([f"{shown}: {lacking[0]}: got nothing, {expected}"])
    values |= {"stack": "\n".join(sections[_STACK]), "trace": "\n".join(sections[_TRACE])}
    report = CrashReport(**values)
    _check(report, shown)
    return report


def _action(place: str, value: Any) -> None:
    """A number, or nested lists of numbers."""
    if type(value) is list:
        json_checks.list_of(_action)(place, value)
    else:
        json_checks.number(place, value)


_VALUES: dict[str, json_checks.Check] = {
    "what": json_checks.text,
    "run": json_checks.text,
    "process": json_checks.text,
    "role": json_checks.text,
    "pid": json_checks.maybe(json_checks.count),
    "epoch": json_checks.count,
    "time": json_checks.text,
    "signal": json_checks.maybe(json_checks.text),
    "code": json_checks.maybe(json_checks.integer),
    "executor": json_checks.maybe(json_checks.count),
    "environment": json_checks.maybe(json_checks.text),
    "env": json_checks.maybe(json_checks.count),
    "phase": json_checks.maybe(json_checks.one_of("make", "reset", "step")),
    "episode": json_checks.maybe(json_checks.count),
    "seed": json_checks.maybe(json_checks.integer),
    "step": json_checks.maybe(json_checks.count),
    "finished_episodes": json_checks.count,
    "actions": json_checks.maybe(json_checks.list_of(_action)),
}


def _check(report: CrashReport, shown: str) -> None:
    """Refuse a report whose values are of another kind than they should be."""
    try:
        for name, value in vars(report).items():
            if name not in ("stack", "trace"):
                _VALUES[name](name, value)
    except (json_checks.Misfit, RecursionError) as error:
        raise SettingsError([f"{shown}: {error}"]) from None
