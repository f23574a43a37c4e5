"""`compare` of a suite: one table over all tasks, kept, resumed, and refused where it makes no sense."""

import json
import signal
from pathlib import Path

import pytest
from study_runs import story, write_run

from mlxe_async.analysis import pictures, study
from mlxe_async.analysis.baselines import random_play
from mlxe_async.analysis.outcomes import failure, outcome
from mlxe_async.cli import main, suite
from mlxe_async.cli.studying import Interrupted, Runner
from mlxe_async.errors import TaskError

SUITE = """\
[suite]
seeds = [1, 2]
env_steps = 1000
[settings]
schedule.executors = 1
[tasks.pole]
task.env = "CartPole-v1"
random = 10.0
reference = 110.0
[tasks.acro]
task.env = "Acrobot-v1"
random = -200.0
[algorithms.ppo]
algorithm.name = "ppo"
[algorithms.a2c]
algorithm.name = "a2c"
"""


class Faked:
    """In the place of real runs: the longer a run, the more it reached; that of a2c at the pole fails with seed 2."""

    def __init__(self):
        self.runs, self.stop_before = [], None

    def __call__(self, runner, arm, seed):
        if len(self.runs) == self.stop_before:
            raise Interrupted(signal.SIGINT)
        self.runs.append((arm.name, seed))
        if (arm.name, seed) == ("pole-a2c", 2):
            return failure(arm.name, seed, "killed by SIGKILL", 2.0)
        lines = story(arm.name, seed, solved_at=None, tested=False, episodes=8 + 2 * seed + 4 * ("ppo" in arm.name))
        return outcome(write_run(runner._kept.runs, lines, folder=f"20260101T{seed:06d}Z-{arm.name}"))


@pytest.fixture
def faked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suite.toml").write_text(SUITE)
    fake = Faked()
    monkeypatch.setattr(Runner, "run_once", lambda self, arm, seed: fake(self, arm, seed))
    return fake


def ask(*arguments):
    return main(["compare", *arguments, "--no-pictures"])


def rows(text, start):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith(start)]


def test_one_table_over_all_tasks_is_printed_and_kept(faked, capsys):
    assert ask("suite.toml", "--out", "out") == 0
    assert faked.runs[:4] == [("pole-ppo", 1), ("pole-a2c", 1), ("acro-ppo", 1), ("acro-a2c", 1)]
    out = capsys.readouterr().out
    (ppo,) = rows(out, "| ppo |")
    # Both seeds end with 70 and 80: normalised 0.6 and 0.7; the acrobot's reference is the registered -100.
    assert ppo[1:3] == ["0.650", "2.750"]
    assert rows(out, "| a2c |")[0][-1] == "1 of 4"
    assert rows(out, "| pole | a2c |")[0][2:] == ["50", "50, failed", "killed by SIGKILL"]
    assert rows(out, "| acro | -200 | -100 |")[0][-1] == "random play as written; reference: the registered threshold"
    assert "Normalised scores" in Path("out/table.md").read_text()
    assert Path("out/profile.csv").read_text().startswith("algorithm,normalised_score")
    assert len(Path("out/outcomes.jsonl").read_text().splitlines()) == 8


@pytest.mark.long
def test_an_interrupted_suite_goes_on_to_the_same_table(faked, capsys):
    assert ask("suite.toml", "--out", "whole") == 0
    whole = capsys.readouterr().out
    for stop, again in ((3, ["suite.toml", "--out", "parts"]), (6, ["suite.toml", "--out", "parts"])):
        faked.runs.clear()
        faked.stop_before = stop if stop == 3 else stop - 3
        assert ask(*again) == 130
    faked.stop_before = None
    assert ask("--resume", "parts") == 0
    assert capsys.readouterr().out == whole
    assert len(list(Path("parts/outcomes").glob("[!.]*"))) == 8


@pytest.mark.long
def test_more_seeds_or_algorithms_keep_what_has_finished_and_changed_settings_are_noticed(faked, capsys):
    assert ask("suite.toml", "--out", "out") == 0
    faked.runs.clear()
    assert ask("suite.toml", "--out", "out", "--seeds", "1..3") == 0
    assert faked.runs == [("pole-ppo", 3), ("pole-a2c", 3), ("acro-ppo", 3), ("acro-a2c", 3)]
    Path("suite.toml").write_text(SUITE.replace('name = "ppo"', 'name = "ppo"\nalgorithm.clip = 0.1'))
    assert ask("suite.toml", "--out", "out") == 2
    said = capsys.readouterr().err
    assert "suite.toml: pole-ppo: it (or --set, or a module it names) has changed since 2 of its runs" in said
    assert "pole-a2c: it" not in said


@pytest.mark.long
def test_random_play_is_measured_where_it_is_left_out_and_told(faked, capsys):
    Path("suite.toml").write_text(SUITE.replace("random = 10.0\n", ""))
    assert ask("suite.toml", "--out", "out") == 0
    said = capsys.readouterr()
    assert "pole: random play measured by 20 episodes: " in said.err
    level = json.loads(Path("out/suite.json").read_text())["levels"]["pole"]
    assert 15 < level["random"] < 30
    assert level["told"].startswith("random play measured by 20 episodes; ")
    assert ask("suite.toml", "--out", "out") == 0
    assert "measured by" not in capsys.readouterr().err, "it is measured once"


def test_a_task_without_a_threshold_needs_a_reference(faked, capsys):
    Path("suite.toml").write_text(SUITE.replace('env = "Acrobot-v1"', 'env = "Pendulum-v1"'))
    assert ask("suite.toml", "--out", "out") == 2
    said = capsys.readouterr().err
    assert "tasks.acro.reference: got nothing, and Pendulum-v1 is registered without a threshold: write it" in said
    assert faked.runs == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["suite.toml"], "got further files or runs too, expected a suite alone"),
        (["--retention", "5"], "--retention: got it with a suite"),
        (["--d2"], "--d2: got it with a suite"),
        (["--set", "schedule.executor=2"], 'did you mean "executors"?'),
    ],
)
def test_what_makes_no_sense_with_a_suite_is_refused(faked, capsys, more, said):
    assert ask("suite.toml", *more) == 2
    assert said in capsys.readouterr().err
    assert faked.runs == []


@pytest.mark.long
def test_a_damaged_suite_file_in_the_folder_is_told_with_what_to_do(faked, capsys):
    assert ask("suite.toml", "--out", "out") == 0
    Path("out", suite.SUITE).write_text("{")
    assert ask("--resume", "out") == 3
    assert "run the suite's command again, it is made anew" in capsys.readouterr().err
    assert ask("suite.toml", "--out", "out") == 0


def test_a_folder_that_was_only_begun_is_taken(faked):
    for name in (study.OUTCOMES, study.RUNS):
        Path("out", name).mkdir(parents=True)
    assert ask("suite.toml", "--out", "out") == 0


@pytest.fixture(scope="module")
def _fonts(tmp_path_factory):
    """Matplotlib keeps the files of its fonts open for good."""
    pictures.bars({"is": [outcome(write_run(tmp_path_factory.mktemp("fonts"), story()))]})


@pytest.mark.long
@pytest.mark.usefixtures("_fonts")
def test_the_profile_and_the_curves_of_each_task_are_drawn(faked):
    assert main(["compare", "suite.toml", "--out", "out"]) == 0
    assert {"profile.svg", "profile.png", "learning-pole.svg", "learning-acro.svg"} <= {
        path.name for path in Path("out").iterdir()
    }


def test_random_play_follows_from_its_seeds_and_takes_the_tasks_own_rewards():
    value, episodes = random_play({"env": "CartPole-v1", "clip_rewards": True}, 5)
    assert (value, episodes) == random_play({"env": "CartPole-v1"}, 5)
    assert 10 < value < 60
    assert random_play({"env": "MountainCar-v0"}, 3) == (-200.0, 3)
    assert random_play({"env": "MountainCar-v0"}, 3, most_steps=300) == (-200.0, 1)
    with pytest.raises(TaskError):
        random_play({"env": "Nothing-v0"})
