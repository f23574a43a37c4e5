"""Learning curves by environment steps, from the events of a log."""

import csv
import io
import json
import statistics

import pytest

from mlxe_async.analysis.curve import COLUMNS, MOST_ROWS, curve_of
from mlxe_async.cli import main
from mlxe_async.errors import RunFailed
from mlxe_async.logs.events import EpisodeEnd, Evaluation, PhaseEvent, RunEnd, Weights
from mlxe_async.logs.journal import Journal
from mlxe_async.storage.run_folder import RunFolder

SECOND = 10**9


def episode(steps, value, number=1, second=0):
    about = {"length": 10, "episodes": number, "env_steps": steps, "mono_ns": second * SECOND}
    return {"event": "episode_end", "episode_return": value, **about}


def learned(steps, second=0, lag=None, **losses):
    about = {"updates": 4, "env_steps": steps, "mono_ns": second * SECOND, "lag_mean": lag}
    return {"event": "phase", "phase": "learn", "losses": losses, **about}


def weights(version, steps, updates=0):
    return {"event": "weights", "version": version, "env_steps": steps, "updates": updates, "mono_ns": 0}


START = {"event": "run_start", "mono_ns": 2 * SECOND}


def test_each_stretch_has_what_happened_in_it_and_what_was_reached_at_its_end():
    events = [
        START,
        episode(90, 10.0, 1, 3),
        episode(100, 20.0, 2, 4),
        learned(100, 5, lag=1.0, loss=2.0, odd=None),
        episode(101, -1.0, 3, 6),
        learned(100, 7, lag=2.0, loss=4.0),
        weights(1, 101, 8),
        episode(350, 5.0, 4, 9),
        {"event": "evaluation", "version": 1, "return_mean": 77.0},
        {"event": "evaluation", "version": 1, "return_mean": None},
    ]
    first, second, last = curve_of(events, 100).rows()
    assert first | {"seconds": None} == dict.fromkeys(COLUMNS) | {
        "env_steps": 100,
        "episodes": 2,
        "return_mean": 15.0,
        "return_min": 10.0,
        "return_max": 20.0,
        "length_mean": 10.0,
        "lag_mean": 1.5,
        "learn.loss": 3.0,
    }
    assert first["seconds"] == 5.0  # its last learn event was told then
    assert (second["env_steps"], second["return_mean"], second["version"], second["updates"]) == (200, -1.0, 1, 8)
    assert second["test_return_mean"] == 77.0
    assert (last["env_steps"], last["episodes"], last["seconds"], last["test_return_mean"]) == (400, 4, 7.0, None)


def test_without_a_width_there_are_at_most_four_hundred_rows_and_nothing_is_lost():
    returns = [float(number % 97) for number in range(12_345)]
    events = [START, *(episode(7 * number + 1, value, number + 1) for number, value in enumerate(returns))]
    curve = curve_of(events)
    rows = list(curve.rows())
    assert MOST_ROWS / 5 <= len(rows) <= MOST_ROWS
    assert [row["env_steps"] for row in rows] == [curve.every * (number + 1) for number in range(len(rows))]
    assert str(curve.every).rstrip("0") in ("1", "2")
    for row in rows[:3]:
        inside = [r for n, r in enumerate(returns) if row["env_steps"] - curve.every < 7 * n + 1 <= row["env_steps"]]
        assert row["return_mean"] == pytest.approx(statistics.fmean(inside))
        assert (row["return_min"], row["return_max"]) == (min(inside), max(inside))
    assert rows[-1]["episodes"] == len(returns)


def test_a_width_that_makes_far_too_many_rows_is_refused(monkeypatch):
    monkeypatch.setattr("mlxe_async.analysis.curve.MOST_ROWS_GIVEN", 10)
    with pytest.raises(RunFailed, match="more than 10 stretches of 5 steps; expected wider ones"):
        curve_of([START, *(episode(5 * number, 1.0) for number in range(1, 12))], 5)


def test_clocks_go_on_over_a_resumption():
    resumed = {"event": "run_resume", "gap_ns": 100 * SECOND}
    (row,) = curve_of([START, episode(1, 1.0, 1, 5), resumed, episode(2, 1.0, 2, 106)], 10).rows()
    assert row["seconds"] == 4.0


def test_what_is_no_event_of_ours_is_told():
    with pytest.raises(RunFailed, match="x: expected a log of this program, a line of it cannot be used"):
        curve_of([START, {"event": "episode_end", "env_steps": 3, "mono_ns": 1}], name="x")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RunFolder.create(tmp_path / "runs", "x") as folder, Journal(folder.log_path, folder.name) as journal:
        journal.emit(EpisodeEnd(0, 0, 3.5, 10, True, 1, 1, 10), "executor", 0)
        phase = PhaseEvent("learn", 0, 0.5, 1, env_steps=10, rows=64, updates=1, losses={"loss": 0.25})
        journal.emit(phase, "learner")
        journal.emit(Weights(1, 1, 25, 1), "learner")
        journal.emit(Evaluation(1, None, 3, 30, 0.1, 1.0, 2.0), "evaluator")
        journal.emit(RunEnd("asked", False, 1, 25, 1, 1.0, 1.0, None, 0))
    return folder.path


def test_the_command_prints_csv_that_programs_read(run, capsys):
    assert main(["curve", "latest", run.name, "--every", "10"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["run"] for row in rows] == [run.name] * 4
    assert rows[:2] == rows[2:]
    first, second = rows[:2]
    assert (first["env_steps"], first["return_mean"], first["learn.loss"], first["version"]) == (
        "10",
        "3.5",
        "0.25",
        "",
    )
    assert (second["env_steps"], second["version"], second["test_return_mean"]) == ("30", "1", "2")


def test_the_command_writes_a_file_and_tells_what_it_cannot(run, tmp_path, capsys):
    assert main(["curve", "latest", "--out", "curve.csv"]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "curve.csv").read_text().startswith("run,env_steps,seconds,")
    assert main(["curve", "latest", "--out", "none/curve.csv"]) == 4
    assert capsys.readouterr().err == "none/curve.csv cannot be written: No such file or directory\n"
    assert main(["curve", "latest", "--every", "0"]) == 2
    assert main(["curve", "nothing"]) == 2
    (run / "log.jsonl").write_text(json.dumps({"event": "weights", "env_steps": 1, "mono_ns": 1}) + "\n")
    capsys.readouterr()
    assert main(["curve", "latest"]) == 3
    assert capsys.readouterr().err.startswith("latest: expected a log of this program")
