"""`[task] env` and `[algorithm] name` alone make a run: each built-in algorithm on each kind of observation."""

import itertools

import pytest
from in_one_process import first_updates, probed
from plain_tasks import KINDS

from mlxe_async.algorithms import REGISTRY, load_algorithm
from mlxe_async.errors import SettingsError
from mlxe_async.settings import load_settings

TABLES = ("q_learning", "sarsa")
MOVED_BY_NUMBERS = ("ddpg", "td3")
WITHOUT_CONVOLUTIONS = ("ddpg", "sac", "td3")
SMALLEST = 36  # of pictures that three convolutions take
FEW = {"start_rows": 100, "epochs": 1}  # of pictures, which take long; the defaults are those of other kinds, too


def minimal(name, shows, *, side=64, **more):
    moves = "box" if name in MOVED_BY_NUMBERS else "discrete"
    kwargs = {"shows": shows, "moves": moves} | ({"side": side} if shows == "picture" else {})
    return {"task": {"env": "plain_tasks:Shown", "kwargs": kwargs}, "algorithm": {"name": name, **more}}


def cases():
    """Every algorithm with every kind."""
    yield from itertools.product(sorted(REGISTRY), KINDS)


@pytest.mark.long
@pytest.mark.parametrize(("name", "shows"), [*cases()])
def test_every_algorithm_reaches_its_first_update_by_the_settings_that_all_its_roles_get(name, shows):
    fields = load_algorithm(name).Settings.model_fields
    few = {key: value for key, value in FEW.items() if key in fields and shows == "picture"}
    tables = minimal(name, shows, side=SMALLEST, **few)
    if name in TABLES and shows != "integers":
        with pytest.raises(SettingsError, match="needs observations of integers alone"):
            first_updates(tables, most_rounds=1)
        return
    if name in WITHOUT_CONVOLUTIONS and shows == "picture":
        with pytest.raises(SettingsError, match="has no convolutions for pictures"):
            first_updates(tables, most_rounds=1)
        return
    updates, rows = first_updates(tables, most_rounds=1000)
    assert updates == 1
    assert rows <= 1024


@pytest.mark.parametrize("name", ["a2c", "apex", "c51", "dqn", "impala", "mlxe", "ppo", "rainbow", "reinforce"])
def test_the_settings_that_all_roles_get_have_the_defaults_that_pictures_get(name):
    found = probed(load_settings(minimal(name, "picture")))
    chosen = load_algorithm(name).of_pictures
    assert chosen["body"] == "nature"
    table = found.settings.algorithm.table
    assert {key: value for key, value in table.items() if key != "name"} == found.facts["algorithm"]
    assert {key: table[key] for key in chosen} == {
        key: list(value) if isinstance(value, tuple) else value for key, value in chosen.items()
    }


def test_reinforce_drops_what_ia_interrupts_for_it_learns_from_whole_episodes():
    found = probed(load_settings(minimal("reinforce", "dictionary") | {"schedule": {"kind": "ia"}}))
    assert found.settings.schedule.unfinished == "drop"
