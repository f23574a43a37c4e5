"""A suite's file: tasks, algorithms and seeds, each task with the scores between which results are normalised."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from pydantic import Field

from mlxe_async.errors import SettingsError
from mlxe_async.settings.forms import Count, Table, key
from mlxe_async.settings.loading import load_settings
from mlxe_async.settings.model import Settings
from mlxe_async.settings.problems import Path, Problem
from mlxe_async.settings.reading import Unreadable, load_file, read_toml
from mlxe_async.settings.writing import toml_value
from mlxe_async.storage.files import PLAIN_NAME
from mlxe_async.storage.safe_text import visible

LONGEST_NAME = 28
MOST_SEEDS = 1000
MOST_PARTS = 100
Free = dict[str, Any]


def _table(text: str) -> Any:
    return Field(default_factory=dict, description=text)


class Part(Table):
    """Tables of a settings file, as far as they are said here."""

    task: Free = _table("Keys of [task].")
    schedule: Free = _table("Keys of [schedule].")
    algorithm: Free = _table("Keys of [algorithm].")
    learner: Free = _table("Keys of [learner].")
    memory: Free = _table("Keys of [memory].")
    supervision: Free = _table("Keys of [supervision].")
    evaluation: Free = _table("Keys of [evaluation].")
    checkpoint: Free = _table("Keys of [checkpoint].")
    logs: Free = _table("Keys of [logs].")

    def tables(self) -> dict[str, Free]:
        """Those that say something."""
        return {name: dict(getattr(self, name)) for name in Part.model_fields if getattr(self, name)}


class Common(Part):
    """`[settings]`: what holds for all runs, unless their task or algorithm says otherwise."""

    run: Free = _table("Of [run] only python_path and allow_modules.")


class SuiteTask(Part):
    """`[tasks.NAME]`: a task, its levels, and its own settings."""

    random: float | None = key(
        None, "Return of random play, which counts as 0; left out, it is measured by 20 episodes, and told."
    )
    reference: float | None = key(
        None, "Return that counts as 1; left out, the threshold that the environment is registered with."
    )
    env_steps: Count | None = key(None, "Environment steps of each of its runs; left out, those of [suite].")


class SuiteAlgorithm(Part):
    """`[algorithms.NAME]`: an algorithm with its own settings."""


class SuiteTable(Table):
    """`[suite]`: what all runs have in common."""

    seeds: tuple[Annotated[int, Field(ge=0, le=10**9)], ...] = key(
        (0, 1, 2, 3, 4), "Seeds of the runs.", strict=False, min_length=1, max_length=MOST_SEEDS
    )
    env_steps: Count = key(..., "Environment steps of each run.")
    score: Literal["final", "area"] = key(
        "final",
        "What a run comes to: the mean return of the last tenth of its steps, or of all of them (area under the "
        "curve). Of tests where there are any, else of training.",
    )


class SuiteFile(Table):
    """A file for `compare` with several tasks."""

    suite: SuiteTable = Field(description="What all runs have in common.")
    settings: Common = Field(default_factory=Common, description="Tables of a settings file, for all runs.")
    tasks: dict[str, SuiteTask] = Field(description="Tasks, by name.", min_length=1, max_length=MOST_PARTS)
    algorithms: dict[str, SuiteAlgorithm] = Field(
        description="Algorithms, by name.", min_length=1, max_length=MOST_PARTS
    )


@dataclass(frozen=True)
class Entry:
    """One task with one algorithm.

    Args:
        name: of its runs.
        task: its name in the suite.
        algorithm: its name in the suite.
        text: of its settings file.
        settings: what that means.
    """

    name: str
    task: str
    algorithm: str
    text: str
    settings: Settings


@dataclass(frozen=True)
class Suite:
    """A suite as its file asks for it, all of it checked.

    Args:
        file: the values.
        entries: each task with each algorithm.
    """

    file: SuiteFile
    entries: tuple[Entry, ...]


def is_suite(source: str) -> bool:
    """Return whether a file is one with the table [suite]; what cannot be read is judged elsewhere."""
    try:
        return "suite" in read_toml(source, source)[0]
    except Unreadable:
        return False


def load_suite(source: str) -> Suite:
    """Read a suite's file, and make the settings of each task with each algorithm.

    Raises:
        SettingsError: with one line per problem: place, key, got, expected, and a guess at what was meant.
    """
    found, places = load_file(source, SuiteFile)
    base = FilePath(source).absolute().parent
    if problems := list(_problems(found)):
        raise SettingsError([places.line(problem) for problem in problems])
    common = found.settings.tables()
    run = dict(found.settings.run)
    if isinstance(folders := run.get("python_path"), list):
        run["python_path"] = [str(base / folder) if isinstance(folder, str) else folder for folder in folders]
    entries, told = list[Entry](), list[str]()
    for (task, of_task), (algorithm, of_algorithm) in itertools.product(found.tasks.items(), found.algorithms.items()):
        steps = of_task.env_steps or found.suite.env_steps
        tables = _merged(common, of_task.tables(), of_algorithm.tables())
        name = f"{task}-{algorithm}"
        raw = {"run": {**run, "name": name}, "stop": {"env_steps": steps}, **tables}
        try:
            settings = load_settings(raw)
        except SettingsError as error:
            where = places.line(Problem(("tasks", task), f"with algorithms.{algorithm}"))
            told += [f"{where}: {line.removeprefix('settings: ')}" for line in error.problems]
            continue
        entries.append(Entry(name, task, algorithm, _text(raw), settings))
    if told:
        raise SettingsError(list(dict.fromkeys(told))[:50])
    return Suite(found, tuple(entries))


def _problems(found: SuiteFile) -> Iterator[Problem]:
    if len(set(found.suite.seeds)) < len(found.suite.seeds):
        yield Problem(("suite", "seeds"), "got a seed twice, expected each once")
    for name in set(found.settings.run) - {"python_path", "allow_modules"}:
        told = "got a key that a suite decides, expected python_path or allow_modules"
        yield Problem(("settings", "run", name), told)
    names = [f"{task}-{algorithm}" for task, algorithm in itertools.product(found.tasks, found.algorithms)]
    for table, parts in (("tasks", found.tasks), ("algorithms", found.algorithms)):
        for name in parts:
            if not PLAIN_NAME.fullmatch(name) or len(name) > LONGEST_NAME:
                wanted = f"a plain name of at most {LONGEST_NAME} letters, digits, '_', '-' and '.'"
                yield Problem((table, name), f'got the name "{visible(name, 60)}", expected {wanted}')
    for name, one in found.tasks.items():
        if "env" not in one.task:
            yield Problem(("tasks", name, "task", "env"), "got nothing, expected an environment")
        if one.random is not None and one.reference is not None and one.reference <= one.random:
            yield Problem(("tasks", name, "reference"), f"got {one.reference}, expected more than random, {one.random}")
    for name, algorithm in found.algorithms.items():
        if "name" not in algorithm.algorithm and "name" not in found.settings.algorithm:
            yield Problem(("algorithms", name, "algorithm", "name"), "got nothing, expected an algorithm")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        yield Problem(("algorithms",), f'got two runs of the name "{twice}", expected names that differ')
    for (task, one), (name, other) in itertools.product(found.tasks.items(), found.algorithms.items()):
        for path in _both(one.tables(), other.tables()):
            told = f"got a value here and in algorithms.{name}, expected it in one of them"
            yield Problem(("tasks", task, *path), told)


def _both(one: Mapping[str, Free], other: Mapping[str, Free]) -> Iterator[Path]:
    """Yield the keys that both say."""
    for table in one.keys() & other.keys():
        yield from ((table, name) for name in sorted(one[table].keys() & other[table].keys()))


def _merged(*parts: Mapping[str, Free]) -> dict[str, Free]:
    """Tables put together; of a key that several say the last counts."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: {key: value for part in parts for key, value in part.get(name, {}).items()} for name in names}


def _text(raw: Mapping[str, Any]) -> str:
    lines = []
    for table, values in raw.items():
        lines += [f"[{table}]", *(toml_value({name: value})[1:-1] for name, value in values.items()), ""]
    return "\n".join(lines)
