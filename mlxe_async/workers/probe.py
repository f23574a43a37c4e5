"""What can be known of task and algorithm only by making them once, before anything is started."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from mlxe_async.choices import Choice, Known, by_table, chosen
from mlxe_async.errors import ResourceError, SettingsError, TaskError, raised_at
from mlxe_async.rows import RowLayout, Spaces, standard_columns
from mlxe_async.settings.schedules import left_to_defaults
from mlxe_async.tasks.measured import Measured
from mlxe_async.tasks.measuring import Limited, measured

Said = Mapping[str, Collection[str]]
OWN_LIMIT_S = 60.0  # to load an algorithm, which may import torch, and to build its network


class Page(Protocol):
    """Progress words, `ipc.shared.words.ProgressPage`."""

    def enter(self, limit_s: float, call: str) -> None:
        """A call that may hang begins."""

    def leave(self) -> None:
        """It returned."""


class Probe:
    """Builds environment and network once and reports spaces and sizes, or what is wrong with the settings.

    Args:
        settings: all settings in plain JSON types.
        page: progress words, by which the supervisor sees a call into foreign code that hangs.
        said: keys that people wrote, by table; of the others task and algorithm may have defaults. None: all
            of them, which nothing follows from a task for.
    """

    def __init__(self, settings: Mapping[str, Any], page: Page, said: Said | None = None) -> None:
        self._settings, self._said = settings, said
        self._page = page
        self._made: list[Any] = []
        schedule = settings["schedule"]
        self._limits = dict.fromkeys(("import", "make", "reset", "first step"), float(schedule["reset_timeout_s"]))
        self._limits["step"] = float(schedule["step_timeout_s"])
        self._limits["update"] = float(schedule["update_timeout_s"])

    def close(self) -> None:
        """Close what was tried out. The answer is known by now: an environment may take its time, or hang."""
        for vector in self._made:
            vector.close()

    def probe(self) -> dict[str, Any]:
        """The facts; or `{"task_error"}`, one sentence; or `{"problems"}`, each with `path` and `message`."""
        try:
            facts = _probe(self._settings, self._said, self._made, self._limited)
        except TaskError as error:
            return {"task_error": str(error)}
        except _Refused as error:
            found = [{"path": list(path), "message": message} for path, message in error.problems]
            return {"problems": found, **({"idle": error.idle} if error.idle else {})}
        self._settings = {**self._settings, "algorithm": {**self._settings["algorithm"], **facts["algorithm"]}}
        self._settings["task"] = {**self._settings["task"], **facts["defaults"].get("task", {})}
        return facts

    @contextlib.contextmanager
    def _limited(self, call: str) -> Iterator[None]:
        """A call into foreign code: the limits of the settings, and one for loading and building an algorithm."""
        self._page.enter(self._limits.get(call, OWN_LIMIT_S), "step" if call == "first step" else call)
        try:
            yield
        finally:
            self._page.leave()

    def rehearse(self, *, only_published: bool = False) -> dict[str, Any]:
        """Have the algorithm do one update on made-up rows, once `probe` has found nothing wrong.

        Args:
            only_published: refuse it only if executors would act by what is not published; whatever else it cannot do
                with such rows the run itself tells.

        Returns:
            Nothing, or `{"problems"}` as `probe` does.
        """
        from mlxe_async.workers.rehearsal import NotPublished, NoUpdate, rehearse

        name = self._settings["algorithm"]["name"]
        try:
            rehearse(self._settings, self._made[0], self._limited)
        except NoUpdate as error:
            if only_published and not isinstance(error, NotPublished):
                return {}
            message = f'"{name}" cannot learn: on made-up rows of this task\'s spaces, {error}'
            return {"problems": [{"path": ["algorithm", "name"], "message": message}]}
        return {}


class _Refused(Exception):
    def __init__(self, problems: list[tuple[tuple[str, ...], str]], idle: list[dict[str, Any]] | None = None) -> None:
        super().__init__("refused")
        self.problems = problems
        self.idle = idle or []


def _check_video(
    task: Mapping[str, Any], made: list[Any], limited: Callable[[str], contextlib.AbstractContextManager[None]]
) -> None:
    """Refuse videos of an environment that cannot be filmed, or without the package that writes them."""
    from mlxe_async.roles.videos import check

    try:
        with limited("make"):
            check(task, made)
    except (ResourceError, TaskError) as error:
        raise _Refused([(("evaluation", "video"), f"got true, but {error}")]) from error


def _about_algorithm(sentence: str) -> tuple[tuple[str, ...], str]:
    """The key that a sentence begins with, such as `algorithm.name: ...`, else the table; and the rest."""
    key, colon, rest = sentence.partition(": ")
    table, dot, field = key.partition(".")
    return (("algorithm", field), rest) if colon and dot and table == "algorithm" else (("algorithm",), sentence)


def _idle_in(algorithm_class: Any, table: dict[str, Any], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Keys of `[algorithm]` without effect.

    Raises:
        _Refused: it does not fit the algorithm's settings.
    """
    from mlxe_async.settings import algorithm_problems
    from mlxe_async.settings.effects import idle_in

    problems = algorithm_problems(algorithm_class.Settings, table)
    wrong = {problem.path for problem in problems}
    idle = [
        problem.to_json()
        for problem in idle_in(algorithm_class.Settings, table, settings)
        if problem.path not in wrong and problem.other not in wrong
    ]
    if problems:
        raise _Refused([(tuple(map(str, problem.path)), problem.message) for problem in problems], idle)
    return idle


class _Play:
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


def _chosen(
    settings: Mapping[str, Any],
    said: Said | None,
    fields: Collection[str],
    written: Mapping[str, Any],
    task: Mapping[str, Any],
    measure: Callable[[], Measured],
) -> list[Choice]:
    """Return the keys that follow from the task, of those that were not written."""
    if said is None:
        return []
    known = Known(
        algorithm=settings["algorithm"]["name"],
        fields=fields,
        written=written,
        spaces=Spaces.from_json(task["spaces"]),
        limit=task["max_episode_steps"],
        steps=settings.get("stop", {}).get("env_steps"),
        measure=measure,
    )
    return list(chosen(known, {**said, "algorithm": written.keys()}))


def _merged(defaults: Mapping[str, Any], more: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
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


def _written_out(algorithm_class: Any, made: Any) -> dict[str, Any]:
    """All keys of `[algorithm]` as plain values: every role, a resumed run and a loaded policy are made from them.

    Raises:
        _Refused: the same settings do not come of them.
    """
    from mlxe_async.settings.problems import shown

    kind = algorithm_class.Settings
    names = {*kind.model_fields, *(made.model_extra or {})}
    try:
        table = {key: value for key, value in made.model_dump(mode="json").items() if key in names}
        again = kind.model_validate({key: value for key, value in table.items() if value is not None})
    except ValueError as error:
        from mlxe_async.tasks.hostile import one_line

        message = (
            f"{kind.__name__} cannot be made again from its own values as they are written: {one_line(str(error))}"
        )
        raise _Refused([(("algorithm",), message)]) from error
    problems: list[tuple[tuple[str, ...], str]] = []
    for name in sorted(names):
        was, now = getattr(made, name), getattr(again, name, None)
        if repr(was) != repr(now):
            got, read = shown(was, name), shown(now, name)
            message = f"got {got}, which is read as {read} once {kind.__name__} has written it; expected the same again"
            problems.append((("algorithm", name), message))
    if problems:
        raise _Refused(problems)
    table.pop("name", None)
    return table


def _act_once(
    name: str, algorithm: Any, made: Sequence[Any], limited: Callable[[str], contextlib.AbstractContextManager[None]]
) -> None:
    """Have an algorithm of the user's own act on a first observation, so that a layer of a wrong width is told at once.

    Raises:
        _Refused: it raised.
    """
    import numpy as np

    from mlxe_async.algorithms import Acting
    from mlxe_async.errors import EnvironmentFault
    from mlxe_async.tasks.hostile import words_of

    try:
        with limited("reset"):
            obs = made[0].reset(0, seed=0)[None]
    except EnvironmentFault:  # now and then is no reason to refuse a task; the probe has seen it work
        return
    try:
        with limited("build"):
            algorithm.act(obs, np.random.default_rng(0), Acting().start(getattr(algorithm, "carry", ()), 1))
    except Exception as error:
        raised = f"{words_of(error)} ({raised_at(error, anywhere=True)})"
        shape = "x".join(map(str, obs.shape))
        message = f'"{name}" cannot act on observations {shape} of this task, it raised {raised}'
        raise _Refused([(("algorithm", "name"), message)]) from error


def _beside(
    settings: Mapping[str, Any], said: Said | None, defaults: Mapping[str, Any], spaces: Spaces
) -> dict[str, Any]:
    """All tables as they will be, with what the task's actions are: what keys of `[algorithm]` may depend on."""
    schedule = settings["schedule"]
    written = schedule.keys() if said is None else said.get("schedule", ())
    schedule = schedule | left_to_defaults(defaults.get("schedule", {}), schedule, written)
    return {**settings, "schedule": schedule, "task": {**settings["task"], "action_kind": spaces.action_kind}}


_WORDS = {"memory": ("rollouts", "replay"), "off_policy": ("ignores", "corrects", "learns")}
"""Attributes of an algorithm that are words -> those that are known; the first is what others are taken to say."""


def _probe(
    settings: Mapping[str, Any],
    said: Said | None,
    made: list[Any],
    limited: Limited,
) -> dict[str, Any]:
    from mlxe_async.algorithms import load_algorithm
    from mlxe_async.roles.memorizer import check_priorities
    from mlxe_async.settings.forms import with_whole_numbers
    from mlxe_async.settings.resuming import forbidden_fields
    from mlxe_async.tasks.probe import probe as probe_task

    name = settings["algorithm"]["name"]
    try:
        with limited("load"):
            algorithm_class = load_algorithm(name)
    except SettingsError as error:
        raise _Refused(
            [(("algorithm", "name"), line.removeprefix("algorithm.name: ")) for line in error.problems]
        ) from error
    written = with_whole_numbers(algorithm_class.Settings, settings["algorithm"])
    if "name" not in algorithm_class.Settings.model_fields:
        del written["name"]
    _idle_in(algorithm_class, written, settings)
    device = settings["learner"]["device"]
    if device.startswith("cuda"):
        import torch

        with limited("load"):
            is_usable = torch.cuda.is_available()
        if not is_usable:
            raise _Refused([(("learner", "device"), f'got "{device}", but torch finds no usable GPU here; try "cpu"')])
    task = probe_task(settings["task"], made, limited)
    if settings.get("evaluation", {}).get("video"):
        _check_video(settings["task"], made, limited)
    play, fields = _Play(made, limited), algorithm_class.Settings.model_fields
    choices = _chosen(settings, said, fields, written, task, play)
    by_tables = by_table(choices)
    if of_task := by_tables.get("task"):  # it shows other observations then, or ends elsewhere
        made.pop(0).close()
        task = {**probe_task(settings["task"] | of_task, made, limited), "notes": task["notes"]}
    spaces = Spaces.from_json(task["spaces"])
    try:
        with limited("build"):
            recommended = _merged(getattr(algorithm_class, "defaults", {}), by_tables)
            beside = _beside(settings, said, recommended, spaces)
            table = written | _with_chosen(algorithm_class, spaces, written, choices)
            if vain := {tuple(one["path"]) for one in _idle_in(algorithm_class, table, beside)}:
                choices = [choice for choice in choices if tuple(choice.key.split(".")) not in vain]
                table = written | _with_chosen(algorithm_class, spaces, written, choices)
            idle = _idle_in(algorithm_class, table, beside)
            algorithm_settings = algorithm_class.Settings.model_validate(table)
            algorithm = algorithm_class(algorithm_settings, spaces, seed=0, learns=False)
    except ValueError as error:
        from mlxe_async.tasks.hostile import one_line

        raise _Refused([_about_algorithm(one_line(str(error)))]) from error
    except _Refused:
        raise
    except Exception as error:
        from mlxe_async.tasks.hostile import words_of

        raised = f"{words_of(error)} ({raised_at(error, anywhere=True)})"
        message = f'"{name}" cannot be made for this task, its constructor raised {raised}'
        raise _Refused([(("algorithm", "name"), message)]) from error
    if ":" in name:
        _act_once(name, algorithm, made, limited)
    try:
        check_priorities(algorithm)
    except ValueError as error:
        raise _Refused([_about_algorithm(str(error))]) from error
    capacity = settings["memory"]["capacity_rows"]
    if algorithm.memory == "replay" and "batch" in table and capacity is not None and algorithm.batch_rows > capacity:
        message = f"got {algorithm.batch_rows}, expected at most memory.capacity_rows = {capacity}"
        raise _Refused([(("algorithm", "batch"), message)])
    for key, known in _WORDS.items():
        if (word := getattr(algorithm, key, known[0])) not in known:
            message = f'"{name}" says {key} = {word!r}, expected {", ".join(map(repr, known[:-1]))} or {known[-1]!r}'
            raise _Refused([(("algorithm", "name"), message)])
    columns = RowLayout(standard_columns(spaces)).with_columns(
        (*algorithm.extra_columns, *getattr(algorithm, "stop_columns", ()), *getattr(algorithm, "carry", ()))
    )
    odd = [column.name for column in columns.columns if column.per_rollout and algorithm.memory != "rollouts"]
    if odd:
        message = f'"{name}" keeps {", ".join(odd)} per rollout, expected memory = "rollouts" then'
        raise _Refused([(("algorithm", "name"), message)])
    return {
        "task": task,
        "spaces": spaces.to_json(),
        "algorithm": _written_out(algorithm_class, algorithm_settings),
        "defaults": _merged(getattr(algorithm, "defaults", {}), by_table(choices)),
        "chosen": [choice.to_json() for choice in choices],
        "measured": None if play.found is None else play.found.to_json(),
        "idle": idle,
        "stays": forbidden_fields(algorithm_class.Settings.model_fields),
        "memory_kind": algorithm.memory,
        "off_policy": getattr(algorithm, "off_policy", None),
        "bootstraps": getattr(algorithm, "bootstraps", True),
        "columns": columns.to_json(),
        "derived": RowLayout(tuple(algorithm.derived_columns)).to_json(),
        "window": algorithm.window,
        "batch_rows": algorithm.batch_rows,
        "rows_per_update": getattr(algorithm, "rows_per_update", 0),
        "largest_decay": algorithm.priorities.largest_decay if algorithm.memory == "replay" else 1.0,
        "prioritised": algorithm.memory == "replay" and algorithm.priorities.kind == "td",
        "moments": getattr(algorithm, "moment_entries", 0) if algorithm.memory == "replay" else 0,
        "parameters": [[name, list(shape)] for name, shape in algorithm.parameters],
        "network": getattr(algorithm, "words", ""),
    }
