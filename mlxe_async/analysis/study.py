"""The folder of a study: which settings and seeds belong to it, and the outcome of every run that has finished.

    study.json            what was asked for
    outcomes/is-1000.json one finished run, written in one step: what is interrupted is simply not there
    runs/                 the run folders
    outcomes.jsonl, table.md, *.svg, *.png                the report, made anew whenever runs have finished

A run is known by its settings file's content (with the own modules and packages it names), the overrides and the seed;
when these have changed since it was stored, it is not silently mixed with new ones.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxe_async.analysis.outcomes import Outcome, of_format_1
from mlxe_async.errors import NotFound, ResourceError, RunFailed, RunFolderBusy, SettingsError
from mlxe_async.storage import json_checks
from mlxe_async.storage.files import is_file, make_folder, read_bounded, replace_file
from mlxe_async.storage.seals import SEAL

STUDY, OUTCOMES, RUNS, BASELINES = "study.json", "outcomes", "runs", "baselines.json"
ALL_OUTCOMES = "outcomes.jsonl"
INHERITED = ("digest", "program", "settings")  # a line of a report that lacks them has those of the line before
FORMAT = 2
LONGEST_RUN_S = 3600.0
_LONGEST, _LONGEST_REPORT = 8 * 2**20, 64 * 2**20


@dataclass(frozen=True)
class Arm:
    """One of the settings that are compared.

    Args:
        name: as it stands in tables.
        file: the settings file.
        overrides: of the whole study, as on the command line.
        key: hash of the content of `file`, of the user's own modules it names, and of the overrides.
    """

    name: str
    file: str
    overrides: tuple[str, ...]
    key: str


@dataclass(frozen=True)
class Plan:
    """What was asked for: every arm with every seed, and the runs of others that are shown beside them.

    Args:
        arms: the settings.
        seeds: of each of them.
        others: folders of runs and of studies.
        timeout_s: a run that takes longer has failed.
        keep_runs: whether run folders of runs that did not fail are kept.
        d2: whether policies that solved the task are tested from adverse starts too.
        rerun: whether what was made by settings that have changed since is made anew.
        jobs: how many runs are made at the same time; with more than one only returns are judged.
        thresholds: returns, of tasks that are never solved: how many steps it took to reach each.
        suite: the file of the suite that this is; empty for a study of settings files.
    """

    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    others: tuple[str, ...] = ()
    timeout_s: float = LONGEST_RUN_S
    keep_runs: bool = True
    d2: bool = False
    rerun: bool = False
    jobs: int = 1
    thresholds: tuple[float, ...] = ()
    suite: str = ""

    def rounds(self) -> Iterator[tuple[Arm, int]]:
        """Every run, all arms for one seed after the other, so that a drift of the machine hits all arms alike."""
        for seed in self.seeds:
            for arm in self.arms:
                yield arm, seed

    def varied(self) -> dict[str, str]:
        """Names of variants, and of the settings that they vary: the same file, with more overrides."""
        return {
            arm.name: base.name
            for arm in self.arms
            for base in self.arms
            if arm.file == base.file
            and len(arm.overrides) > len(base.overrides)
            and arm.overrides[: len(base.overrides)] == base.overrides
        }


class StudyFolder:
    """A study's folder, held by this process until `close`.

    Args:
        path: made if it is not there; an existing one must be empty or a study.
        proof: the file by which a folder is known as one.

    Raises:
        SettingsError: it holds something else.
        RunFolderBusy: another process is at work in it.
        ResourceError: it cannot be used.
    """

    def __init__(self, path: Path, proof: str = STUDY) -> None:
        self.path = path.absolute()
        try:
            make_folder(self.path)
            names = {entry.name for entry in self.path.iterdir() if not _is_begun(entry)}
            if names - {"lock"} and proof not in names:
                raise SettingsError([f"--out {path}: got a folder that holds something else, expected a study or none"])
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ResourceError(f"the study folder {path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if proof == STUDY:
                make_folder(self.path / OUTCOMES)
            make_folder(self.runs)
        except OSError as error:
            self.close()
            if isinstance(error, BlockingIOError):
                raise RunFolderBusy(f"another one is at work in {path}") from None
            raise ResourceError(f"the study folder {path} cannot be used: {error.strerror}") from error

    @property
    def runs(self) -> Path:
        """Where the run folders are."""
        return self.path / RUNS

    def close(self) -> None:
        """Let others in."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> StudyFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write_plan(self, plan: Plan, seal: str | None = None) -> None:
        """Keep what was asked for, and what proves that its code is this user's own; None: what there is stays."""
        if seal is not None:
            self.write(SEAL, f"{seal}\n")
        self.write(STUDY, json.dumps({"format": FORMAT, **dataclasses.asdict(plan)}, indent=1) + "\n")

    def store(self, arm: Arm, one: Outcome, program: str) -> None:
        """Keep the outcome of a finished run; it is there whole, or not at all."""
        record = {"format": FORMAT, "key": arm.key, **one.to_json(), "program": program}
        self.write(f"{OUTCOMES}/{arm.name}-{one.seed}.json", json.dumps(record) + "\n")

    def finished(self, arm: Arm, seed: int) -> tuple[Outcome, str, str] | None:
        """The outcome of a run if it has finished, the key it was made under, and the program that made it.

        Raises:
            RunFailed: its file is damaged.
        """
        path = self.path / OUTCOMES / f"{arm.name}-{seed}.json"
        record = _record(path)
        if record is None:
            return None
        one, key = _outcome(path, record), record.get("key")
        if not isinstance(key, str):
            raise _damaged(path, "expected a key")
        return one, key, one.program

    def check_unchanged(self, plan: Plan) -> None:
        """Make sure that what has finished was made by the settings that are asked for now.

        Raises:
            SettingsError: some were changed since.
        """
        problems = []
        for arm in plan.arms:
            stored = [self.finished(arm, seed) for seed in plan.seeds]
            changed = sum(found is not None and found[1] != arm.key for found in stored)
            if changed:
                named = f"{plan.suite}: {arm.name}" if plan.suite else arm.file
                problems.append(
                    f"{named}: it (or --set, or a module it names) has changed since {changed} of its runs in "
                    f"{self.path} were made, expected the same; --rerun makes them anew, another --out keeps both"
                )
        if problems:
            raise SettingsError(problems)

    def write(self, name: str, text: str | bytes) -> None:
        """Put a file into the folder in one step.

        Raises:
            ResourceError: it cannot be written.
        """
        data = text.encode() if isinstance(text, str) else text
        try:
            replace_file(self.path / name, data, durable=True)
        except OSError as error:
            raise ResourceError(f"{name} cannot be written in {self.path}: {error.strerror}") from error


def _is_begun(entry: Path) -> bool:
    """Return whether something in a folder is what a study makes first, with nothing in it yet."""
    return entry.name in (OUTCOMES, RUNS) and entry.is_dir() and next(entry.iterdir(), None) is None


def is_study(path: Path) -> bool:
    """Return whether a folder is that of a study."""
    return is_file(path / STUDY)


def has_outcomes(path: Path) -> bool:
    """Return whether a folder is that of a study, or what is kept of one: at least its table of all outcomes."""
    return is_study(path) or is_file(path / ALL_OUTCOMES)


def read_plan(path: Path) -> Plan:
    """Return what a study was asked for.

    Raises:
        NotFound: it is no study.
        RunFailed: its file is damaged.
    """
    record = _record(path / STUDY) if is_study(path) else None
    if record is None:
        raise NotFound(f"{path}: expected the folder of a study, it has no {STUDY}")
    try:
        _PLAN(STUDY, record)
    except json_checks.Misfit as error:
        raise RunFailed(f"{path}: expected the folder of a study, its {STUDY} cannot be used: {error!r}") from error
    arms = tuple(Arm(one["name"], one["file"], tuple(one["overrides"]), one["key"]) for one in record["arms"])
    known = {item.name: record[item.name] for item in dataclasses.fields(Plan) if item.name in record}
    lists = {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
    return Plan(**{**known, **lists, "arms": arms})


_TEXTS = json_checks.list_of(json_checks.text)
_ARM = json_checks.table(
    {"name": json_checks.text, "file": json_checks.text, "overrides": _TEXTS, "key": json_checks.text}
)
_PLAN = json_checks.table(
    {"arms": json_checks.list_of(_ARM), "seeds": json_checks.list_of(json_checks.integer)},
    {
        "others": _TEXTS,
        "timeout_s": json_checks.number,
        "keep_runs": json_checks.flag,
        "d2": json_checks.flag,
        "rerun": json_checks.flag,
        "jobs": json_checks.integer,
        "thresholds": json_checks.list_of(json_checks.number),
        "suite": json_checks.text,
    },
)


def stored_outcomes(path: Path) -> list[Outcome]:
    """Every outcome in a study's folder, by name and seed; where only its report is left, those it reported.

    Raises:
        RunFailed: a file is damaged.
    """
    if not is_study(path):
        return reported_outcomes(path / ALL_OUTCOMES)
    records = {file: _record(file) for file in sorted((path / OUTCOMES).glob("[!.]*.json"))}
    found = [_outcome(file, record) for file, record in records.items() if record is not None]
    return sorted(found, key=lambda one: (one.name, one.seed))


def told_outcomes(path: Path) -> list[Outcome]:
    """Return `stored_outcomes`, and those of runs and studies that were named beside it when it was last reported.

    Raises:
        RunFailed: a file is damaged.
    """
    stored = stored_outcomes(path)
    if not is_study(path) or not is_file(path / ALL_OUTCOMES):
        return stored
    own = {(one.name, one.seed, one.run) for one in stored}
    beside = [one for one in reported_outcomes(path / ALL_OUTCOMES) if (one.name, one.seed, one.run) not in own]
    return [*stored, *beside]


def stored_baselines(path: Path) -> tuple[Any, list[dict[str, Any]]] | None:
    """Return what baselines a study's folder holds: what was asked for, and what was found; None if there are none.

    Raises:
        RunFailed: their file is damaged.
    """
    record = _record(path / BASELINES)
    if record is None:
        return None
    found = record.get("baselines")
    named = isinstance(found, list) and all(isinstance(one, dict) for one in found)
    if not named or not all({"name", "solved", "tried", "rule"} <= set(one) for one in found or ()):
        raise _damaged(path / BASELINES, "expected baselines")
    return record.get("asked"), list(found or ())


def group(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes by the name of their settings, in the order in which names first come, each by seed.

    Different settings of one name are told apart by the first characters of their digest.
    """
    names: dict[str, dict[str, list[Outcome]]] = {}
    for one in outcomes:
        names.setdefault(one.name, {}).setdefault(one.digest, []).append(one)
    groups = {}
    for name, variants in names.items():
        unknown = variants.pop("", [])  # a run that died before it told its settings
        if not variants:
            variants = {"": []}
        first = next(iter(variants))
        variants[first] = [*variants[first], *unknown]
        for digest, members in variants.items():
            label = name if len(variants) == 1 else f"{name}-{digest[:4]}"
            groups[label] = sorted(members, key=lambda one: one.seed)
    return groups


def key_of(file: Path | bytes, overrides: Sequence[str], modules: Iterable[Path]) -> str:
    """Hash of everything of the user's that makes a run what it is, its seed aside.

    Args:
        file: the settings file, or its content.
        overrides: as on the command line.
        modules: files of the user's own code.

    Raises:
        ResourceError: a file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        if isinstance(file, bytes):
            digest.update(file + b"\0")
        for path in (*(() if isinstance(file, bytes) else (file,)), *sorted(modules)):
            digest.update(path.read_bytes() + b"\0")
    except OSError as error:
        raise ResourceError(f"{path} cannot be read: {error.strerror}") from error
    digest.update("\0".join(overrides).encode())
    return digest.hexdigest()[:16]


def program_key() -> str:
    """Hash of the source of this package: outcomes of different programs should not be mixed unseen.

    Raises:
        ResourceError: a file of it cannot be read.
    """
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        try:
            digest.update(path.read_bytes())
        except OSError as error:
            raise ResourceError(f"{path} cannot be read: {error.strerror}") from error
    return digest.hexdigest()[:12]


def _record(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(read_bounded(path, _LONGEST))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(record, Mapping):
        raise _damaged(path, "expected an object")
    return dict(record)


def reported_outcomes(file: Path) -> list[Outcome]:
    """Every outcome of a report, `outcomes.jsonl`, in its order.

    Raises:
        RunFailed: the file is damaged.
    """
    try:
        records = [json.loads(line) for line in read_bounded(file, _LONGEST_REPORT).splitlines()]
        for before, record in itertools.pairwise(records):
            record.update({name: before[name] for name in INHERITED if name in before and name not in record})
        return [Outcome.from_json(record) for record in records]
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RunFailed(f"{file} cannot be read: {error}") from error


def _outcome(path: Path, record: Mapping[str, Any]) -> Outcome:
    try:
        return Outcome.from_json(record if record.get("format") != 1 else of_format_1(record))
    except ValueError as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, why: str) -> RunFailed:
    advice = "it has to be mended by hand" if path.name == STUDY else "and may be removed: it is made anew then"
    return RunFailed(f"{path} cannot be read, {advice}: {why}")
