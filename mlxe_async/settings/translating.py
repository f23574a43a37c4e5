"""Names of other packages, answered by keys that a given file takes, with values that it takes; or by a sentence.

A key is offered only if the algorithm, the task and the schedule of the file have it, and a value only if the settings
are accepted with it: what is printed to be pasted can be pasted.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mlxe_async.settings.synonyms import (
    ABSENT,
    ALWAYS,
    CORRECTED,
    FIXED_ELSEWHERE,
    INSTEAD,
    OTHER_UNIT,
    REMARKS,
    SYNONYMS,
    TEXTS,
    VALUES,
)
from mlxe_async.storage.safe_text import visible

LONGEST = 60
"""Letters of a value that is repeated in an answer."""
_ATARI, _GAME = "task.atari.", "ALE/Pong-v5"
_USUAL = ("ppo", "dqn", "sac")
_FIRST = ("task.env", "schedule.kind", "algorithm.name", "evaluation.enabled", "algorithm.cell")
"""Keys of a file by which others are judged."""
_BESIDE: tuple[tuple[str, Any], ...] = (
    ("evaluation.enabled", True),
    ("schedule.sync", "rollout"),
    ("schedule.kind", "oa"),
    ("algorithm.cell", "lstm"),
    ("algorithm.noisy", True),
    ("algorithm.prioritised", True),
    ("algorithm.priorities", ["td"]),
    ("algorithm.behaviour", "softmax"),
    ("schedule.gradients", "executors"),
)
"""Keys without which others have no effect, as they are set together."""


@dataclass(frozen=True)
class Written:
    """The settings, as far as they are known, that a name was written for.

    Args:
        raw: the tree, as it was read; empty where there is none.
        algorithm: its name; empty: not known.
        takes: says of a tree and overrides, each `key=VALUE`, whether they are accepted.
        form: says of an algorithm and a key what it may be, in words.
    """

    raw: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = ""
    takes: Callable[[Mapping[str, Any], Sequence[str]], bool] = lambda _tree, _overrides: False
    form: Callable[[str, str], str] = lambda _algorithm, _key: ""

    @cached_property
    def fields(self) -> Collection[str] | None:
        """Keys of the algorithm; None where they are not known."""
        return _all_fields().get(self.algorithm)

    @cached_property
    def env(self) -> str:
        """The task's id; empty where none is written."""
        task = self.raw.get("task")
        env = task.get("env") if isinstance(task, Mapping) else ""
        return env if isinstance(env, str) else ""

    @cached_property
    def sound(self) -> Mapping[str, Any]:
        """The part of the tree that is accepted, by which suggestions are tried."""
        found: dict[str, Any] = {"task": {"env": "CartPole-v1"}}
        if self.algorithm:
            found = _with(found, "algorithm.name", self.algorithm)
        whole = {**self.raw, "algorithm": {**_table(self.raw, "algorithm"), "name": self.algorithm}}
        if self.algorithm and self.takes(whole, ()):
            return whole
        leaves = {f"{table}.{key}": value for table in self.raw for key, value in _table(self.raw, table).items()}
        for key in sorted(leaves, key=lambda one: _FIRST.index(one) if one in _FIRST else len(_FIRST)):
            more = _with(found, key, leaves[key])
            found = more if key != "algorithm.name" and self.takes(more, ()) else found
        return found

    def has(self, key: str, fields: Collection[str] | None) -> bool:
        """Tell if a key is one of this file's algorithm and task."""
        table, _, name = key.rpartition(".")
        if table == "algorithm" and name != "name":
            return fields is None or name in fields
        return not key.startswith(_ATARI) or not self.env or self.env.startswith("ALE/")

    def accepts(self, *overrides: str) -> bool:
        """Tell if the sound part of the file is accepted with these, each `key=VALUE`."""
        base = self.sound
        if not self.env and any(one.startswith(_ATARI) for one in overrides):
            base = _with(base, "task.env", _GAME)
        return self.takes(base, overrides)


@dataclass(frozen=True)
class Answer:
    """A name of another package, as it is here.

    Args:
        keys: ours; several where it is not known which of them the algorithm has; none: a sentence says why.
        value: as TOML; None: it is to be chosen.
        changed: the value is another one than was written.
        beside: a key and a value, as TOML, without which it has no effect.
        remark: by what it is other than elsewhere.
        why: the sentence in place of a key.
    """

    keys: tuple[str, ...] = ()
    value: str | None = None
    changed: bool = False
    beside: tuple[str, str] | None = None
    remark: str = ""
    why: str = ""

    @property
    def in_file(self) -> str:
        """The end of a line about a file, behind what was got."""
        if not self.keys:
            return f"; {self.why}"
        given = f" = {_as_toml(self.value)}" if self.changed and self.value is not None else ""
        more = [f"with {self.beside[0]} = {_as_toml(self.beside[1])}"] if self.beside else []
        more += [self.remark] if self.remark else []
        told = f" ({'; '.join(more)})" if more else ""
        return f", expected {' or '.join(self.keys)}{given}, as it is called here{told}"

    @property
    def on_line(self) -> str:
        """The options that say the same; in capitals what is to be put in."""
        import shlex

        given = "VALUE" if self.value is None else shlex.quote(self.value)
        sets = f"--set {self.keys[0]}={given}" if given == self.value or self.value is None else ""
        sets = sets or "--set " + shlex.quote(f"{self.keys[0]}={self.value}")
        if self.beside:
            sets += f" --set {self.beside[0]}={shlex.quote(self.beside[1])}"
        return f"{sets}{f' ({self.remark})' if self.remark else ''}"


def answer(
    name: str, value: Any, file: Written, fields: Collection[str] | None = None, *, spelt: str = ""
) -> Answer | None:
    """Say what a key or an option of another package is here; None if it is not known.

    Args:
        name: as it was written.
        value: what it was set to; a text as it stands in a file or on a command line.
        file: where.
        fields: keys of the algorithm, where the caller knows them better.
        spelt: the value as it was typed on a command line.
    """
    plain = name.lower().replace("-", "_")
    if plain not in SYNONYMS:
        why = ABSENT.get(plain)
        return Answer(why=f"there is no such key here: {why}") if why else None
    fields = file.fields if fields is None else fields
    keys = [key for key in SYNONYMS[plain] if file.has(key, fields)]
    if why := _said_instead(plain, value, file, keys):
        return Answer(why=why)
    for key in keys:
        tried = file if fields is not None else _with_owner(key, file)
        found = next(_accepted(plain, key, value, tried), None)
        if found is not None:
            is_same = spelt and isinstance(value, float | int | list) and not isinstance(value, bool)
            return replace(found, value=spelt) if is_same and not found.changed else found
    shown = [key for key in keys if key != "algorithm.name" or key == SYNONYMS[plain][0]]
    if not shown:
        return Answer(why=_of_which(SYNONYMS[plain], file))
    words = REMARKS.get(plain, "") or _form(shown[0], file)
    return Answer(tuple(shown) if fields is None else (shown[0],), None, remark=words)


def own_key(key: str, value: Any, file: Written) -> Answer:
    """Return how a key of ours is set on a command line, which was given as an option."""
    found = next(_accepted(key.rpartition(".")[2], key, value, file), None)
    return found or Answer((key,), None, remark=_form(key, file))


def parsed(text: str) -> Any:
    """The value of an option of a command line; an option alone is true."""
    if text.lower() in ("", "true", "false"):
        return text.lower() != "false"
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if len(found) == 1 and isinstance(found["value"], int | float | list) else text


def _with_owner(key: str, file: Written) -> Written:
    """A file of an algorithm that has a key, where it is not known which one is meant."""
    name = key.partition(".")[2]
    if not key.startswith("algorithm.") or file.algorithm:
        return file
    fields = _all_fields()
    owners = (one for one in (*_USUAL, *fields) if name in fields[one])
    return replace(file, raw={"task": {"env": file.env}} if file.env else {}, algorithm=next(owners, ""))


def _said_instead(name: str, value: Any, file: Written, keys: list[str]) -> str:
    """The sentence that a name has in place of a key of this file; empty where a key is offered."""
    if name in ALWAYS and file.algorithm in ALWAYS[name][0]:
        return ALWAYS[name][1]
    if name in CORRECTED and _truth(value) is False and "algorithm.correction" not in keys:
        return f"{file.algorithm or 'the algorithm'} corrects nothing by V-trace: leave it out"
    if keys:
        return ""
    if _truth(value) is False and (name, SYNONYMS[name][0]) in VALUES and not SYNONYMS[name][0].startswith(_ATARI):
        return f"{file.algorithm} has no such thing that could be switched off: leave it out"
    for names, needed, sentence in INSTEAD:
        if name in names.split() and (not needed or needed in (file.fields or ())):
            return sentence.format(algorithm=file.algorithm)
    return _of_which(SYNONYMS[name], file)


def _of_which(keys: Collection[str], file: Written) -> str:
    """Say of what the keys are that this file cannot have."""
    first = next(iter(keys))
    if first.startswith(_ATARI):
        return f'{first} is of Atari games alone (task.env = "ALE/..."); elsewhere a wrapper does that'
    owners = [name for name, known in _all_fields().items() if first.partition(".")[2] in known]
    return f"{file.algorithm or 'the algorithm'} has no such key: {first} is a key of {_and(owners)}"


def _accepted(name: str, key: str, value: Any, file: Written) -> Iterator[Answer]:
    """Answers by one key that the file takes, the plainest first."""
    if name in OTHER_UNIT:
        return
    for one, changed in _candidates(name, key, value):
        text = _as_text(one)
        if len(text) > LONGEST or visible(text, LONGEST) != text:
            continue
        if text and file.accepts(f"{key}={text}"):
            yield Answer((key,), text, changed, remark=_remark(name, key, value if changed else ""))
            return
        for other, its_value in _BESIDE:
            beside = other, _as_text(its_value)
            known = other.partition(".")[2]
            if other == key or (other.startswith("algorithm.") and known not in (file.fields or ())):
                continue
            if file.accepts("=".join(beside), f"{key}={text}") and not file.accepts(f"{key}={text}"):
                yield Answer((key,), text, changed, beside, REMARKS.get(name, ""))
                return


def _remark(name: str, key: str, value: Any) -> str:
    """By what a key is other than elsewhere, or what goes with another algorithm that is meant."""
    if key == "algorithm.temperature" and name in FIXED_ELSEWHERE:
        return "at the start; algorithm.temperature_learning_rate = 0 keeps it"
    if key != "algorithm.name" or not isinstance(value, str):
        return REMARKS.get(name, "")
    from mlxe_async.algorithms import meant_by

    return meant_by(value)[1]


def _candidates(name: str, key: str, value: Any) -> Iterator[tuple[Any, bool]]:
    """Values that may be meant, and whether each is another one than was written."""
    if (name, key) in VALUES:
        when_true, when_false = VALUES[name, key]
        truth = _truth(value)
        if truth is None and key == "logs.export":
            truth = True  # a folder or the name of a project
        if truth is not None:
            if (meant := when_true if truth else when_false) is not None:
                yield meant, True
            return
    if key == "algorithm.name" and isinstance(value, str):
        from mlxe_async.algorithms import meant_by

        yield value, False
        yield meant_by(value)[0], True
        return
    if isinstance(value, str) and value.lower() in TEXTS.get(key, {}):
        yield TEXTS[key][value.lower()], True
        return
    yield value, False
    if isinstance(value, str):
        yield value.rpartition(".")[2].lower(), True
    if (truth := _truth(value)) is not None and not isinstance(value, bool):
        yield truth, True
    if not isinstance(value, list | bool):
        yield [value], True


def _truth(value: Any) -> bool | None:
    """Read a value as a yes or a no; None: neither."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return bool(value)
    return {"true": True, "false": False, "yes": True, "no": False}.get(str(value).lower())


def _as_text(value: Any) -> str:
    """A value as it is written behind `--set key=`."""
    if isinstance(value, str):
        return value if isinstance(parsed(value), str) and value == value.strip() else json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(json.dumps(one) for one in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "{}" if isinstance(value, Mapping) else str(value)


def _as_toml(text: str) -> str:
    """A value that is written behind `--set key=` as it is in a file."""
    return json.dumps(text) if text not in ("true", "false") and isinstance(parsed(text), str) else text


def _form(key: str, file: Written) -> str:
    """Say in words what a key may be."""
    table, _, name = key.partition(".")
    if table != "algorithm" or (file.fields and name in file.fields):
        return file.form(file.algorithm, key)
    return file.form(next((one for one, fields in _all_fields().items() if name in fields), ""), key)


def fields_of_all() -> set[str]:
    """Keys that some built-in algorithm has."""
    return {key for fields in _all_fields().values() for key in fields}


def _all_fields() -> dict[str, Collection[str]]:
    from mlxe_async.algorithms import REGISTRY, load_algorithm

    return {name: load_algorithm(name).Settings.model_fields for name in REGISTRY}


def _table(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = raw.get(name)
    return found if isinstance(found, Mapping) else {}


def _with(tree: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    table, _, name = key.partition(".")
    return {**tree, table: {**_table(tree, table), name: value}}


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
