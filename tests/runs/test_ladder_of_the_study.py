"""The first rungs of the study's ladder: threads push gradients of their own rollouts, each row learned from once."""

from pathlib import Path

import pytest
from resume_tools import run_here

from mlxe_async.settings import load_settings

STUDY = Path(__file__).parents[2] / "settings" / "study"


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        pytest.param("ladder-1-base", 10, marks=pytest.mark.long),
        pytest.param("ladder-2-deep", 64, marks=pytest.mark.slow),
        pytest.param("ladder-3-task", 64, marks=pytest.mark.slow),
    ],
)
def test_each_thread_pushes_gradients_of_its_own_rollouts(tmp_path, name, rows):
    chosen = load_settings(STUDY / f"{name}.toml", [f"stop.env_steps={40 * rows}"])
    result, run = run_here(chosen, tmp_path)
    learned = [(line["rows"], line["updates"]) for line in run.all("phase", phase="learn")]
    assert set(learned[8:]) == {(rows, 1)}  # before, an episode that ended early has left fewer
    account = run.all("pushes")[-1]
    assert account["applied"] == result.updates == len(learned)
    assert "mlxe-exe" in {line["process"] for line in run.all("proc_start")}
    assert result.steps == pytest.approx(rows * result.updates, abs=8 * rows)
