"""Every key of the settings held against mistakes, through the loader: what it refuses, and in which words.

    python tests/faults/bad_values.py typos|types|ranges

prints how many mistakes were judged and those that were not refused as they should be, as JSON.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))

from settings_keys import kinds_of, known_keys  # noqa: E402 - found by the line above

from mlxe_async.algorithms import REGISTRY, load_algorithm  # noqa: E402 - see above
from mlxe_async.errors import SettingsError  # noqa: E402 - see above
from mlxe_async.settings import algorithm_problems, load_settings  # noqa: E402 - see above

LETTERS = "abcdefghijklmnopqrstuvwxyz_"
# TOML's types, one value each; whole numbers are numbers too, also where they are written 1e3.
VALUES = {
    "boolean": True,
    "integer": 3,
    "number": 1000.5,
    "string": "text",
    "array": [True],
    "nested": [[{"a": 1}]],
    "object": {"a": {"b": 1}},
    "date": dt.date(1979, 5, 27),
    "time": dt.time(7, 32),
}
NUMBERS = [0, -1, 2**31, 2**63, 10**30, -(2**31), math.nan, math.inf, -math.inf, -0.0, -1e301, 1e308]


def typos(word):
    """All words at distance one: a letter left out, put in, exchanged, or swapped with its neighbour."""
    cuts = [(word[:at], word[at:]) for at in range(len(word) + 1)]
    made = {left + right[1:] for left, right in cuts if right}
    made |= {left + right[1] + right[0] + right[2:] for left, right in cuts if len(right) > 1}
    made |= {left + letter + right[1:] for left, right in cuts if right for letter in LETTERS}
    made |= {left + letter + right for left, right in cuts for letter in LETTERS}
    return sorted(made - {word, ""})


def is_meant(said, typo):
    """Whether the guess is a key that this is a typo of: `stick` is one of `stack` and of `sticky` alike.

    A word that other packages have for a key leads to that one.
    """
    return "as it is called here" in said or typo in typos(said.partition('did you mean "')[2].partition('"')[0])


def said_about(table, entries):
    """What the loader says about these entries of a table, or None where it takes them."""
    tables = {"task": {"env": "CartPole-v1"}}
    inside = tables
    for name in table.split("."):
        inside = inside.setdefault(name, {})
    inside.update(entries)
    try:
        load_settings(tables)
    except SettingsError as error:
        return str(error)
    return None


def judge_typos():
    """(judged, wrong): every typo of every key, also of an algorithm, is answered by a key at that distance."""
    judged, wrong = 0, []
    keys = known_keys()
    by_table = {}
    for key in keys:
        by_table.setdefault(key.table, set()).add(key.name)
    for key in keys:
        for typo in typos(key.name):
            if typo not in by_table[key.table]:
                judged += 1
                said = said_about(key.table, {**key.beside, typo: 1}) or "accepted"
                if f"{key.table}.{typo}: got" not in said or not is_meant(said, typo):
                    wrong.append((key.table, key.name, typo, said[-60:]))
    models = {name: load_algorithm(name).Settings for name in REGISTRY}
    owners = {}
    for name, model in models.items():
        for key in model.model_fields:
            owners.setdefault(key, []).append(name)
    for name, model in models.items():
        for key in model.model_fields:
            # Of a key that several have each judges its share: together they judge every typo of it once.
            for typo in typos(key)[owners[key].index(name) :: len(owners[key])]:
                if typo not in model.model_fields and typo != "name":
                    judged += 1
                    said = " ".join(problem.message for problem in algorithm_problems(model, {typo: 1}))
                    if not is_meant(said, typo):
                        wrong.append((name, key, typo, said[-60:]))
    return judged, wrong


def judge_types():
    """(judged, wrong): every key by a value of each other type must be answered with key, got and expected."""
    judged, wrong = 0, []
    for key in known_keys():
        taken = kinds_of(key.about)
        if not taken:
            continue
        taken |= {"integer"} if "number" in taken else set()
        taken |= {"nested"} if key.name == "kwargs" else set()
        for kind, value in VALUES.items():
            if kind not in taken or (kind == "array" and key.about.get("items", {}).get("type") != "boolean"):
                judged += 1
                said = said_about(key.table, {**key.beside, key.name: value}) or "accepted"
                if f"{key.table}.{key.name}" not in said or "got" not in said or "expected" not in said:
                    wrong.append((key.table, key.name, kind, said[-120:]))
    return judged, wrong


def judge_ranges():
    """(judged, wrong): every numeric key by what lies outside its range must be answered with the range."""
    judged, wrong = 0, []
    for key in known_keys():
        for about in (key.about, *key.about.get("anyOf", [])):
            if about.get("type") not in ("integer", "number"):
                continue
            low, above = about.get("minimum", -math.inf), about.get("exclusiveMinimum", -math.inf)
            high, below = about.get("maximum", math.inf), about.get("exclusiveMaximum", math.inf)
            if max(low, above) == -math.inf or min(high, below) == math.inf:
                wrong.append((key.table, key.name, "has no range"))
            outside = [edge - 1 for edge in (low, above) if edge != -math.inf]
            outside += [edge + 1 for edge in (high, below) if edge != math.inf]
            outside += [edge for edge in (above, below) if math.isfinite(edge)]
            for value in [*NUMBERS, *outside]:
                is_whole = isinstance(value, int) or value.is_integer()
                if not is_whole and about["type"] == "integer":
                    is_outside = True
                else:
                    is_outside = not (low <= value <= high and above < value < below)
                if is_outside:
                    judged += 1
                    said = said_about(key.table, {**key.beside, key.name: value}) or "accepted"
                    if f"{key.table}.{key.name}: got" not in said or "expected" not in said:
                        wrong.append((key.table, key.name, repr(value), said[-120:]))
    return judged, wrong


if __name__ == "__main__":
    print(json.dumps({"typos": judge_typos, "types": judge_types, "ranges": judge_ranges}[sys.argv[1]]()))
