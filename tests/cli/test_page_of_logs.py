"""The analysis script of the log's page does what it promises, on the log of a run that is still going on."""

import subprocess
import sys

import pages

from mlxe_async.logs.events import EpisodeEnd, PhaseEvent
from mlxe_async.logs.journal import Journal
from mlxe_async.storage.run_folder import RunFolder

PAGE = pages.ROOT / "mlxe_async" / "logs" / "README.md"
HEADING = "Reading the log"


def script() -> str:
    """The first Python block under the heading."""
    return next(text for language, text in pages.blocks(pages.section(PAGE, HEADING)) if language == "python")


def test_the_script_prints_learning_curve_and_time_per_phase_of_a_live_log(tmp_path):
    with RunFolder.create(tmp_path / "runs", "x") as folder, Journal(folder.log_path, folder.name) as journal:
        for number in range(1, 101):
            journal.emit(PhaseEvent("generate", 0, 0.25, 1, rows=10), "executor", 0)
            journal.emit(PhaseEvent("learn", 0, 0.5, 1, updates=64), "learner")
            value = float("nan") if number == 50 else float(number)
            journal.emit(EpisodeEnd(0, number, value, 10, True, 1, number, 10 * number), "executor", 0)
        with folder.log_path.open("a") as file:
            file.write('{"event": "episode_end", "env_st')  # the run is in the middle of a line
        done = subprocess.run(
            [sys.executable, "-c", script()], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    means = [float(line.split()[-1]) for line in lines if "mean return" in line]
    assert len(means) >= 5
    assert means == sorted(means)
    assert "1,000 steps" in [line for line in lines if "mean return" in line][-1]
    assert [line.split() for line in lines[-2:]] == [["learn", "50.00", "s"], ["generate", "25.00", "s"]]


def test_the_script_says_nothing_about_a_run_that_has_just_begun(tmp_path):
    with RunFolder.create(tmp_path / "runs", "x") as folder:
        Journal(folder.log_path, folder.name).close()
        done = subprocess.run(
            [sys.executable, "-c", script()], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
