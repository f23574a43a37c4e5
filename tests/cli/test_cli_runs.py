"""`runs list` tells what became of runs; `runs prune` removes old ones and nothing else."""

import fcntl
import json
import os
import time
from contextlib import contextmanager

import pytest

from mlxe_async.analysis.past_runs import is_run_folder, look_at, past_runs, point_latest, remove
from mlxe_async.cli import main
from mlxe_async.errors import RunFailed, RunFolderBusy
from mlxe_async.logs.events import RunEnd
from mlxe_async.logs.journal import Journal
from mlxe_async.storage.run_folder import LOCK, RECORDING, RunFolder

DAY_S = 86_400
SETTINGS = '[task]\nenv = "CartPole-v1"\n[schedule]\nkind = "oa"\n[algorithm]\nname = "mlxe"\n'


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def base(tmp_path):
    return tmp_path / "runs"


@contextmanager
def living(base, name):
    """A run that goes on: everything that a run makes, and the lock held."""
    with RunFolder.create(base, "x") as folder, Journal(folder.log_path, folder.name) as journal:
        folder.write_settings(SETTINGS)
        folder.write_run_json({})
        folder.write_status({"episodes": 3, "env_steps": 30, "seconds": 3.0})
        (folder.output_path / "mlxe-lrn.txt").write_text("out")
        (folder.crash_path / "mlxe-exe-0.1.txt").write_text("died")
        (folder.checkpoints_path / "1").mkdir(parents=True)
        (folder.path / RECORDING).touch()  # where run.record = true
        folder.path.rename(base / name)
        folder.path = base / name
        yield folder, journal


def ended(base, name, *, solved=False, days=0.0, reason="episodes"):
    """A run that ended so many days ago."""
    with living(base, name) as (folder, journal):
        if reason:
            journal.emit(RunEnd(reason, solved, 5, 1234, 6, 7.0, 1.0, None, 0))
        then = time.time() - days * DAY_S
        os.utime(folder.log_path, (then, then))
    return folder.path


def names(base):
    return sorted(path.name for path in base.iterdir() if path.name != "latest")


def test_runs_are_listed_newest_first_with_what_became_of_them(base, capsys):
    ended(base, "20250101T000000Z-a", reason="episodes")
    ended(base, "20250102T000000Z-b", solved=True, reason="env_steps")
    ended(base, "20250103T000000Z-c", reason="")
    with living(base, "20250104T000000Z-d"):
        assert main(["runs", "list"]) == 0
    head, *lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert head == ["run", "what", "state", "episodes", "steps", "time", "size"]
    assert [line[0][-1] for line in lines] == list("dcba")
    assert [line[5:-2] for line in lines] == [
        ["running", "3", "30", "3", "s"],
        ["died", "3", "30", "3", "s"],
        ["env_steps,", "solved", "5", "1,234", "7", "s"],
        ["episodes", "5", "1,234", "7", "s"],
    ]
    assert lines[0][1:5] == ["mlxe", "on", "CartPole-v1,", "oa"]


def test_the_list_is_there_for_programs_too(base, capsys):
    path = ended(base, "20250101T000000Z-a")
    assert main(["runs", "list", "--json", "--dir", str(base)]) == 0
    [line] = capsys.readouterr().out.splitlines()
    one = json.loads(line)
    assert one["path"] == str(path)
    assert one["started"] == "2025-01-01T00:00:00+00:00"
    assert (one["state"], one["solved"], one["env_steps"], one["foreign"]) == ("episodes", False, 1234, [])


def test_where_there_are_no_runs_that_is_said(capsys):
    assert main(["runs", "list", "--dir", "nowhere"]) == 0
    assert capsys.readouterr().out == "no runs in nowhere\n"


def test_without_yes_pruning_removes_nothing(base, capsys):
    for day in (1, 2, 3):
        ended(base, f"2025010{day}T000000Z-a")
    before = names(base)
    assert main(["runs", "prune", "--keep", "1"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out] == ["keep", "remove", "remove", "would"]
    assert out[-1].startswith("would remove 2 of 3 runs")
    assert names(base) == before


def test_all_but_the_newest_are_pruned_and_latest_leads_to_one_that_is_left(base, capsys):
    for day in (1, 2, 3):
        ended(base, f"2025010{day}T000000Z-a")
    (base / "latest").unlink()
    (base / "latest").symlink_to("20250101T000000Z-a")
    assert main(["runs", "prune", "--keep", "1", "--yes"]) == 0
    assert names(base) == ["20250103T000000Z-a"]
    assert (base / "latest").readlink().name == "20250103T000000Z-a"
    assert "removed 2 of 3 runs" in capsys.readouterr().out
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert list(base.iterdir()) == []


def test_only_runs_older_than_so_many_days_are_pruned(base):
    ended(base, "20250101T000000Z-a", days=10)
    ended(base, "20250102T000000Z-b", days=2)
    ended(base, "20250103T000000Z-c", days=20)
    assert main(["runs", "prune", "--older-than", "5", "--keep", "1", "--yes"]) == 0
    assert names(base) == ["20250102T000000Z-b", "20250103T000000Z-c"]
    assert main(["runs", "prune", "--older-than", "5", "--yes"]) == 0
    assert names(base) == ["20250102T000000Z-b"]


def test_without_a_number_the_ten_newest_stay(base):
    for day in range(10, 22):
        ended(base, f"202501{day}T000000Z-a")
    assert main(["runs", "prune", "--yes"]) == 0
    assert len(names(base)) == 10
    assert names(base)[0] == "20250112T000000Z-a"


def test_solved_runs_stay_unless_asked_for(base):
    ended(base, "20250101T000000Z-a", solved=True)
    saved = ended(base, "20250102T000000Z-b", reason="")
    (saved / "checkpoints" / "1" / "manifest.json").write_text(json.dumps({"body": {"facts": {"solved": True}}}))
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert len(names(base)) == 2
    assert main(["runs", "prune", "--keep", "0", "--solved-too", "--yes"]) == 0
    assert names(base) == []


def test_a_run_that_is_held_is_never_pruned(base):
    with living(base, "20250101T000000Z-a") as (folder, _):
        assert main(["runs", "prune", "--keep", "0", "--solved-too", "--yes"]) == 0
        assert folder.log_path.exists()
        (folder.path / LOCK).chmod(0)
        assert look_at(folder.path).held


def test_what_is_no_run_folder_is_never_pruned(base, tmp_path, capsys):
    ended(base, "20250101T000000Z-renamed").rename(base / "my best run")
    mine = ended(base, "20250102T000000Z-with-notes")
    (mine / "notes.txt").write_text("mine")
    elsewhere = ended(tmp_path / "elsewhere", "20250103T000000Z-x")
    (base / "20250103T000000Z-link").symlink_to(elsewhere)
    (base / "20250104T000000Z-folder").mkdir()
    (base / "20250105T000000Z-file").write_text("")
    (base / "data").mkdir()
    before = names(base)
    assert main(["runs", "prune", "--keep", "0", "--solved-too", "--yes"]) == 0
    assert names(base) == before
    assert (elsewhere / "log.jsonl").exists()
    assert "notes.txt" in capsys.readouterr().out
    assert [run.path for run in past_runs(base)] == [mine]


def test_nothing_outside_is_removed_through_a_link_inside(base, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("x")
    path = ended(base, "20250101T000000Z-a")
    (path / "crash" / "link").symlink_to(outside)
    (path / "checkpoints" / "1").rmdir()
    (path / "checkpoints").rmdir()
    (path / "checkpoints").symlink_to(outside)
    remove(look_at(path))
    assert not path.exists()
    assert (outside / "file").exists()


def test_a_run_that_was_taken_up_or_changed_meanwhile_is_left_alone(base):
    path = ended(base, "20250101T000000Z-a")
    seen = look_at(path)
    with (path / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RunFolderBusy):
            remove(seen)
        assert (path / "settings.toml").exists()
    (path / "mine").touch()
    with pytest.raises(RunFailed, match="changed"):
        remove(seen)


def test_what_was_half_removed_can_be_removed_again(base, monkeypatch):
    path = ended(base, "20250101T000000Z-a")
    monkeypatch.setattr("shutil.rmtree", lambda _path: (_ for _ in ()).throw(PermissionError(13, "no")))
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 3
    assert is_run_folder(path)
    monkeypatch.undo()
    monkeypatch.chdir(base.parent)
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert not path.exists()


def test_latest_is_left_alone_where_it_leads_somewhere_or_is_no_link(base):
    path = ended(base, "20250101T000000Z-a")
    (base / "latest").unlink()
    (base / "latest").write_text("mine")
    point_latest(base)
    assert (base / "latest").read_text() == "mine"
    (base / "latest").unlink()
    (base / "latest").symlink_to(path.name)
    point_latest(base)
    assert (base / "latest").readlink().name == path.name


def test_a_folder_with_nonsense_in_it_is_still_a_run(base, capsys):
    path = ended(base, "20251399T000000Z-a")
    for name in ("settings.toml", "status.json", "log.jsonl"):
        (path / name).write_bytes(b"\xff[[[\n")
    assert main(["runs", "list"]) == 0
    assert "died" in capsys.readouterr().out
