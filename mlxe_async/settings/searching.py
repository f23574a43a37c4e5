"""A sweep's file: which settings file, which of its keys are searched and where, and how trials are judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from mlxe_async.algorithms import REGISTRY, load_algorithm
from mlxe_async.errors import SettingsError
from mlxe_async.settings.forms import Count, Seconds, Table, key, listed
from mlxe_async.settings.loading import algorithm_problems, load_settings
from mlxe_async.settings.model import Settings
from mlxe_async.settings.places import Places
from mlxe_async.settings.problems import Path, Problem, describe, shown
from mlxe_async.settings.reading import load_file
from mlxe_async.settings.writing import toml_value

MOST_TRIALS = 10_000
MOST_FRESH = 100
_OF_A_RANGE = frozenset({"low", "high", "log", "step", "choices"})

Value = bool | int | float | str


class SearchedKey(Table):
    """Values that a key may take: a range `low` to `high`, or `choices`, by the names that Optuna gives them.

    Args of a range are whole numbers if both ends are.
    """

    low: int | float | None = key(None, "The least value.")
    high: int | float | None = key(None, "The greatest value.")
    log: bool = key(False, "Search powers, as for learning rates: as many trials below a value as above it, by ratio.")
    step: int | float | None = key(None, "Only values that lie so far apart, counted from low.", gt=0)
    choices: tuple[Any, ...] = listed("Values to choose from, as they would stand in the settings.", max_length=100)

    @model_validator(mode="after")
    def _fits(self) -> SearchedKey:
        why = self._why_not()
        if why:
            raise PydanticCustomError("value_error", "{why}", {"why": why})
        return self

    def _why_not(self) -> str:
        """Return what is wrong with it; nothing where all is well."""
        if self.choices:
            return (
                "got choices and a range too, expected one of them" if _range_of(self) else _not_choices(self.choices)
            )
        if self.low is None or self.high is None:
            return "got no values, expected low and high, or choices"
        if not self.low < self.high:
            return f"got low = {self.low} and high = {self.high}, expected low below high"
        if self.log and self.low <= 0:
            return f"got low = {self.low}, expected above 0 with log = true"
        if self.log and self.step is not None:
            return "got step and log = true, expected one of them"
        if self.step is not None and self.step > self.high - self.low:
            return f"got step = {self.step}, expected at most high - low"
        if self.is_whole and not isinstance(self.step or 1, int):
            return f"got step = {self.step}, expected a whole number, as low and high are"
        return ""

    @property
    def is_whole(self) -> bool:
        """True for a range of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def examples(self) -> tuple[Any, ...]:
        """The ends of a range and a value between them, or all choices."""
        if self.choices:
            return self.choices
        low, high = self.low or 0, self.high or 0
        middle = math.sqrt(low * high) if self.log else (low + high) / 2
        if self.step is not None:
            middle = low + round((middle - low) / self.step) * self.step
        return low, int(middle) if self.is_whole else float(middle), high


def _range_of(one: SearchedKey) -> bool:
    return one.low is not None or one.high is not None or one.log or one.step is not None


def _not_choices(choices: tuple[Any, ...]) -> str:
    if len(choices) < 2:
        return f"got {len(choices)} choice, expected two or more"
    texts = [repr(one) for one in choices]
    return "got a choice twice, expected each once" if len(set(texts)) < len(texts) else ""


class SweepTable(Table):
    """`[sweep]`: how trials are made and judged."""

    settings: str = key(..., "The settings file that is varied, as seen from this one.", examples=["mine.toml"])
    set: tuple[str, ...] = listed('Overrides for all trials, as of --set: ["learner.threads=1"].', max_length=100)
    trials: int = key(20, "Trials in all; --trials says otherwise.", ge=1, le=MOST_TRIALS)
    env_steps: Count | None = key(None, "Environment steps of a trial; left out, the settings' own stop conditions.")
    score: Literal["final", "area"] = key(
        "final",
        "What is made large: the mean return of the last tenth of a run's steps, or of all of them (area under the "
        "curve). Of tests where there are any, else of training.",
    )
    sampler: Literal["tpe", "random"] = key("tpe", "Optuna's sampler: tree-structured Parzen estimator, or by chance.")
    pruner: Literal["median", "percentile", "none"] = key(
        "median",
        "Trials whose best stretch so far is worse than the median of the others' at the same step are ended; or those "
        "not among the best percentile; or none.",
    )
    percentile: float = key(25.0, 'With pruner = "percentile": this percentage of trials goes on.', gt=0, lt=100)
    startup_trials: int = key(5, "Trials that must have ended before one is pruned.", ge=0, le=MOST_TRIALS)
    warmup_steps: Count | None = key(
        None, "Environment steps before which no trial is pruned; left out, a fifth of a trial's."
    )
    interval_steps: Count | None = key(
        None, "Environment steps from one look at the curve to the next; left out, a twentieth of a trial's."
    )
    finalists: int = key(
        3,
        "Complete trials of the highest scores that run again with further seeds; the best is that of the highest mean "
        "of all its runs. The best of many single runs was also the luckiest; 1: none runs again.",
        ge=1,
        le=MOST_FRESH,
    )
    finalist_seeds: int = key(2, "Further seeds of each finalist.", ge=1, le=MOST_FRESH)
    fresh_seeds: int = key(
        3,
        "Seeds that no trial had, by which the best and the settings as they are run in the end; 0: they do not.",
        ge=0,
        le=MOST_FRESH,
    )
    timeout_s: Seconds = key(3600.0, "A trial that takes longer has failed.")


class SweepFile(Table):
    """A file for `sweep`."""

    sweep: SweepTable = Field(description="How trials are made and judged.")
    search: dict[str, Any] = Field(
        description="Keys that are searched, such as algorithm.learning_rate = { low = 1e-5, high = 1e-2, log = true }."
    )


def flattened(search: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Keys and what is said of each: a table with one of the words of a range is one; all else is a table of keys."""
    waiting: list[tuple[Path, Any]] = [((name,), value) for name, value in reversed(list(search.items()))]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Mapping) and not _OF_A_RANGE & set(value):
            waiting += [((*path, name), inner) for name, inner in reversed(list(value.items()))]
        else:
            yield path, value


def not_a_table(path: Path) -> Problem | None:
    """Return what is wrong with the place of a searched key; None if it is a key of a table."""
    told = ".".join(str(part) for part in path)
    if len(told.split(".")) < 2:
        return Problem(("search", *path), "got a key of no table, expected table.key, such as algorithm.learning_rate")
    if told.startswith(("run.", "stop.")):
        return Problem(("search", *path), "got a key of [run] or [stop], expected one that says how to learn")
    return None


class Sweep:
    """A sweep as its file asks for it, all of it checked.

    Args:
        file: the settings file, by its whole path.
        table: `[sweep]`.
        keys: what is searched, by the keys of the settings.
        settings: those of the settings file with the overrides for all trials.
    """

    def __init__(self, file: str, table: SweepTable, keys: Mapping[str, SearchedKey], settings: Settings) -> None:
        self.file, self.table, self.keys, self.settings = file, table, dict(keys), settings

    @property
    def overrides(self) -> tuple[str, ...]:
        """Overrides of all trials, the budget included."""
        return overrides_of(self.table)

    @property
    def env_steps(self) -> int | None:
        """Environment steps of a trial; None where another condition ends it."""
        return self.table.env_steps or self.settings.stop.env_steps

    def overrides_with(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Overrides of all trials, and then those of some values by key."""
        return (*self.overrides, *(f"{name}={toml_value(value)}" for name, value in values.items()))


def overrides_of(table: SweepTable) -> tuple[str, ...]:
    """Overrides of all trials of a sweep, the budget included."""
    budget = () if table.env_steps is None else (f"stop.env_steps={table.env_steps}",)
    return (*table.set, *budget)


def load_sweep(source: str) -> Sweep:
    """Read a sweep's file, and the settings file that it names; the ends of each range are tried.

    Raises:
        SettingsError: with one line per problem: place, key, got, expected, and a guess at what was meant.
    """
    asked, places = load_file(source, SweepFile)
    keys: dict[str, SearchedKey] = {}
    problems = []
    for path, said in flattened(asked.search):
        where = ("search", *path)
        if problem := not_a_table(path):
            problems.append(problem)
        elif not isinstance(said, Mapping):
            message = f"got {shown(said)}, expected {{ low = A, high = B }} or {{ choices = [...] }}"
            problems.append(Problem(where, message))
        else:
            try:
                keys[".".join(map(str, path))] = SearchedKey.model_validate(dict(said))
            except ValidationError as error:
                problems += describe(error, SearchedKey, where)
    if not asked.search:
        problems.append(Problem(("search",), "got no key, expected at least one"))
    if problems:
        raise SettingsError([places.line(problem) for problem in problems])
    file = FilePath(source).absolute().parent / asked.sweep.settings
    settings = load_settings(file, list(overrides_of(asked.sweep)))
    sweep = Sweep(str(file), asked.sweep, keys, settings)
    if not any((settings.stop.env_steps, settings.stop.episodes, settings.stop.updates, settings.stop.seconds)):
        raise SettingsError(
            [places.line(Problem(("sweep", "env_steps"), "got nothing, expected how many steps a trial lasts"))]
        )
    if told := list(_unfit(sweep, places)):
        raise SettingsError(told)
    return sweep


def _unfit(sweep: Sweep, places: Places) -> Iterator[str]:
    """Yield a line for each value of a range or of choices that the settings do not take."""
    name = sweep.settings.algorithm.name
    kind = load_algorithm(name) if name in REGISTRY else None
    for searched, one in sweep.keys.items():
        path = ("search", *searched.split("."))
        for value in one.examples:
            try:
                settings = load_settings(sweep.file, list(sweep.overrides_with({searched: value})))
            except SettingsError as error:
                said = error.problems[0]
            else:
                found = [] if kind is None else algorithm_problems(kind.Settings, settings.algorithm.table)
                own = [problem for problem in found if ".".join(map(str, problem.path)) == searched]
                said = f"{searched}: {own[0].message}" if own else ""
            if said:
                yield places.line(Problem(path, f"got {shown(value)} among its values, which is refused: {said}"))
                break
