"""What can be known of task and algorithm only by making them once, before anything is started."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from mlxe_async.choices import by_table
from mlxe_async.errors import ResourceError, SettingsError, TaskError, raised_at
from mlxe_async.rows import RowLayout, Spaces, standard_columns
from mlxe_async.tasks.measuring import Limited
from mlxe_async.workers.fitting import (
    Fit,
    Play,
    Refused,
    Said,
    about_algorithm,
    choices_for,
    idle_keys,
    made_for_this_task,
    merged,
)

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
        except Refused as error:
            found = [{"path": list(path), "message": message} for path, message in error.problems]
            return {"problems": found, **({"idle": error.idle} if error.idle else {})}
        self._settings = {**self._settings, "algorithm": {**self._settings["algorithm"], **facts["algorithm"]}}
        self._settings["task"] = {**self._settings["task"], **facts["defaults"].get("task", {})}
        return facts

    def advise(self) -> dict[str, Any]:
        """Say which algorithms fit the task, see `advising.advised`; or `{"task_error"}`, one sentence."""
        from mlxe_async.workers.advising import advised

        try:
            return advised(self._settings, self._said or {}, self._made, self._limited)
        except TaskError as error:
            return {"task_error": str(error)}

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

    def survey(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `workers.survey` finds, once an update has been rehearsed; or `{"failed"}`, a sentence.

        Args:
            settings: all of them, with the defaults that followed from `probe`.
        """
        from mlxe_async.tasks.hostile import words_of
        from mlxe_async.workers.survey import survey

        try:
            return survey(settings, self._made[0], self._limited)
        except Exception as error:  # noqa: BLE001 - foreign code may raise anything, and a check goes on without this
            place = raised_at(error, anywhere=True)
            return {"failed": f"{words_of(error)}{f' ({place})' if place else ''}"}


def _check_video(
    task: Mapping[str, Any], made: list[Any], limited: Callable[[str], contextlib.AbstractContextManager[None]]
) -> None:
    """Refuse videos of an environment that cannot be filmed, or without the package that writes them."""
    from mlxe_async.roles.videos import check

    try:
        with limited("make"):
            check(task, made)
    except (ResourceError, TaskError) as error:
        raise Refused([(("evaluation", "video"), f"got true, but {error}")]) from error


def _written_out(algorithm_class: Any, made: Any) -> dict[str, Any]:
    """All keys of `[algorithm]` as plain values: every role, a resumed run and a loaded policy are made from them.

    Raises:
        Refused: the same settings do not come of them.
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
        raise Refused([(("algorithm",), message)]) from error
    problems: list[tuple[tuple[str, ...], str]] = []
    for name in sorted(names):
        was, now = getattr(made, name), getattr(again, name, None)
        if repr(was) != repr(now):
            got, read = shown(was, name), shown(now, name)
            message = f"got {got}, which is read as {read} once {kind.__name__} has written it; expected the same again"
            problems.append((("algorithm", name), message))
    if problems:
        raise Refused(problems)
    table.pop("name", None)
    return table


def _act_once(
    name: str, algorithm: Any, made: Sequence[Any], limited: Callable[[str], contextlib.AbstractContextManager[None]]
) -> None:
    """Have an algorithm of the user's own act on a first observation, so that a layer of a wrong width is told at once.

    Raises:
        Refused: it raised.
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
        raise Refused([(("algorithm", "name"), message)]) from error


def _look_at_exploring(
    name: str,
    algorithm: Any,
    schedule: Mapping[str, Any],
    made: Sequence[Any],
    limited: Callable[[str], contextlib.AbstractContextManager[None]],
) -> None:
    """See that an algorithm acts by the temperature, or the epsilon, that executors have.

    Raises:
        Refused: it does not ask for it.
    """
    import numpy as np

    from mlxe_async.algorithms import Acting
    from mlxe_async.errors import EnvironmentFault

    temperatures, epsilons = schedule.get("temperature_by_executor"), schedule.get("epsilon_by_executor")
    what, key = ("temperature", temperatures) if temperatures else ("epsilon", epsilons)
    if not key:
        return
    try:
        with limited("reset"):
            obs = made[0].reset(0, seed=0)[None]
    except EnvironmentFault:  # see `_act_once`
        return
    acting = Acting().start(getattr(algorithm, "carry", ()), 1)
    with limited("build"):
        algorithm.act(obs, np.random.default_rng(0), acting)
        drawn = algorithm.policy(algorithm.observed(obs), Acting().start(algorithm.carry, 1)) if acting.asked else None
    if what in acting.asked and not (what == "temperature" and acting.asked & {"epsilon", "noise"}):
        if what == "epsilon" or hasattr(drawn, "tempered"):
            _look_at_distances(algorithm, key if what == "temperature" else ())
            return
        why = f"its policy gives a {type(drawn).__name__}, which has no tempered(temperature)"
    elif "epsilon" in acting.asked:
        why = "it explores by an epsilon: set schedule.epsilon_by_executor"
    elif "noise" in acting.asked:
        why = "it explores by noise in its weights"
    elif "temperature" in acting.asked:
        why = "it has no epsilon: set schedule.temperature_by_executor"
    else:
        why = "it acts in a way of its own, which asks for neither"
    message = f'got {key}, expected none with algorithm.name = "{name}": {why}'
    raise Refused([(("schedule", f"{what}_by_executor"), message)])


def _look_at_distances(algorithm: Any, temperatures: Sequence[float]) -> None:
    """See that an update is not bounded by a distance that temperatures make.

    Raises:
        Refused: it is.
    """
    if all(one == 1 for one in temperatures):
        return
    for name in getattr(algorithm, "near_behaviour", ()):
        if bound := getattr(algorithm.settings, name):
            told = f"got {bound:g}, expected 0 with schedule.temperature_by_executor = {list(temperatures)}"
            raise Refused([(("algorithm", name), f"{told}: such rows are at a distance from the policy at first")])


def _look_for_task(task: Mapping[str, Any], refused: Refused, limited: Limited) -> None:
    """Tell a task that there is not beside what else is refused."""
    from mlxe_async.tasks.making import find_spec

    if task["vectorize"] == "envpool":
        return
    try:
        with limited("import"):
            find_spec(task["env"])
    except TaskError as error:
        key, _, sentence = str(error).partition(": ")
        if key == "task.env":
            refused.problems.append((("task", "env"), sentence))


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
        raise Refused(
            [(("algorithm", "name"), line.removeprefix("algorithm.name: ")) for line in error.problems]
        ) from error
    written = with_whole_numbers(algorithm_class.Settings, settings["algorithm"])
    if "name" not in algorithm_class.Settings.model_fields:
        del written["name"]
    try:
        idle_keys(algorithm_class, written, settings)
    except Refused as refused:
        _look_for_task(settings["task"], refused, limited)
        raise
    device = settings["learner"]["device"]
    if device.startswith("cuda"):
        import torch

        with limited("load"):
            is_usable = torch.cuda.is_available()
        if not is_usable:
            raise Refused([(("learner", "device"), f'got "{device}", but torch finds no usable GPU here; try "cpu"')])
    task = probe_task(settings["task"], made, limited)
    if task["keeps_state"] and settings["run"].get("record"):
        message = "got true, expected false: which state of a wrapper an episode began with is not recorded"
        raise Refused([(("run", "record"), message)])
    if settings.get("evaluation", {}).get("video"):
        _check_video(settings["task"], made, limited)
    play = Play(made, limited)
    choices = choices_for(settings, said, algorithm_class, written, task, play)
    if of_task := by_table(choices).get("task"):  # it shows other observations then, or ends elsewhere
        made.pop(0).close()
        task = {**probe_task(settings["task"] | of_task, made, limited), "notes": task["notes"]}
    spaces = Spaces.from_json(task["spaces"])
    with limited("build"), made_for_this_task(name):
        fit = Fit.of(settings, said, algorithm_class, written, spaces, choices)
        algorithm_settings = algorithm_class.Settings.model_validate(fit.table)
        algorithm = algorithm_class(algorithm_settings, spaces, seed=0, learns=False)
    if ":" in name:
        _act_once(name, algorithm, made, limited)
    _look_at_exploring(name, algorithm, settings["schedule"], made, limited)
    try:
        check_priorities(algorithm)
    except ValueError as error:
        raise Refused([about_algorithm(str(error))]) from error
    capacity = settings["memory"]["capacity_rows"]
    if (
        algorithm.memory == "replay"
        and "batch" in fit.table
        and capacity is not None
        and algorithm.batch_rows > capacity
    ):
        message = f"got {algorithm.batch_rows}, expected at most memory.capacity_rows = {capacity}"
        raise Refused([(("algorithm", "batch"), message)])
    schedule = settings["schedule"]
    if schedule.get("gradients") == "executors" and schedule["kind"] != "oa" and algorithm.memory == "replay":
        workers = schedule["executors"] - schedule.get("exploit_only", 0)
        if (least := workers * max(1, algorithm.window)) > algorithm.batch_rows and "batch" in fit.table:
            each = f"a sample of {algorithm.window} rows" if algorithm.window > 1 else "a row"
            message = f"got {algorithm.batch_rows}, expected at least {least}: {each} for each of {workers} executors"
            raise Refused([(("algorithm", "batch"), message)])
    for key, known in _WORDS.items():
        if (word := getattr(algorithm, key, known[0])) not in known:
            message = f'"{name}" says {key} = {word!r}, expected {", ".join(map(repr, known[:-1]))} or {known[-1]!r}'
            raise Refused([(("algorithm", "name"), message)])
    columns = RowLayout(standard_columns(spaces)).with_columns(
        (*algorithm.extra_columns, *getattr(algorithm, "stop_columns", ()), *getattr(algorithm, "carry", ()))
    )
    odd = [column.name for column in columns.columns if column.per_rollout and algorithm.memory != "rollouts"]
    if odd:
        message = f'"{name}" keeps {", ".join(odd)} per rollout, expected memory = "rollouts" then'
        raise Refused([(("algorithm", "name"), message)])
    return {
        "task": task,
        "spaces": spaces.to_json(),
        "algorithm": _written_out(algorithm_class, algorithm_settings),
        "defaults": merged(getattr(algorithm, "defaults", {}), by_table(fit.choices)),
        "chosen": [choice.to_json() for choice in fit.choices],
        "measured": None if play.found is None else play.found.to_json(),
        "idle": fit.idle,
        "stays": forbidden_fields(algorithm_class.Settings.model_fields),
        "memory_kind": algorithm.memory,
        "off_policy": getattr(algorithm, "off_policy", None),
        "bootstraps": getattr(algorithm, "bootstraps", True),
        "has_gradients": getattr(algorithm, "has_gradients", True),
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
