"""The first rungs of the study's ladder: each row of the newest policy is learned from once, all of them together."""

from pathlib import Path

import pytest
from resume_tools import run_here

from mlxe_async.settings import load_settings

STUDY = Path(__file__).parents[2] / "settings" / "study"


@pytest.mark.parametrize(
    ("name", "rows"), [("ladder-1-base", 80), pytest.param("ladder-2-deep", 512, marks=pytest.mark.slow)]
)
def test_each_row_is_learned_from_once(tmp_path, name, rows):
    chosen = load_settings(STUDY / f"{name}.toml", ["schedule.kind=serial", f"stop.env_steps={3 * rows}"])
    result, run = run_here(chosen, tmp_path)
    learned = [(line["rows"], line["updates"], line["lag_max"]) for line in run.all("phase", phase="learn")]
    assert learned == [(rows, 1, 0)] * 3
    assert result.updates == 3
