"""Load a TOML file and `--set` into a checked tree of settings, or tell every problem at once, each with its place."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from mlxe_async.errors import SettingsError
from mlxe_async.settings.effects import built_in, idle, idle_in, is_certain, refused_and_remarks
from mlxe_async.settings.forms import as_registered, with_whole_numbers
from mlxe_async.settings.model import AlgorithmTable, Settings
from mlxe_async.settings.places import BY_HAND, Places
from mlxe_async.settings.problems import (
    REMOVED,
    Path,
    Problem,
    describe,
    did_you_mean,
    dotted,
    dropped,
    expected_at,
    path_of,
    shown,
)
from mlxe_async.settings.reading import MAXIMUM_BYTES, Unreadable, read_toml
from mlxe_async.settings.rules import contradictions, not_plain
from mlxe_async.settings.schedules import SCHEDULES
from mlxe_async.settings.synonyms import SYNONYMS
from mlxe_async.settings.toml_places import MAXIMUM_KEY_PARTS, TooMuch, find_places
from mlxe_async.settings.translating import Written, answer, fields_of_all
from mlxe_async.storage.files import PLAIN_NAME, is_file
from mlxe_async.storage.safe_text import visible

MAXIMUM_SHOWN = 50
_NAME_ELSEWHERE = tuple(name for name, keys in SYNONYMS.items() if keys == ("algorithm.name",))

_SET = re.compile(r"(?P<key>[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)=(?P<value>.*)", re.ASCII | re.DOTALL)

Overrides = Sequence[str] | Mapping[str, Any]


def load_settings(
    source: str | os.PathLike[str] | Mapping[str, Any], overrides: Overrides = (), *, of_run: bool = False
) -> Settings:
    """Read, override and check settings.

    Args:
        source: the path of a TOML file, or the same tree as nested mappings.
        overrides: `["a.b=VALUE", ...]` as on the command line, VALUE being TOML or else a text, or `{"a.b": value}`.
        of_run: the file was written by a run, defaults and all: its keys without effect are not the user's words.

    Raises:
        SettingsError: with one line per problem: place, key, got, expected, and a guess at what was meant.
    """
    lines: list[str] = []
    raw: dict[str, Any] = {}
    lines_of: dict[Path, int] = {}
    label, base = BY_HAND, FilePath.cwd()
    try:
        if isinstance(source, Mapping):
            raw = _copied(source)
        else:
            label, base = visible(os.fspath(source)), FilePath(source).parent.absolute()
            raw, lines_of = read_toml(source, label)
    except Unreadable as error:
        lines.append(str(error))
    places: dict[Path, str] = {path: f"{label}:{line}" for path, line in lines_of.items()}
    written = {} if of_run else dict.fromkeys(_keys(raw), False)
    for place, path, value in _overridden(overrides, lines):
        written = {known: by_set for known, by_set in written.items() if known[: len(path)] != path}
        written |= dict.fromkeys(_keys_at(path, value), True)
        _put(raw, places, place, path, value, lines)
    if lines and not raw:
        raise SettingsError(lines)
    if of_run:
        _take_out_removed(raw)
    _name_after_file(raw, source)
    where = Places(label, places, written, list(_of_other_kinds(raw, written)))
    problems = _check(raw, where, of_run=of_run)
    problems += _resolve_python_path(raw, base)
    problems += _resolve_data(raw, base, must_exist=not of_run)
    if problems or lines:
        ordered = sorted(problems, key=lambda problem: lines_of.get(_written(problem.path, lines_of), 0))
        raise SettingsError(_bounded(lines + [where.line(problem) for problem in ordered]))
    settings = Settings.model_validate(raw)
    where.automatic = settings.places.automatic
    settings._places = where  # the loader alone knows where each key was written
    return settings


def written_in(source: str | os.PathLike[str] | Mapping[str, Any], overrides: Overrides = ()) -> Written:
    """Return what a file and overrides say, unchecked; nothing where it cannot be read."""
    try:
        return _written_as(_placed(source, overrides)[0])
    except Unreadable:
        return _written_as({})


def env_in(source: str | os.PathLike[str] | Mapping[str, Any], overrides: Overrides = ()) -> tuple[str, str]:
    """Return the id that `task.env` says and the place where it does, unchecked; empty where gymnasium has no say."""
    try:
        raw, places = _placed(source, overrides)
    except Unreadable:
        return "", ""
    task = raw.get("task")
    env = task.get("env") if isinstance(task, Mapping) and task.get("vectorize") != "envpool" else ""
    return (env, places.of(("task", "env"))) if isinstance(env, str) else ("", "")


def _placed(source: str | os.PathLike[str] | Mapping[str, Any], overrides: Overrides) -> tuple[dict[str, Any], Places]:
    """Return what a file and overrides say, unchecked, and where.

    Raises:
        Unreadable: it gives no values.
    """
    label = BY_HAND if isinstance(source, Mapping) else visible(os.fspath(source))
    raw, lines_of = (_copied(source), {}) if isinstance(source, Mapping) else read_toml(source, label)
    places = {path: f"{label}:{line}" for path, line in lines_of.items()}
    for place, path, value in _overridden(overrides, []):
        _put(raw, places, place, path, value, [])
    return raw, Places(label, places)


def _form(algorithm: str, key: str) -> str:
    """Say in words what a key may be, one of an algorithm's among them."""
    table, _, name = key.partition(".")
    if table != "algorithm":
        return expected_at(Settings, path_of(key))
    kind = built_in(algorithm)
    return "" if kind is None else expected_at(kind.Settings, (name,))


def is_accepted(tree: Mapping[str, Any], overrides: Overrides = ()) -> bool:
    """Tell if settings are accepted, those of a built-in algorithm too, as far as that is known before the probe.

    Args:
        tree: nested mappings.
        overrides: as for `load_settings`.
    """
    raw, lines = _copied(tree), list[str]()
    written = dict.fromkeys(_keys(raw), False)
    for place, path, value in _overridden(overrides, lines):
        written |= dict.fromkeys(_keys_at(path, value), True)
        _put(raw, {}, place, path, value, lines)
    where = Places("", {}, written, list(_of_other_kinds(raw, written)))
    try:
        settings = Settings.model_validate(raw)
    except ValidationError:
        return False
    if lines or any(contradictions(settings)) or _without_effect(settings, where):
        return False
    table, kind = {key: value for key, value in settings.algorithm.table.items() if key != "name"}, None
    if ":" not in settings.algorithm.name and (kind := built_in(settings.algorithm.name)) is None:
        return False
    if kind is None:
        return True
    if table.keys() - kind.Settings.model_fields.keys() or list(not_plain(("algorithm",), table)):
        return False
    try:
        kind.Settings.model_validate_json(json.dumps(with_whole_numbers(kind.Settings, table)), strict=True)
    except ValidationError:
        return False
    if any(problem.path[1] in table for problem in idle_in(kind.Settings, table)):
        return False
    # Rollouts of an older policy are refused by the probe, unless they are corrected for, or none is older.
    is_blind = kind.memory == "rollouts" and kind.off_policy == "ignores" and not table.get("clip")
    schedule = settings.schedule
    return not (is_blind and schedule.kind == "oa" and schedule.gradients == "learner" and schedule.max_policy_lag != 0)


def algorithm_problems(
    model: type[BaseModel], table: Mapping[str, Any], written: Written | None = None
) -> list[Problem]:
    """Return what an algorithm's own `Settings` say about the `[algorithm]` table; an empty list means it is fine.

    As strict as the rest of the tree, whatever the model's own configuration: `true` is no number, NaN is refused, and
    so is a key that the model does not know, unless it says `extra="allow"`.
    `name` is only passed on to models that have such a field: it has been used to find the model.

    Args:
        model: of the algorithm.
        table: as it was written.
        written: all settings, by which names of other packages are told; left out, this table alone.
    """
    written = written or _written_as({"algorithm": dict(table)})
    fields = {key: value for key, value in table.items() if key != "name" or key in model.model_fields}
    fields = with_whole_numbers(model, fields)
    found = list(not_plain(("algorithm",), fields))
    if found:
        return found
    found = list(dropped(fields, model, ("algorithm",), written))
    try:
        model.model_validate_json(json.dumps(fields), strict=True)  # JSON's lists may become tuples, TOML's too
    except ValidationError as error:
        found += describe(error, model, ("algorithm",), written)
    order = list(fields)
    return sorted(found, key=lambda p: order.index(p.path[1]) if p.path[1:] and p.path[1] in order else len(order))


def _check(raw: dict[str, Any], places: Places, *, of_run: bool) -> list[Problem]:
    try:
        settings = Settings.model_validate(raw)
    except ValidationError as error:
        problems = describe(error, Settings, (), _written_as(raw))
    else:
        problems = list(contradictions(settings)) or _without_effect(settings, places)
        from mlxe_async.algorithms import is_algorithm  # brings numpy, for which no other mistake waits

        if not problems and (of_run or is_algorithm(settings.algorithm.name)):
            return []  # what is wrong with [algorithm] the probe tells
    return _once(problems) + _contradictions_beside(raw, problems, places) + _of_the_algorithm(raw, problems)


def _once(problems: list[Problem]) -> list[Problem]:
    """Leave out a key that is missing where another one is answered with it."""
    named = " ".join(problem.message for problem in problems)
    return [
        problem
        for problem in problems
        if not (problem.message.startswith("got nothing,") and f"expected {dotted(problem.path)}, as it is" in named)
    ]


def _named(raw: Mapping[str, Any]) -> str:
    """The algorithm that is meant, by our key or by one of another package's; empty where none is written."""
    table = raw.get("algorithm")
    keys = table if isinstance(table, Mapping) else raw
    name = next((keys[key] for key in ("name", *_NAME_ELSEWHERE) if isinstance(keys.get(key), str)), "")
    return as_registered(table if isinstance(table, str) else name)


def _written_as(raw: Mapping[str, Any]) -> Written:
    """Gather what is known of settings, to tell what a name of another package is in them."""
    if raw and not _named(raw):
        return Written(raw, str(AlgorithmTable.model_fields["name"].default), is_accepted, _form)
    from mlxe_async.algorithms import is_algorithm, meant_by

    name = _named(raw) or (str(AlgorithmTable.model_fields["name"].default) if raw else "")
    return Written(raw, name if is_algorithm(name) else meant_by(name)[0], is_accepted, _form)


def _of_the_algorithm(raw: Mapping[str, Any], problems: list[Problem]) -> list[Problem]:
    """Judge the keys of a built-in algorithm, so that what is wrong is told beside all else."""
    table = raw.get("algorithm")
    if not isinstance(table, dict):
        return []
    from mlxe_async.algorithms import is_algorithm

    if not table.keys() - {"name"} and is_algorithm(_named(raw)):
        return []
    name = _named(raw) or str(AlgorithmTable.model_fields["name"].default)
    told = {problem.path for problem in problems} | {("algorithm",)}  # of keys together the probe tells
    if not is_algorithm(name):
        return [problem for problem in _of_no_algorithm(name, table, _written_as(raw)) if problem.path not in told]
    kind = built_in(name)
    found = [] if kind is None else algorithm_problems(kind.Settings, table, _written_as(raw))
    return [problem for problem in found if problem.path not in told]


def _of_no_algorithm(name: str, table: Mapping[str, Any], written: Written) -> Iterator[Problem]:
    """Tell that there is no such algorithm, and keys of its table that no built-in one has under this name."""
    from mlxe_async.algorithms import unknown_algorithm

    if "name" in table:
        yield Problem(("algorithm", "name"), unknown_algorithm(name))
    known = fields_of_all()
    for key, value in table.items():
        if key == "name" or key in known:
            continue
        found = answer(key, value, written)
        own = f", expected a key of an algorithm{did_you_mean(key, known)}"
        yield Problem(("algorithm", key), f"got {shown(value, key)}{found.in_file if found else own}")


def _without_effect(settings: Settings, places: Places, *, is_named: bool = True) -> list[Problem]:
    """Keys without effect that are refused, as far as that can be known without the probe."""
    return refused_and_remarks([p for p in idle(settings, is_named=is_named) if is_certain(p, places)], places)[0]


def _contradictions_beside(raw: dict[str, Any], problems: list[Problem], places: Places) -> list[Problem]:
    """Contradictions and keys without effect among those that are fine: judged once nothing else is wrong."""
    if any(problem.other for problem in problems):
        return []
    pruned = _copied(raw)
    for problem in problems:
        _prune(pruned, problem.path)
    if not isinstance(pruned.get("task"), dict):
        pruned["task"] = {}
    pruned["task"].setdefault("env", "CartPole-v1")
    wrong = {problem.path for problem in problems}
    try:
        settings = Settings.model_validate(pruned)
        is_named = "name" in pruned.get("algorithm", {})
        found = list(contradictions(settings)) or _without_effect(settings, places, is_named=is_named)
    except ValidationError as error:
        found = describe(error, Settings)
    return [p for p in found if p.path not in wrong and p.other not in wrong]


def _of_other_kinds(raw: dict[str, Any], written: Mapping[Path, bool]) -> Iterator[str]:
    """Take keys of another kind of schedule out where an override chose this one; a remark on each."""
    schedule = raw.get("schedule")
    if not isinstance(schedule, dict) or not written.get(("schedule", "kind")):
        return
    kinds = {model: get_args(model.model_fields["kind"].annotation) for model in SCHEDULES}
    chosen = next((model for model, kind in kinds.items() if schedule["kind"] in kind), None)
    if chosen is None:
        return
    for key in [key for key in schedule if not written.get(("schedule", key))]:
        known = any(key in model.model_fields for model in SCHEDULES)
        if known and key not in chosen.model_fields:
            del schedule[key]
            switch = f'schedule.kind = "{schedule["kind"]}"'
            yield f"schedule.{key} has no effect with {switch}: what switches it off was set"


def _take_out_removed(raw: dict[str, Any]) -> None:
    """Take keys that are gone out of what an older version wrote down, where they were switched off."""
    for table, *_, key in REMOVED:
        known = raw.get(str(table))
        if isinstance(known, dict) and known.get(key) is False:
            del known[key]


def _keys(raw: Mapping[str, Any]) -> Iterator[Path]:
    """The keys of all tables, and those of the tables inside them."""
    for table, keys in raw.items():
        yield from _keys_at((table,), keys)


def _keys_at(path: Path, value: Any) -> Iterator[Path]:
    if len(path) > 1:
        yield path
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _keys_at((*path, key), item)


def _prune(tree: Any, path: Path) -> None:
    for part in path[:-1]:
        if isinstance(part, int) or not isinstance(tree, dict) or part not in tree:
            return
        if isinstance(tree[part], list):
            del tree[part]
            return
        tree = tree[part]
    if isinstance(tree, dict):
        tree.pop(path[-1], None)


def _overridden(overrides: Overrides, lines: list[str]) -> Iterator[tuple[str, Path, Any]]:
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            yield f"override {visible(key)}", tuple(key.split(".")), value
        return
    for text in overrides:
        match = _SET.fullmatch(text)
        if not match:
            lines.append(f"--set {visible(text, 60)}: got no key and value, expected --set table.key=VALUE")
            continue
        path = tuple(match["key"].split("."))
        place = f"--set {visible(match['key'], 200)}"
        if len(path) > MAXIMUM_KEY_PARTS:
            lines.append(f"{place}: got a key of {len(path)} parts, expected at most {MAXIMUM_KEY_PARTS}")
            continue
        try:
            yield place, path, _value(match["value"])
        except TooMuch as error:
            lines.append(f"{place}: got {error}")


def _value(text: str) -> Any:
    """The text as a TOML value, or the text itself where it is none."""
    if len(text) > MAXIMUM_BYTES:
        raise TooMuch(1, f"a value of more than {MAXIMUM_BYTES} characters, expected at most that many")
    line = f"value = {text}"
    find_places(line)
    try:
        parsed = tomllib.loads(line)
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _put(raw: dict[str, Any], places: dict[Path, str], place: str, path: Path, value: Any, lines: list[str]) -> None:
    table: Any = raw
    for position, part in enumerate(path[:-1]):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            name = ".".join(map(str, path[: position + 1]))
            lines.append(
                f"{place}: got a key inside {name}, which is {shown(table, str(part))}, expected a table there"
            )
            return
    for known in [known for known in places if known[: len(path)] == path]:
        del places[known]
    places[path] = place
    table[path[-1]] = _plain(value)


def _copied(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _plain(item) for key, item in tree.items()}


def _plain(value: Any) -> Any:
    """Tables copied, and numbers of numpy as Python's own."""
    if isinstance(value, Mapping):
        return _copied(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if type(value).__module__ == "numpy" and callable(to_own := getattr(value, "tolist", None)):
        return to_own()
    return value


def _name_after_file(raw: dict[str, Any], source: Any) -> None:
    if isinstance(source, Mapping) or not isinstance(raw.get("run", {}), dict):
        return
    stem = FilePath(source).stem
    if "name" not in raw.get("run", {}) and PLAIN_NAME.fullmatch(stem):
        raw["run"] = {**raw.get("run", {}), "name": stem}


def _resolve_python_path(raw: dict[str, Any], base: FilePath) -> list[Problem]:
    """Make the folders of `run.python_path` absolute, as seen from the settings file."""
    run = raw.get("run")
    folders = run.get("python_path") if isinstance(run, dict) else None
    if not isinstance(folders, list | tuple) or not all(isinstance(folder, str) for folder in folders):
        return []
    problems = []
    resolved = []
    for index, folder in enumerate(folders):
        whole = (base / folder).resolve() if "\0" not in folder else base
        if not whole.is_dir():
            message = f"got {shown(folder)}, expected an existing folder ({visible(str(whole), 200)} is none)"
            problems.append(Problem(("run", "python_path", index), message))
        resolved.append(str(whole))
    raw["run"] = {**raw["run"], "python_path": resolved}
    return problems


def _resolve_data(raw: dict[str, Any], base: FilePath, *, must_exist: bool) -> list[Problem]:
    """Make the files of items in `[task]` absolute, as seen from the settings file.

    Those of a run that was made need not be there any more: its policy can be loaded without them.
    """
    task, problems = raw.get("task"), []
    for key in ("reset_options", "test_options"):
        told = task.get(key) if isinstance(task, dict) else None
        if not isinstance(told, str) or not told or "\0" in told:
            continue
        whole = (base / told).resolve()
        if must_exist and not is_file(whole):
            message = f"got {shown(told)}, expected an existing file ({visible(str(whole), 200)} is none)"
            problems.append(Problem(("task", key), message))
        raw["task"] = {**raw["task"], key: str(whole)}
    return problems


def _written(path: Path, lines_of: Mapping[Path, int]) -> Path:
    while path and path not in lines_of:
        path = path[:-1]
    return path


def _bounded(lines: list[str]) -> list[str]:
    lines = list(dict.fromkeys(lines))
    if len(lines) <= MAXIMUM_SHOWN:
        return lines
    return [*lines[:MAXIMUM_SHOWN], f"... and {len(lines) - MAXIMUM_SHOWN} more problems of this kind"]
