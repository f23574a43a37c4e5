"""`sweep` proposes, prunes, goes on where it was, and writes the best; runs are imagined, but at the end."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import leaks
import pytest

from mlxe_async.cli import main, sweep
from mlxe_async.cli.studying import Runner
from mlxe_async.settings import load_settings

pytest.importorskip("optuna")

from mlxe_async.analysis.study import StudyFolder
from mlxe_async.cli.console import Console
from mlxe_async.cli.sweeping import Trials
from mlxe_async.settings.searching import load_sweep

MINE = """\
[task]
env = "CartPole-v1"

[algorithm]
name = "ppo"
clip = 0.2            # as they all do
"""
SWEEP = """\
[sweep]
settings = "mine.toml"
env_steps = 2000
trials = 6
startup_trials = 2
warmup_steps = 500
interval_steps = 200
finalists = 1
fresh_seeds = 2
[search]
algorithm.activation = { choices = ["tanh", "relu"] }
algorithm.clip = { low = 0.05, high = 0.5 }
algorithm.policy = { choices = [[32], [64, 64]] }
"""
IMAGINED = Path(__file__).with_name("imagined_run.py")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(MINE)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    for kind in (Trials, Runner):
        real = kind._command
        monkeypatch.setattr(
            kind, "_command", lambda *args, real=real: [sys.executable, str(IMAGINED), *real(*args)[3:]]
        )
    return tmp_path


def plan(**what):
    """What becomes of the run of each seed, or of that of one name alone."""
    Path("plan.json").write_text(json.dumps({name.removeprefix("s"): value for name, value in what.items()}))


def trials_of(path):
    with Trials(load_sweep("sweep.toml"), Path(path).absolute(), 0, Console(sys.stderr)) as trials:
        return trials.all()


@pytest.mark.long
def test_the_best_values_are_written_with_what_was_measured(folder, capsys):
    assert main(["sweep", "sweep.toml", "--jobs", "1", "--out", "out"]) == 0
    said = capsys.readouterr()
    good = [one for one in trials_of("out") if one.values["algorithm.activation"] == "tanh"]
    best = max(good, key=lambda one: one.number)
    assert best.score == 100.0 + best.number
    text = Path("out/best.toml").read_text()
    assert f"# Best: trial {best.number}, score {100 + best.number}" in text
    assert "Seeds 10000000 to 10000001, which no run had before" in text
    assert "NOT better than the settings as they were: +0.0" in text  # both are tanh, with any clip
    assert "# as they all do" not in text
    settings = load_settings("out/best.toml")
    assert settings.algorithm.table["clip"] == best.values["algorithm.clip"]
    assert settings.algorithm.table["activation"] == "tanh"
    assert settings.algorithm.table["policy"] in ((32,), [32], (64, 64), [64, 64])
    assert settings.stop.env_steps is None, "the budget of trials is not part of the settings"
    assert "| trial | score | ended |" in said.out
    assert "written: out/best.toml" in said.err


@pytest.mark.long
def test_bad_trials_are_ended_by_their_curve_and_are_never_the_best(folder):
    plan(**{f"s{seed}": "waits" for seed in range(2, 12)})
    assert main(["sweep", "sweep.toml", "--trials", "12", "--jobs", "3", "--out", "out"]) == 0
    made = trials_of("out")
    bad = [one for one in made if one.values["algorithm.activation"] == "relu" and one.number >= 5]
    assert bad, "the sampler never tried the bad choice late"
    assert all(one.state in ("pruned", "complete") for one in made)
    assert all(one.state == "pruned" and one.score is None and one.reason.startswith("at ") for one in bad)
    assert not list(Path("out/runs").iterdir()), "runs that were judged are not kept"


@pytest.mark.long
def test_the_best_of_many_runs_is_found_out_by_running_the_highest_again(folder, capsys):
    (folder / "sweep.toml").write_text(SWEEP.replace("finalists = 1", "finalists = 2\nfinalist_seeds = 2"))
    plan(**{"5000001": "failed of trial-5"})
    assert main(["sweep", "sweep.toml", "--jobs", "1", "--out", "out"]) == 0
    # Trial 5 has the highest score, but one of its runs fails; that of trial 4 is the next.
    said = capsys.readouterr().err
    assert "those of the highest scores ran again: trial 5: mean - of 105 / 5,000,100 / failed; trial 4: mean" in said
    assert "best: trial 4, score 104" in said
    before = Path("out/finals/outcomes/trial-4-5000000.json").stat().st_mtime_ns
    assert main(["sweep", "sweep.toml", "--jobs", "1", "--out", "out"]) == 0
    assert Path("out/finals/outcomes/trial-4-5000000.json").stat().st_mtime_ns == before


@pytest.mark.long
def test_failed_and_diverged_trials_are_told_as_such_and_are_not_complete(folder, capsys):
    plan(s0="diverged", s1="failed", s2="refused")
    assert main(["sweep", "sweep.toml", "--trials", "5", "--jobs", "1", "--out", "out"]) == 0
    made = trials_of("out")
    assert [one.state for one in made[:3]] == ["diverged", "failed", "refused"]
    assert [one.reason for one in made[:3]] == ["it diverged by plan", "it failed by plan", "it refused by plan"]
    assert all(one.score is None for one in made[:3])
    said = capsys.readouterr().err
    assert "trial 0 of 5: diverged (it diverged by plan)" in said
    assert "1 diverged, 1 failed, 1 refused" in said
    assert "# trial 0: diverged (it diverged by plan)" in Path("out/best.toml").read_text()


def test_a_sweep_of_which_no_trial_is_complete_writes_no_best(folder, capsys):
    plan(**{f"s{seed}": "diverged" for seed in range(3)})
    assert main(["sweep", "sweep.toml", "--trials", "3", "--out", "out"]) == 3
    assert "none is complete, so there is no best" in capsys.readouterr().err
    assert not Path("out/best.toml").exists()


def test_a_sweep_whose_first_trials_are_all_refused_is_given_up_with_the_reason(folder, capsys):
    plan(**{f"s{seed}": "refused" for seed in range(20)})
    assert main(["sweep", "sweep.toml", "--trials", "20", "--jobs", "1", "--out", "out"]) == 3
    assert "the first 3 trials were refused, the last: it refused by plan" in capsys.readouterr().err


@pytest.mark.long
def test_what_was_interrupted_proposes_the_same_as_what_was_not(folder, capsys):
    assert main(["sweep", "sweep.toml", "--jobs", "1", "--out", "whole"]) == 0
    plan(s3="interrupt")
    assert main(["sweep", "sweep.toml", "--jobs", "1", "--out", "parts"]) == 130
    assert "SIGINT: 3 complete, 1 running; the same command goes on" in capsys.readouterr().err.replace(
        "2 complete, 1 pruned", "3 complete"
    )
    assert len(trials_of("parts")) == 4
    assert main(["sweep", "sweep.toml", "--jobs", "1", "--out", "parts"]) == 0
    told = [(one.number, dict(one.values), one.state, one.score) for one in trials_of("whole")]
    assert told == [(one.number, dict(one.values), one.state, one.score) for one in trials_of("parts")]


@pytest.mark.long
def test_a_higher_number_of_trials_goes_on_and_a_finished_sweep_makes_none(folder):
    assert main(["sweep", "sweep.toml", "--trials", "2", "--out", "out"]) == 0
    first = trials_of("out")
    assert main(["sweep", "sweep.toml", "--trials", "4", "--out", "out"]) == 0
    assert trials_of("out")[:2] == first
    assert len(trials_of("out")) == 4
    before = Path("out/fresh/outcomes/before-10000000.json").stat().st_mtime_ns
    assert main(["sweep", "sweep.toml", "--trials", "4", "--out", "out"]) == 0
    assert len(trials_of("out")) == 4
    assert Path("out/fresh/outcomes/before-10000000.json").stat().st_mtime_ns == before


def test_another_search_in_the_same_folder_is_refused(folder, capsys):
    assert main(["sweep", "sweep.toml", "--trials", "1", "--out", "out"]) == 0
    (folder / "sweep.toml").write_text(SWEEP.replace("high = 0.5", "high = 0.4"))
    assert main(["sweep", "sweep.toml", "--trials", "1", "--out", "out"]) == 2
    assert "has changed since trials in out were made, expected the same: give another --out" in capsys.readouterr().err


def test_a_damaged_database_is_told_with_what_to_do(folder, capsys):
    assert main(["sweep", "sweep.toml", "--trials", "1", "--out", "out"]) == 0
    Path("out/trials.db").write_bytes(b"no database" * 500)
    assert main(["sweep", "sweep.toml", "--trials", "2", "--out", "out"]) == 3
    said = capsys.readouterr().err
    assert "trials.db cannot be used as a database of Optuna's, give another --out, or remove it" in said
    assert "Traceback" not in said


def test_the_folder_of_a_sweep_is_held_by_one_command_at_a_time(folder, capsys):
    with StudyFolder(Path("out"), proof=sweep.SWEEP):
        assert main(["sweep", "sweep.toml", "--out", "out"]) == 75
    assert "another one is at work in out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mine.txt"], 'sweep: got "mine.txt", expected a file ending in .toml'),
        (["sweep.toml", "--trials", "0"], "sweep: expected --trials from 1 to 10,000"),
        (["sweep.toml", "--jobs", "0"], "--jobs from 1 to 64"),
        (["mine.toml"], "mine.toml:1: sweep: got nothing, expected a table"),
    ],
)
def test_mistakes_are_told_in_one_line(folder, capsys, arguments, said):
    assert main(["sweep", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_missing_optuna_is_told_with_the_line_that_installs_it(folder, capsys, monkeypatch):
    monkeypatch.setattr(sweep.importlib.util, "find_spec", lambda name: None)
    assert main(["sweep", "sweep.toml"]) == 2
    assert "pip install 'mlxe_async[sweep]'" in capsys.readouterr().err
    assert not Path("runs").exists()


REAL = SWEEP.replace("fresh_seeds = 2", "fresh_seeds = 1").replace(
    "env_steps = 2000", "env_steps = 600\nset = ['schedule.executors=1', 'learner.threads=1']"
)


def start(folder):
    return subprocess.Popen(
        [sys.executable, "-m", "mlxe_async", "sweep", "sweep.toml", "--trials", "3", "--jobs", "1", "--out", "real"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until_told(process, what):
    for line in process.stderr:
        if what in line:
            return
    raise AssertionError(f"it ended without a word of {what}")


@pytest.mark.slow
def test_a_real_sweep_is_interrupted_killed_and_finished(tmp_path):
    (tmp_path / "mine.toml").write_text(MINE)
    (tmp_path / "sweep.toml").write_text(REAL)
    with start(tmp_path) as process:
        until_told(process, "trial 0 of 3")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert not leaks.processes_after(30), "a trial went on without its sweep"
    with start(tmp_path) as process:
        until_told(process, "trial 1 of 3")
        process.kill()
    assert not leaks.processes_after(30), "a trial went on without its sweep"
    with start(tmp_path) as process:
        _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "trial 0 of 3" not in err
    assert "trial 2 of 3" in err
    assert "3 trials: " in err
    assert load_settings(tmp_path / "real" / "best.toml").algorithm.table["clip"] != 0.2
