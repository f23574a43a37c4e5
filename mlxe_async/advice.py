"""Advice on algorithms: which of those that fit a task to try first, and the settings file to begin with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mlxe_async.choices import Choice, Known

SMALL_TABLE = 100_000
"""Entries up to which a table is better than a network."""
COSTLY_S = 1e-3
"""Seconds of a step from which on steps are saved rather than computing."""
STEPS = 100_000
"""Environment steps of a file that nothing else is said for."""
TESTS = 20
"""Tests of a run."""
TABLES = (
    *("run", "stop", "task", "schedule", "algorithm", "learner", "memory"),
    *("supervision", "evaluation", "checkpoint", "logs"),
)
"""Order of the tables in a file."""


class Place(NamedTuple):
    """A place in the order: algorithms, the better first, the reason, and when they stand here."""

    names: Sequence[str]
    why: str
    holds: Callable[[Known], bool]


def _entries(known: Known) -> int:
    states = 1
    for size in known.spaces.observation_sizes:
        states *= size
    return states * (known.spaces.actions or 0)


def _costly(known: Known) -> bool:
    return known.measured.step_seconds >= COSTLY_S


ORDER: tuple[Place, ...] = (
    Place(
        ("q_learning", "sarsa"),
        "all states fit into a small table, which learns from each step at once",
        lambda known: 0 < _entries(known) <= SMALL_TABLE,
    ),
    Place(
        ("sac", "td3"),
        "actions are bounded numbers: each step is replayed many times, so that few are needed",
        lambda known: bool(known.numbers),
    ),
    Place(
        ("dqn", "rainbow", "c51"),
        "a step takes a millisecond or more: each is replayed many times",
        _costly,
    ),
    Place(("ppo",), "it takes any actions, but learns from each of these costly steps for a short time only", _costly),
    Place(("ppo",), "steps are cheap; it takes any actions and is the least particular about its keys", lambda _: True),
    Place(
        ("dqn", "rainbow", "c51", "apex"),
        "one of several actions: values of them are learned from replay, by fewer steps and more computing",
        lambda _: True,
    ),
    Place(("ddpg",), "as td3, which is steadier", lambda _: True),
    Place(("sac",), "its form for one of several actions; dqn is the usual one", lambda _: True),
    Place(("impala", "a2c"), "learns from each rollout about once, and needs more steps than ppo", lambda _: True),
    Place(("mlxe",), "the replaying actor-critic of MLxE, whose defaults are for CartPole", lambda _: True),
    Place(("q_learning", "sarsa"), "a table this large is filled slowly", lambda _: True),
    Place(("reinforce",), "learns from whole episodes without a critic: the simplest, and the slowest", lambda _: True),
)
"""The first place that holds is an algorithm's."""


def places(names: Collection[str], known: Known) -> Iterator[tuple[str, str]]:
    """Each of these algorithms with its reason, the one to try first first.

    Args:
        names: algorithms that fit the task.
        known: what is known of it.
    """
    told = set[str]()
    for place in ORDER:
        for name in place.names:
            if name in names and name not in told and place.holds(known):
                told.add(name)
                yield name, place.why
    yield from ((name, "") for name in names if name not in told)


def settings_file(
    written: Mapping[str, Mapping[str, Any]],
    algorithm: str,
    choices: Sequence[Choice],
    *,
    steps: int,
    threshold: float | None,
) -> dict[str, dict[str, tuple[Any, str]]]:
    """Tables of a settings file: key -> value and the comment beside it.

    Args:
        written: keys that were asked for, by table.
        algorithm: its name.
        choices: keys that follow from the task, for a run of these steps.
        steps: environment steps of the run.
        threshold: mean return at which the task counts as solved; None: it has none.
    """
    tables: dict[str, dict[str, tuple[Any, str]]] = {"stop": {"env_steps": (steps, "Environment steps of the run.")}}
    of_stop, of_tests = written.get("stop", {}), written.get("evaluation", {})
    if threshold is not None and of_stop.get("solved", True) and of_tests.get("enabled", True):
        words = f"Or until three tested versions in a row have a mean return of {threshold:g}."
        tables["stop"]["solved"] = (True, words)
        tables["evaluation"] = {
            "enabled": (True, "Test frozen versions with the best action."),
            "interval_steps": (max(1, steps // TESTS), "Environment steps between two tests."),
        }
    tables["algorithm"] = {"name": (algorithm, f"All of its keys: python -m mlxe_async --help {algorithm}")}
    for choice in choices:
        table, _, key = choice.setting.partition(".")
        tables.setdefault(table, {})[key] = (choice.value, f"{choice.why[0].upper()}{choice.why[1:]}.")
    for table, keys in written.items():
        if keys:
            known = tables.get(table, {})
            same = {key: one for key, one in known.items() if key not in keys or keys[key] == one[0]}
            tables[table] = {**{key: (value, "") for key, value in keys.items()}, **same}
    return {table: tables[table] for table in sorted(tables, key=_place)}


def _place(table: str) -> int:
    return TABLES.index(table)
