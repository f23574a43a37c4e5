"""Runs of a study at the same time: each judged by its own folder, none left behind, and no word of seconds."""

import dataclasses
import io
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from study_runs import story, write_run

from mlxe_async.analysis import pictures
from mlxe_async.analysis.outcomes import outcome
from mlxe_async.analysis.study import Arm, StudyFolder
from mlxe_async.analysis.tables import all_tables
from mlxe_async.cli import main
from mlxe_async.cli.console import Console
from mlxe_async.cli.studying import Interrupted, Runner, interruptible
from mlxe_async.errors import RunFailed

ARM = Arm("is", "is.toml", (), "key")
SETTINGS = '[run]\nname = "{}"\n[task]\nenv = "CartPole-v1"\n[schedule]\nkind = "{}"\n'

# Stands in for a run: waits until `together` of them are there, then leaves a folder as a run does, and ends.
STAND_IN = """
import json, os, pathlib, sys, time
seed, together, code, base, lines = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
(pathlib.Path(base) / f"here-{seed}").touch()
until = time.monotonic() + 60
while len(list(pathlib.Path(base).glob("here-*"))) < together and time.monotonic() < until:
    time.sleep(0.01)
assert time.monotonic() < until, "the others never came"
folder = pathlib.Path(base) / f"20260101T00000{9 - seed}Z-is"
folder.mkdir()
(folder / "lock").write_text(json.dumps({"pid": os.getpid()}))
(folder / "log.jsonl").write_text(pathlib.Path(lines).read_text())
print("seed", seed, "says so", file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """A runner whose commands are stand-ins; `codes` and `together` say what becomes of them."""
    with StudyFolder(tmp_path / "study") as kept:
        made = Runner(kept, Console(io.StringIO()), longest_s=60.0, keep_runs=True)
        made.codes, made.together = {}, 2

        def command(self, arm, seed):
            path = tmp_path / f"lines-{seed}"
            lines = story(arm.name, seed, solved_at=seed + 1)
            path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
            numbers = [str(number) for number in (seed, self.together, self.codes.get(seed, 0))]
            return [sys.executable, "-c", STAND_IN, *numbers, str(self._kept.runs), str(path)]

        monkeypatch.setattr(Runner, "_command", command)
        yield made


def test_runs_are_made_at_the_same_time_and_each_has_its_own_outcome(runner):
    rounds = [(ARM, seed) for seed in (1, 2, 3, 4)]
    found = {seed: one for _, seed, one in runner.side_by_side(rounds, 2)}
    assert sorted(found) == [1, 2, 3, 4]
    assert [found[seed].episodes for seed in (1, 2, 3, 4)] == [2, 3, 4, 5]
    assert all(one.seed == seed and one.facts["jobs"] == 2 and one.solved for seed, one in found.items())


def test_one_that_fails_is_an_outcome_with_its_reason(runner):
    runner.codes = {1: 3}
    found = {seed: one for _, seed, one in runner.side_by_side([(ARM, 1), (ARM, 2)], 2)}
    assert found[1].reason == "seed 1 says so"
    assert found[2].solved


def test_one_that_could_not_be_tried_ends_the_others(runner):
    runner.codes, runner.together = {1: 2}, 1
    hanging = [sys.executable, "-c", "import time; time.sleep(600)"]
    command = Runner._command
    runner._command = lambda arm, seed: hanging if seed == 2 else command(runner, arm, seed)
    with pytest.raises(RunFailed, match="seed 1: the run could not be tried"):
        list(runner.side_by_side([(ARM, 2), (ARM, 1)], 2))
    # That no process is left is seen to after every test.


def test_one_that_takes_too_long_is_ended_and_has_failed(runner):
    runner._longest_s, runner.together = 1.0, 99
    ((_, _, one),) = runner.side_by_side([(ARM, 1)], 2)
    assert (one.failed, one.reason) == (True, "timed out after 1 s")


def test_who_stops_listening_ends_them_all(runner):
    runner.together = 99
    going = runner.side_by_side([(ARM, 1), (ARM, 2)], 2)
    runner._longest_s = 1.0
    next(going)
    going.close()


HOOKS = []
os.register_at_fork(after_in_parent=lambda: [hook() for hook in HOOKS])


@pytest.mark.parametrize("alone", [True, False])
def test_a_signal_in_the_moment_of_a_fork_is_not_lost(runner, alone):
    runner.together = 99
    HOOKS.append(lambda: signal.raise_signal(signal.SIGTERM))
    try:
        with pytest.raises(Interrupted), interruptible():
            runner.run_once(ARM, 1) if alone else list(runner.side_by_side([(ARM, 1)], 2))
    finally:
        HOOKS.clear()


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Settings files in the working folder, and outcomes in the place of runs; `asked` holds the rounds."""
    monkeypatch.chdir(tmp_path)
    for name in ("is", "oa"):
        Path(f"{name}.toml").write_text(SETTINGS.format(name, name))
    asked = []

    def side_by_side(self, rounds, jobs):
        asked.append(([(arm.name, seed) for arm, seed in rounds], jobs))
        for arm, seed in rounds:
            path = write_run(self._kept.runs, story(arm.name, seed), folder=f"20260101T00000{seed}Z-{arm.name}")
            one = outcome(path, 995 * 10**9, 12.0)
            yield arm, seed, dataclasses.replace(one, facts={**one.facts, "jobs": jobs})

    monkeypatch.setattr(Runner, "side_by_side", side_by_side)
    monkeypatch.setattr(pictures, "all_pictures", lambda groups: [])
    return asked


@pytest.mark.long
def test_the_report_of_runs_side_by_side_judges_returns_and_has_no_word_of_seconds(study, capsys):
    assert main(["compare", "is.toml", "oa.toml", "--seeds", "1,2", "--jobs", "2", "--out", "study"]) == 0
    assert study == [([("is", 1), ("oa", 1), ("is", 2), ("oa", 2)], 2)]
    out, err = capsys.readouterr()
    assert "note: schedule oa: what is learned depends on who is fast" in err
    assert "4 of 4: oa, seed 2: solved at episode 8\n" in err
    (row,) = [line for line in out.splitlines() if line.startswith("| is |")]
    assert row.startswith("| is | 2 | 2 of 2 | 0 %")
    assert "35.0 [35.0, 35.0]" in row
    heads = [line for line in Path("study/table.md").read_text().splitlines() if line.startswith("| settings")]
    assert len(heads) == 2
    assert not any(word in head for head in heads for word in (" s ", "CPU", "idle"))
    assert "some at the same time" in Path("study/table.md").read_text()
    assert main(["compare", "--resume", "study"]) == 0  # nothing is missing, and it is reported alike
    assert study[1] == ([], 2)
    assert capsys.readouterr().out == out


def test_what_the_clock_ends_is_not_run_side_by_side(study, capsys):
    arguments = ["compare", "is.toml", "--seeds", "1,2", "--out", "study", "--set", "stop.seconds=60"]
    assert main([*arguments, "--jobs", "2"]) == 2
    assert capsys.readouterr().err.startswith("--jobs: got 2, expected 1: stop.seconds ends runs of is")
    assert main(["compare", "is.toml", "--jobs", "0"]) == 2
    assert "--jobs from 1 to 64" in capsys.readouterr().err
    assert study == []


def test_one_timed_run_among_others_does_not_bring_seconds_back(tmp_path):
    one = outcome(write_run(tmp_path, story()), 995 * 10**9, 12.0)
    assert [table.title for table in all_tables({"is": [one]})][:2] == ["What was needed", "How the time was spent"]
    beside = dataclasses.replace(one, facts={**one.facts, "jobs": 2})
    assert [table.title for table in all_tables({"is": [one, beside]})] == ["What was reached", "Every run"]
