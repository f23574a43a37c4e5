"""A run is named by path, by its folder's name or by `run.name`, in any folder; other packages' options are told."""

import pytest

from mlxe_async import cli
from mlxe_async.errors import NotFound
from mlxe_async.storage.run_folder import find_run, newest_named


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A working folder with two runs called mem in train_dir, and none in runs."""
    monkeypatch.chdir(tmp_path)
    for time in ("20260101T000000Z", "20260102T000000Z"):
        folder = tmp_path / "train_dir" / f"{time}-mem"
        folder.mkdir(parents=True)
        (folder / "log.jsonl").write_text("")
    return tmp_path / "train_dir"


def test_the_newest_run_of_a_name_is_found(runs):
    assert find_run("mem", runs) == newest_named("mem", runs) == runs / "20260102T000000Z-mem"
    assert newest_named("me", runs) is None
    assert newest_named("../x", runs) is None


def test_a_run_that_is_not_there_is_answered_with_the_ways_to_name_it(runs):
    with pytest.raises(NotFound, match='"runs list" names them; of runs elsewhere give the path, or --dir FOLDER'):
        find_run("latest")


@pytest.mark.parametrize("command", ["curve"])
def test_a_run_in_another_folder_is_named_with_dir(command, runs, capsys):
    assert cli.main([command, "mem", "--dir", "train_dir"]) == 0
    assert "mem is train_dir/20260102T000000Z-mem" in capsys.readouterr().err
    assert cli.main([command, "20260101T000000Z-mem", "--dir", "train_dir"]) == 0
    assert capsys.readouterr().err == ""
    assert cli.main([command, "other", "--dir", "train_dir"]) == 2
    assert f'there is no run "other", neither as a path nor in {runs}' in capsys.readouterr().err


@pytest.mark.parametrize("command", ["play", "eval", "follow", "report", "trace", "curve", "export"])
def test_commands_take_a_folder_of_runs(command, capsys):
    code = cli.main([command, "never", "--dir", "nowhere", *(["--to", "csv"] if command == "export" else [])])
    assert code == 2
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("play latest --max_num_episodes=10", "--max_num_episodes is --episodes 10"),
        ("play latest --no_render", "--no_render is nothing: without --render nothing is shown"),
        ("play latest --eval_deterministic", "--eval_deterministic is nothing: the best actions are taken"),
        ("play --experiment=mem", "--experiment is RUN: play mem takes the newest run of that name"),
        ("eval --train_dir=x latest", "--train_dir is --dir x"),
        ("enjoy --env=a --experiment=mem", "expected python -m mlxe_async play latest --render; --env is nothing: the"),
        ("enjoy --env=a --experiment=mem", "--experiment is RUN: play mem takes the newest run of that name"),
        ("compare a.toml --track --num-seeds 3", "--track is export latest --to tensorboard"),
        ("compare a.toml --track --num-seeds 3", "--num-seeds is --seeds 0..N-1"),
        ("compare a.toml --num_workers=2", "--num_workers is --set schedule.executors=2"),
    ],
)
def test_options_of_other_packages_are_answered_by_those_of_a_command(line, said, capsys):
    assert cli.main(line.split()) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("APPO", 'APPO is ppo, with schedule.kind = "oa", here; --help ppo lists its keys.'),
        ("num_workers", "num_workers is called schedule.executors here.\n[schedule]\n  executors = 2"),
        ("cell", '[algorithm]  of a2c\n  cell = "none"'),
        ("oa", '[schedule]\n  kind = "oa"'),
        ("schedule.executors", "[schedule]\n  executors = 2"),
        ("num_policies", "There is no key num_policies here: one agent learns"),
    ],
)
def test_help_on_a_key_says_which_table_has_it(name, said, capsys):
    assert cli.main(["--help", name]) == 0
    assert said in capsys.readouterr().out
