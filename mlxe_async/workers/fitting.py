"""Settings of an algorithm as they fit a task: its keys, those that follow from the task, and those without effect."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mlxe_async.choices import Choice, Known, by_table, chosen
from mlxe_async.errors import raised_at
from mlxe_async.rows import Spaces
from mlxe_async.settings.model import ROWS_PER_EXECUTOR
from mlxe_async.settings.schedules import left_to_defaults
from mlxe_async.tasks.measured import Measured
from mlxe_async.tasks.measuring import Limited, measured

Said = Mapping[str, Collection[str]]
"""Keys that people wrote, by table."""


class Refused(Exception):
    """An algorithm does not fit; `problems` are keys, each with a sentence, and `idle` keys without effect."""

    def __init__(self, problems: list[tuple[tuple[str, ...], str]], idle: list[dict[str, Any]] | None = None) -> None:
        super().__init__("refused")
        self.problems = problems
        self.idle = idle or []


def about_algorithm(sentence: str) -> tuple[tuple[str, ...], str]:
    """The key that a sentence begins with, such as `algorithm.name: ...`, else the table; and the rest."""
    key, colon, rest = sentence.partition(": ")
    table, dot, field = key.partition(".")
    return (("algorithm", field), rest) if colon and dot and table == "algorithm" else (("algorithm",), sentence)


def idle_keys(algorithm_class: Any, table: dict[str, Any], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Keys of `[algorithm]` without effect.

    Raises:
        Refused: it does not fit the algorithm's settings.
    """
    from mlxe_async.settings import algorithm_problems
    from mlxe_async.settings.effects import idle_in
    from mlxe_async.settings.loading import written_in

    problems = algorithm_problems(
        algorithm_class.Settings,
        table,
        written_in({**settings, "algorithm": {"name": settings["algorithm"]["name"], **table}}),
    )
    wrong = {problem.path for problem in problems}
    idle = [
        problem.to_json()
        for problem in idle_in(algorithm_class.Settings, table, settings)
        if problem.path not in wrong and problem.other not in wrong
    ]
    if problems:
        raise Refused([(tuple(map(str, problem.path)), problem.message) for problem in problems], idle)
    return idle


class Play:
    """Random play, done once and only when it is asked for.

    Args:
        made: environments, the one that is played first.
        limited: entered around each call into their code.
    """

    def __init__(self, made: list[Any], limited: Limited) -> None:
        self._made, self._limited = made, limited
        self.found: Measured | None = None

    def __call__(self) -> Measured:
        """The facts."""
        if self.found is None:
            self.found = measured(self._made[0], self._limited)
        return self.found


def choices_for(
    settings: Mapping[str, Any],
    said: Said | None,
    algorithm_class: Any,
    written: Mapping[str, Any],
    task: Mapping[str, Any],
    play: Play,
) -> list[Choice]:
    """Return the keys that follow from the task, of those that were not written."""
    if said is None:
        return []
    known = Known(
        algorithm=settings["algorithm"]["name"],
        fields=algorithm_class.Settings.model_fields,
        written=written,
        spaces=Spaces.from_json(task["spaces"]),
        limit=task["max_episode_steps"],
        may_be_turned=settings["task"].get("vectorize", "single") not in ("native", "auto"),
        executors=settings["schedule"].get("executors", 1),
        steps=settings.get("stop", {}).get("env_steps"),
        measure=play,
        history=settings["task"].get("history", 1),
        usual_rows=_usual_rows(algorithm_class, settings["schedule"].get("executors", 1)),
        is_tempered=any(one != 1 for one in settings["schedule"].get("temperature_by_executor") or ()),
    )
    return list(chosen(known, {**said, "algorithm": written.keys()}))


def _usual_rows(algorithm_class: Any, executors: int) -> int:
    """Rows that a memory has by default, of a class that replays rows however old and does not say how many; else 0."""
    told = getattr(algorithm_class, "defaults", {}).get("memory", {})
    kind = getattr(algorithm_class, "memory", ""), getattr(algorithm_class, "off_policy", "")
    return ROWS_PER_EXECUTOR * executors if kind == ("replay", "learns") and "capacity_rows" not in told else 0


def merged(defaults: Mapping[str, Any], more: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Defaults by table, with those of the task over an algorithm's own; `[algorithm]` is told apart from them."""
    tables = {*defaults, *more} - {"algorithm"}
    return {table: {**defaults.get(table, {}), **more.get(table, {})} for table in sorted(tables)}


def _defaults_for(algorithm_class: Any, spaces: Spaces, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that an algorithm has for this task."""
    follow = getattr(algorithm_class, "defaults_for", None)
    return (
        {} if follow is None else {key: value for key, value in follow(spaces, written).items() if key not in written}
    )


def _with_chosen(
    algorithm_class: Any, spaces: Spaces, written: Mapping[str, Any], choices: list[Choice]
) -> dict[str, Any]:
    """Return the keys of `[algorithm]` that follow from the task: those of rules, and an algorithm's own."""
    own = by_table(choices).get("algorithm", {})
    return {**_defaults_for(algorithm_class, spaces, {**written, **own}), **own}


def _beside(
    settings: Mapping[str, Any], said: Said | None, defaults: Mapping[str, Any], spaces: Spaces
) -> dict[str, Any]:
    """All tables as they will be, with what the task's actions are: what keys of `[algorithm]` may depend on."""
    schedule = settings["schedule"]
    written = schedule.keys() if said is None else said.get("schedule", ())
    schedule = schedule | left_to_defaults(defaults.get("schedule", {}), schedule, written)
    return {**settings, "schedule": schedule, "task": {**settings["task"], "action_kind": spaces.action_kind}}


@dataclass(frozen=True)
class Fit:
    """The `[algorithm]` table for a task.

    Args:
        table: keys that were written, and those that follow from the task.
        idle: keys without effect, as problems in plain types.
        choices: the keys that rules set, without those that have no effect.
    """

    table: dict[str, Any]
    idle: list[dict[str, Any]]
    choices: list[Choice]

    @classmethod
    def of(
        cls,
        settings: Mapping[str, Any],
        said: Said | None,
        algorithm_class: Any,
        written: Mapping[str, Any],
        spaces: Spaces,
        choices: list[Choice],
    ) -> Fit:
        """Find it.

        Raises:
            Refused: the keys do not fit the algorithm's settings.
        """
        recommended = merged(getattr(algorithm_class, "defaults", {}), by_table(choices))
        beside = _beside(settings, said, recommended, spaces)
        table = {**written, **_with_chosen(algorithm_class, spaces, written, choices)}
        if vain := {tuple(one["path"]) for one in idle_keys(algorithm_class, table, beside)}:
            choices = [choice for choice in choices if tuple(choice.setting.split(".")) not in vain]
            table = {**written, **_with_chosen(algorithm_class, spaces, written, choices)}
        return cls(table, idle_keys(algorithm_class, table, beside), choices)


@contextlib.contextmanager
def made_for_this_task(name: str) -> Iterator[None]:
    """Refuse an algorithm that cannot be made, in its own words.

    Args:
        name: of the algorithm.

    Raises:
        Refused: the block raised.
    """
    try:
        yield
    except ValueError as error:
        from mlxe_async.tasks.hostile import one_line

        raise Refused([about_algorithm(one_line(str(error)))]) from error
    except Refused:
        raise
    except Exception as error:
        from mlxe_async.tasks.hostile import words_of

        raised = f"{words_of(error)} ({raised_at(error, anywhere=True)})"
        message = f'"{name}" cannot be made for this task, its constructor raised {raised}'
        raise Refused([(("algorithm", "name"), message)]) from error
