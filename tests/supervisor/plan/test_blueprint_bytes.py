"""The bytes of a run are known before any is reserved."""

from pathlib import Path

import pytest

from mlxe_async.algorithms import load_algorithm
from mlxe_async.rows import RowLayout, Spaces, standard_columns
from mlxe_async.settings import load_settings
from mlxe_async.supervisor.plan.blueprint import Blueprint

PRESET = Path(__file__).parents[3] / "settings" / "breakout-dqn.toml"


def planned(rows, *changes, shape=(4, 84, 84), frames=4, limit=None):
    """The blueprint of a settings file, from what a probe would say."""
    spaces = Spaces(shape, "|u1", 3, frames=frames)
    settings = load_settings(PRESET, [f"memory.capacity_rows={rows}", *changes])
    kind, table = load_algorithm("dqn"), {key: v for key, v in settings.algorithm.table.items() if key != "name"}
    algorithm = kind(kind.Settings.model_validate(table), spaces, seed=0, learns=False)
    facts = {
        "spaces": spaces.to_json(),
        "columns": RowLayout(standard_columns(spaces)).to_json(),
        "derived": RowLayout(tuple(algorithm.derived_columns)).to_json(),
        "parameters": [[name, list(shape)] for name, shape in algorithm.parameters],
        "memory_kind": "replay",
        "batch_rows": algorithm.batch_rows,
        "prioritised": True,
        "task": {"max_episode_steps": limit},
    }
    return Blueprint(settings, facts)


def test_a_hundred_thousand_rows_of_pictures_take_three_quarters_of_a_gigabyte_told_before_any_is_reserved():
    blueprint = planned(100_000)
    of_memory = blueprint.memory_shape.nbytes
    assert 100_000 * 84 * 84 < of_memory <= 0.752e9  # each picture once; 3.5e9 with five in each row
    (line,) = [line for line in blueprint.byte_plan().lines() if line.startswith("memory")]
    assert line.split()[1:] == [f"{of_memory / 2**20:,.2f}", "MiB"]


def test_what_is_waiting_on_the_way_to_the_memory_is_small_beside_it():
    blueprint = planned(100_000)
    assert blueprint.byte_plan().total - blueprint.memory_shape.nbytes < 0.2e9


@pytest.mark.parametrize("frames", [0, 4])
def test_a_memory_of_other_pictures_is_not_taken_for_the_saved_one(frames):
    kept = planned(1000, frames=frames).memory_to_keep
    assert ("frame_rows" in kept) == (frames > 0)
    assert kept == planned(1000, frames=frames).memory_to_keep


WHOLE = ("schedule.sync='episode'", "schedule.envs_per_executor=1")
ONE = (*WHOLE, "schedule.executors=1")


@pytest.mark.parametrize(
    ("rows", "changes", "limit", "kept"),
    [
        (10_000, ("schedule.rollout_steps=300",), 5000, 300),
        (10_000, ONE, 1000, 1000),
        (2000, ONE, None, 2000),
        (100, ONE, 1000, 100),
        (10_000, (*ONE, "memory.keep_rows=9"), 1000, 9),
        (300 * 30, (*WHOLE, "schedule.executors=30"), 27_000, 256),
    ],
)
def test_whole_rollouts_are_kept_unless_the_settings_say_how_many_rows(rows, changes, limit, kept):
    blueprint = planned(rows, *changes, limit=limit)
    assert blueprint.memory_shape.keep_rows == kept


def test_of_longest_episodes_so_many_rows_are_kept_as_take_256_mib_while_they_wait():
    shape = planned(100_000, *ONE, limit=27_000, frames=0).memory_shape
    row = sum(column.row_bytes for column in shape.row_layout.columns)
    assert 0.98 * 2**28 < shape.keep_rows * row <= 2**28
