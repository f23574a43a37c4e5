"""A suite within `compare`: its plan, the levels of its tasks, and the report over all of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxe_async.analysis.outcomes import Outcome
from mlxe_async.analysis.study import Arm, Plan, StudyFolder
from mlxe_async.analysis.suites import (
    Level,
    Result,
    Results,
    level_table,
    profile_rows,
    profiles,
    result,
    return_table,
    suite_table,
)
from mlxe_async.analysis.tables import Table
from mlxe_async.cli.console import Console
from mlxe_async.errors import EnvironmentFault, ResourceError, RunFailed, SettingsError, TaskError
from mlxe_async.settings import Settings, load_settings
from mlxe_async.settings.suites import Entry, Suite, SuiteTask
from mlxe_async.storage import json_checks
from mlxe_async.storage.files import make_folder, read_bounded
from mlxe_async.storage.safe_text import visible

SUITE, SETTINGS, PROFILE = "suite.json", "settings", "profile.csv"
_LONGEST = 8 * 2**20
_NOT_FOR_SUITES = ("vary", "retention", "baselines", "d2", "thresholds")
_LEVEL = json_checks.table({"random": json_checks.number, "reference": json_checks.number, "told": json_checks.text})
_ABOUT = json_checks.table(
    {
        "score": json_checks.text,
        "levels": json_checks.by_name(_LEVEL),
        "arms": json_checks.by_name(json_checks.list_of(json_checks.text)),
    }
)


def plan_of(
    suite: Suite, source: str, folder: Path, overrides: Sequence[str], seeds: Sequence[int] | None, keys: Any
) -> tuple[Plan, list[Settings]]:
    """The plan of a suite: an arm for each task with each algorithm, whose settings files are yet to be written.

    Args:
        suite: what is asked for.
        source: its file.
        folder: of the study.
        overrides: of the command line, for all arms.
        seeds: of the command line; None: those of the suite.
        keys: the hash of a settings file's content, overrides and settings.

    Raises:
        SettingsError: an override does not fit.
    """
    arms, settings = [], []
    for entry in suite.entries:
        one = entry.settings if not overrides else load_settings(_raw(entry), overrides)
        file = str((folder / SETTINGS / f"{entry.name}.toml").absolute())
        arms.append(Arm(entry.name, file, tuple(overrides), keys(entry.text.encode(), overrides, one)))
        settings.append(one)
    chosen = suite.file.suite.seeds if seeds is None else seeds
    return Plan(tuple(arms), tuple(chosen), suite=str(Path(source).absolute())), settings


def refuse_others(asked: Any, source: str) -> None:
    """Refuse what makes no sense with a suite.

    Raises:
        SettingsError: something of it was asked for.
    """
    told = []
    if len(asked.sources) > 1:
        told.append(f"{visible(source, 200)}: got further files or runs too, expected a suite alone")
    others = (name for name in _NOT_FOR_SUITES if getattr(asked, name))
    told += [f"--{name}: got it with a suite, expected it with settings files" for name in others]
    if told:
        raise SettingsError(told)


def prepare(kept: StudyFolder, suite: Suite, console: Console) -> None:
    """Write the arms' settings files and what the suite's report needs; measures levels that are left out.

    Raises:
        SettingsError: a task has no reference, or random play of it cannot be measured.
        ResourceError: the folder cannot be written to.
    """
    try:
        make_folder(kept.path / SETTINGS)
    except OSError as error:
        raise ResourceError(f"{kept.path / SETTINGS} cannot be made: {error.strerror}") from error
    for entry in suite.entries:
        kept.write(f"{SETTINGS}/{entry.name}.toml", entry.text)
    by_task = {entry.task: entry.settings for entry in reversed(suite.entries)}
    known = _measured_before(kept)
    levels, measured = {}, {}
    for name, task in suite.file.tasks.items():
        table = by_task[name].task.model_dump(mode="json")
        if task.random is None and (found := known.get(name)) is not None and found.get("task") == table:
            random, told = float(found["random"]), str(found["told"])
        else:
            random, told = _random(name, task, by_task[name], console)
        if task.random is None:
            measured[name] = {"task": table, "random": random, "told": told}
        reference, named = _reference(name, task, by_task[name])
        if random >= reference:
            reached = f"random play reaches {random:g}, which is no less than the reference, {reference:g}"
            raise SettingsError([f"tasks.{name}: {reached}: write a higher reference"])
        levels[name] = {"random": random, "reference": reference, "told": f"{told}; {named}"}
    about = {
        "score": suite.file.suite.score,
        "levels": levels,
        "arms": {entry.name: [entry.task, entry.algorithm] for entry in suite.entries},
        "measured": measured,
    }
    kept.write(SUITE, json.dumps(about, indent=1) + "\n")


def report(kept: StudyFolder, outcomes: Sequence[Outcome], *, with_pictures: bool) -> list[Table]:
    """The tables of a suite over all its tasks; the profile's data and the pictures are written.

    Raises:
        RunFailed: the suite's own file is damaged.
    """
    about = _about(kept)
    levels = {name: Level(one["random"], one["reference"], one["told"]) for name, one in about["levels"].items()}
    results, groups = _results(about, outcomes)
    if not results:
        return []
    found = profiles(results, levels)
    kept.write(PROFILE, profile_rows(found))
    if with_pictures:
        from mlxe_async.analysis.suite_pictures import profile_picture, task_pictures

        counts = {name: sum(map(len, of_tasks.values())) for name, of_tasks in results.items()}
        pictures = [profile_picture(found, counts)]
        for task in levels:
            pictures += task_pictures(task, {name: groups[task, name] for name in results})
        for picture in pictures:
            kept.write(f"{picture.name}.svg", picture.svg)
            kept.write(f"{picture.name}.png", picture.png)
    return [suite_table(results, levels), return_table(results, levels), level_table(levels)]


def _results(
    about: Mapping[str, Any], outcomes: Sequence[Outcome]
) -> tuple[Results, dict[tuple[str, str], list[Outcome]]]:
    """Runs by algorithm and task, and the outcomes by task and algorithm; none where a pair has no run yet."""
    groups: dict[tuple[str, str], list[Outcome]] = {
        (task, algorithm): sorted((one for one in outcomes if one.name == name), key=lambda one: one.seed)
        for name, (task, algorithm) in about["arms"].items()
    }
    if not all(groups.values()):
        return {}, groups
    results: dict[str, dict[str, list[Result]]] = {}
    for (task, algorithm), members in groups.items():
        results.setdefault(algorithm, {})[task] = [result(one, about["score"]) for one in members]
    return results, groups


def _about(kept: StudyFolder) -> dict[str, Any]:
    path = kept.path / SUITE
    try:
        record = json.loads(read_bounded(path, _LONGEST))
        _ABOUT(SUITE, {key: record[key] for key in ("score", "levels", "arms")})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFailed(f"{path} cannot be read ({error}): run the suite's command again, it is made anew") from error
    return dict(record)


def _measured_before(kept: StudyFolder) -> dict[str, Any]:
    try:
        return dict(json.loads(read_bounded(kept.path / SUITE, _LONGEST))["measured"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # it is measured anew


def _raw(entry: Entry) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(entry.text)


def _random(name: str, task: SuiteTask, settings: Settings, console: Console) -> tuple[float, str]:
    if task.random is not None:
        return task.random, "random play as written"
    from mlxe_async.analysis.baselines import random_play

    sys.path += [str(path) for path in settings.run.python_path if str(path) not in sys.path]
    table = {**settings.task.model_dump(), "vectorize": "single"}
    try:
        value, episodes = random_play(table)
    except (TaskError, EnvironmentFault) as error:
        said = visible(str(error), 300)
        raise SettingsError([f"tasks.{name}.random: it cannot be measured, write it: {said}"]) from error
    told = f"random play measured by {episodes} episodes"
    console.line(f"{name}: {told}: {value:,.4g}")
    return value, told


def _reference(name: str, task: SuiteTask, settings: Settings) -> tuple[float, str]:
    if task.reference is not None:
        return task.reference, "reference as written"
    from mlxe_async.tasks.sources import spec_of

    threshold = spec_of(settings.task).reward_threshold
    if threshold is None:
        why = f"{settings.task.env} is registered without a threshold"
        raise SettingsError([f"tasks.{name}.reference: got nothing, and {why}: write it"])
    return float(threshold), "reference: the registered threshold"
