"""The bytes of a run are known before any is reserved."""

from pathlib import Path

import pytest

from mlxe_async.algorithms import load_algorithm
from mlxe_async.rows import RowLayout, Spaces, standard_columns
from mlxe_async.settings import load_settings
from mlxe_async.supervisor.plan.blueprint import Blueprint

PRESET = Path(__file__).parents[3] / "settings" / "breakout-dqn.toml"


def planned(rows, shape=(4, 84, 84), frames=4):
    """The blueprint of a settings file, from what a probe would say."""
    spaces, settings = Spaces(shape, "|u1", 3, frames=frames), load_settings(PRESET, [f"memory.capacity_rows={rows}"])
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
        "task": {"max_episode_steps": None},
    }
    return Blueprint(settings, facts)


def test_a_hundred_thousand_rows_of_pictures_take_three_quarters_of_a_gigabyte_told_before_any_is_reserved():
    blueprint = planned(100_000)
    of_memory = blueprint.memory_shape.nbytes
    assert 100_000 * 84 * 84 < of_memory <= 0.75e9  # each picture once; 3.5e9 with five in each row
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
