"""`tune` writes the fastest of short runs, and nothing at all where it is stopped or nothing is faster."""

import asyncio
import os
import signal
import tempfile
from pathlib import Path

import pytest

from mlxe_async.cli import main, measuring, tune
from mlxe_async.cli.rewriting import rewritten
from mlxe_async.errors import RunFailed
from mlxe_async.settings import load_settings

TEXT = """\
[task]
env = "CartPole-v1"   # the pole

[schedule]
kind = "is"
executors = 8         # too many
envs_per_executor = 2
sync = "rollout"
rollout_steps = 16

[algorithm]
name = "ppo"

[learner]
threads = 1
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune, "usable_cores", lambda: 2)
    (tmp_path / "mine.toml").write_text(TEXT)
    return "mine.toml"


@pytest.fixture
def imagined(monkeypatch):
    """Runs that are only imagined: the fewer executors, the faster."""
    asked = []

    async def measured(file, overrides, changes):
        settings = measuring.settings_with(file, overrides, changes)
        asked.append(dict(changes))
        if settings.schedule.kind == "serial":
            raise RunFailed("no serial today")
        await asyncio.sleep(0)
        return measuring.ShortRun(8000.0 / settings.schedule.executors, {}, None, settings)

    monkeypatch.setattr(tune, "measured", measured)
    return asked


def test_the_fastest_settings_are_written_into_the_users_file(file, imagined, tmp_path, capsys):
    assert main(["tune", file]) == 0
    said = capsys.readouterr()
    assert "mine-tuned.toml: schedule.envs_per_executor = 16, schedule.executors = 1: 8,000 rows/s" in said.err
    assert "failed: no serial today" in said.err
    text = (tmp_path / "mine-tuned.toml").read_text()
    assert text.startswith("# By tune from mine.toml on ")
    assert "# 1,000 -> 8,000 rows/s (+700%).\n# What is learned stays as it is" in text
    assert 'env = "CartPole-v1"   # the pole\n' in text
    assert "executors = 1  # by tune, was 8; too many\nenvs_per_executor = 16  # by tune, was 2\n" in text
    found = load_settings("mine-tuned.toml")
    assert (found.schedule.executors, found.schedule.envs_per_executor) == (1, 16)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine-tuned.toml", "mine.toml"]


def test_a_run_is_tuned_by_the_settings_that_it_was_made_with(imagined, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune, "usable_cores", lambda: 2)
    folder = tmp_path / "runs" / "20261128T120000Z-pole"
    folder.mkdir(parents=True)
    (folder / "settings.toml").write_text(f'[run]\nname = "pole"\n{TEXT}')
    assert main(["tune", "20261128T120000Z-pole"]) == 0
    assert "pole-tuned.toml: " in capsys.readouterr().err
    found = load_settings("pole-tuned.toml")
    assert (found.run.name, found.schedule.executors, found.schedule.envs_per_executor) == ("pole", 1, 16)
    assert (folder / "settings.toml").read_text() == f'[run]\nname = "pole"\n{TEXT}'


def test_a_run_that_is_not_there_and_code_of_one_from_elsewhere_are_refused(imagined, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "nothing"]) == 2
    assert 'there is no run "nothing"' in capsys.readouterr().err
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "settings.toml").write_text(TEXT.replace("CartPole-v1", "their_task:Theirs-v0"))
    assert main(["tune", "theirs"]) == 2
    assert "--trust their_task" in capsys.readouterr().err
    assert not imagined


def test_those_that_are_close_run_again(file, imagined):
    assert main(["tune", file]) == 0
    best = {"schedule.executors": 1, "schedule.envs_per_executor": 16}
    assert imagined.count(best) == tune.REPEATS


def test_overrides_are_in_the_file_too(file, imagined, capsys):
    assert main(["tune", file, "--set", "schedule.memorizer=own", "--set", "run.seed=5", "--out", "a.toml"]) == 0
    found = load_settings("a.toml")
    assert found.run.seed == 5
    assert found.schedule.executors == 1
    capsys.readouterr()


def test_what_cannot_be_edited_is_written_whole(file, imagined, tmp_path, capsys):
    (tmp_path / "odd.toml").write_text(TEXT.replace("executors = 8", "'executors' = 8"))
    assert main(["tune", "odd.toml"]) == 0
    assert load_settings("odd-tuned.toml").schedule.executors == 1
    capsys.readouterr()


def test_where_nothing_is_faster_nothing_is_written(file, imagined, tmp_path, capsys):
    assert main(["tune", file, "--set", "schedule.executors=1", "--set", "schedule.envs_per_executor=16"]) == 0
    assert "nothing was faster than the settings as they are: 8,000 rows/s" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_the_best_so_far_and_leaves_nothing(
    file, imagined, tmp_path, monkeypatch, capsys, number
):
    before = tune.measured

    async def measured(*arguments):
        if len(imagined) == 2:
            os.kill(os.getpid(), number)
            await asyncio.sleep(60)
        return await before(*arguments)

    monkeypatch.setattr(tune, "measured", measured)
    assert main(["tune", file]) == 128 + number
    said = capsys.readouterr()
    assert f"stopped by {number.name}; best so far schedule.envs_per_executor = 8, schedule.executors = 2" in said.err
    assert "nothing was written" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


def test_without_a_first_rate_there_is_no_best(file, monkeypatch, capsys):
    async def measured(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)

    monkeypatch.setattr(tune, "measured", measured)
    assert main(["tune", file]) == 130
    assert "before anything was measured; nothing was written" in capsys.readouterr().err


def test_settings_that_fail_at_once_are_told_as_they_are(file, monkeypatch, capsys):
    async def measured(*arguments):
        raise RunFailed("the environment raised")

    monkeypatch.setattr(tune, "measured", measured)
    assert main(["tune", file]) == 3
    assert "the environment raised" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["other.toml"], "other.toml"),
        (["mine"], 'there is no run "mine"'),
        (["mine.toml", "--trust", "a_module"], "--trust: got FILE.toml too"),
        (["mine.toml", "--out", "mine.toml"], "mine.toml is there already, expected the name of a new file"),
        (["mine.toml", "--out", "new.txt"], "new.txt does not end in .toml"),
        (["mine.toml", "--out", "away/new.toml"], "away is no folder"),
        (["mine.toml", "--seconds", "1"], "expected from 10 to 86400"),
        (["mine.toml", "--set", "schedule.executors=0"], "schedule.executors"),
        (["mine.toml", "--set", "run.record=true", "--set", "schedule.kind=oa"], "run.record is set"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_measured(file, imagined, tmp_path, capsys, words, told):
    assert main(["tune", *words]) == 2
    assert told in capsys.readouterr().err
    assert imagined == []
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


@pytest.mark.long
def test_real_runs_are_measured_and_leave_nothing(file, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measuring, "WINDOW_S", 0.3)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    assert (
        main(
            ["tune", file, "--set", "schedule.executors=4", "--set", "schedule.envs_per_executor=4", "--seconds", "15"]
        )
        == 0
    )
    said = capsys.readouterr()
    assert "as it was: " in said.err
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not (tmp_path / "runs").exists()


OWN = """\
[run]
python_path = ["."]   # mine
[stop]
env_steps = 20000
[task]
env = "CartPole-v1"
[schedule]
kind = "is"
executors = 2         # two cores
[algorithm]
name = "ppo"
learning_rate = 0.001
"""


DOTTED = OWN.replace('[schedule]\nkind = "is"\nexecutors = 2         # two cores\n', "")


@pytest.mark.parametrize("text", [OWN, f'schedule.kind = "is"\nschedule.executors = 2  # dotted\n{DOTTED}'])
def test_a_file_for_another_folder_says_no_more_than_the_users_own(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text(text)
    changes = {"algorithm.learning_rate": 0.0005, "schedule.executors": 1}
    wanted = measuring.settings_with("own.toml", (), changes)
    Path("there").mkdir()
    found = rewritten("own.toml", (), changes, wanted, Path("there"), "sweep")
    Path("there/best.toml").write_text(found)
    again = load_settings("there/best.toml", {"run.name": wanted.run.name})
    assert again.model_dump() == wanted.model_dump()
    assert again.said["schedule"] == wanted.said["schedule"] == ["executors", "kind"]
    assert ("two cores" in found) == ("two cores" in text)
