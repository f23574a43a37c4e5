"""`follow RUN` prints a run's events until it ends."""

import json
import subprocess
import sys

import pytest
from cli_tools import command

from mlxe_async.cli import main
from mlxe_async.cli.telling import told
from mlxe_async.logs.events import EpisodeEnd, RunEnd, Weights
from mlxe_async.logs.journal import Journal
from mlxe_async.storage.run_folder import RunFolder


@pytest.fixture
def run(tmp_path):
    """A run that is going on: its folder and its journal."""
    with RunFolder.create(tmp_path / "runs", "x") as folder, Journal(folder.log_path, folder.name) as journal:
        journal.emit(Weights(1, 2, 3, 4), "learner")
        yield folder, journal


def end(journal):
    journal.emit(RunEnd("asked", False, 0, 0, 0, 0.0, 0.0, None, 0))


def test_a_run_is_followed_while_it_goes_on_and_until_its_end(tmp_path, run):
    _, journal = run
    arguments = [sys.executable, "-m", "mlxe_async", "follow", "latest", "--json"]
    with subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert json.loads(process.stdout.readline())["event"] == "weights"
        journal.emit(EpisodeEnd(0, 0, 1.5, 10, True, 1, 1, 10), "executor", 3)
        assert json.loads(process.stdout.readline())["episode_return"] == 1.5
        end(journal)
        assert json.loads(process.stdout.readline())["event"] == "run_end"
        assert process.stdout.read() == ""
        assert process.wait(30) == 0


def test_for_people_an_event_is_a_line(tmp_path, run):
    folder, journal = run
    end(journal)
    done = command("follow", str(folder.path), folder=tmp_path)
    assert done.returncode == 0
    first, last = done.stdout.splitlines()
    assert "learner" in first
    assert "weights" in first
    assert "version=1 updates=2 env_steps=3 episodes=4" in first
    assert "run_end" in last


def test_a_test_is_told_as_a_test():
    about = {"version": 40, "passed": True, "streak": 2, "episodes": 20, "steps": 1000, "seconds": 1.0}
    line = told({"event": "evaluation", "role": "evaluator", "return_mean": 212.34, "return_min": 9.0, **about})
    assert "test of version 40: passed, 2 in a row; mean return 212.3, least 9, of 20 episodes and 1,000 steps" in line
    assert told({"event": "evaluation"}).endswith("mean return ?, least ?, of ? episodes and ? steps")


def test_what_solved_the_task_is_told_in_words():
    about = {"version": 40, "episodes_started": 10, "env_steps": 1234, "updates": 56, "seconds": 3.21}
    line = told({"ts": "2026-01-01T00:00:01.250Z", "event": "solved", "role": "supervisor", "published_ns": 9, **about})
    assert line == (
        "00:00:01.250 supervisor   solved         the first of the versions in a row that passed: version 40, "
        "published after 10 episodes begun, 1,234 steps, 56 updates and 3.2 s"
    )
    assert told({"event": "solved"}).endswith("published after ? episodes begun, ? steps, ? updates and ? s")
    damaged = told({"event": "init_from", "path": "a\x1b", "checkpoint": 3, "version": 4, "passed_over": ["5 (torn)"]})
    assert damaged.endswith("the run begins with checkpoint 3, version 4, of a\\x1b; damaged: 5 (torn)")


def test_no_such_run_is_told_in_one_line(tmp_path):
    done = command("follow", "nothing", folder=tmp_path)
    assert done.returncode == 2
    where = f"neither as a path nor in {tmp_path}/runs"
    ways = '"runs list" names them; of runs elsewhere give the path, or --dir FOLDER'
    assert done.stderr == f'there is no run "nothing", {where}; {ways}\n'
    for day in (1, 2):
        (folder := tmp_path / "runs" / f"2026010{day}T000000Z-nothing").mkdir(parents=True)
        (folder / "log.jsonl").touch()
    done = command("follow", "nothing", folder=tmp_path)
    assert done.stderr.startswith("nothing is runs/20260102T000000Z-nothing\n")  # the newest one of that name


def test_what_is_no_run_is_not_waited_for(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("no events\n")
    for path in (tmp_path, tmp_path / "notes.txt"):
        assert main(["follow", str(path)]) == 2
        assert capsys.readouterr().err.startswith(f"{path} is no run: expected ")
    assert main(["follow", str(tmp_path / "nowhere" / "log.jsonl")]) == 2
    assert "nor the folder that it would be in" in capsys.readouterr().err


def test_a_reader_that_has_enough_is_no_error(tmp_path, run):
    folder, journal = run
    for version in range(2, 3000):
        journal.emit(Weights(version, 0, 0, 0))
    end(journal)
    arguments = [sys.executable, "-m", "mlxe_async", "follow", folder.name]
    with subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == b""


def test_an_interrupt_ends_following_quietly(tmp_path, run):
    folder, _ = run
    arguments = [sys.executable, "-m", "mlxe_async", "follow", folder.name]
    with subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(2)
        assert process.wait(30) == 130
        assert process.stderr.read() == b""
