"""Defaults that a class has for other tables by what it learns from."""

from typing import ClassVar

import pytest

from mlxe_async.algorithms import Algorithm, load_algorithm
from mlxe_async.algorithms.interface import REPLAYED_ROWS


class Replays(Algorithm):
    memory, off_policy = "replay", "learns"
    defaults: ClassVar = {"schedule": {"sync": "rollout"}}


class Fewer(Replays):
    defaults: ClassVar = {"memory": {"capacity_rows": 500}}


class Recent(Algorithm):
    memory, off_policy = "replay", "corrects"


class Rollouts(Algorithm):
    off_policy = "learns"


def test_what_learns_from_rows_of_any_age_is_given_many():
    assert Replays.defaults == {"schedule": {"sync": "rollout"}, "memory": {"capacity_rows": REPLAYED_ROWS}}


def test_what_the_class_says_counts():
    assert Fewer.defaults == {"memory": {"capacity_rows": 500}}


@pytest.mark.parametrize("kind", [Recent, Rollouts, Algorithm])
def test_others_have_what_the_tables_say(kind):
    assert "memory" not in kind.defaults


@pytest.mark.parametrize(("name", "rows"), [("dqn", 100_000), ("apex", 100_000), ("sac", 200_000), ("mlxe", None)])
def test_built_in_ones_have_theirs(name, rows):
    assert load_algorithm(name).defaults.get("memory", {}).get("capacity_rows") == rows
