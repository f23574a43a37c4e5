"""A run's folder is its own, private, locked while it lives, and never half written."""

import json
import os
import re
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mlxe_async.errors import NotFound, ResourceError, RunFolderBusy, SettingsError
from mlxe_async.storage.array_files import Written
from mlxe_async.storage.files import STAGED
from mlxe_async.storage.run_folder import RunFolder, find_run, is_held

HOLDER = """
import sys
from mlxe_async.storage.files import STAGED
from mlxe_async.storage.run_folder import RunFolder
with RunFolder.reopen(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_named_by_time_and_run_and_latest_leads_to_it(tmp_path):
    with RunFolder.create(tmp_path / "runs", "my-run") as folder:
        assert re.fullmatch(r"\d{8}T\d{6}Z-my-run", folder.name)
        assert (tmp_path / "runs" / "latest").resolve() == folder.path
    with RunFolder.create(tmp_path / "runs", "my-run") as second:
        assert second.name != folder.name
        assert find_run("latest", tmp_path / "runs") == second.path


def test_runs_started_at_the_same_moment_get_folders_of_their_own(tmp_path):
    folders = []
    threads = [threading.Thread(target=lambda: folders.append(RunFolder.create(tmp_path, "x"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({folder.path for folder in folders}) == 8
    for folder in folders:
        folder.close()


def test_everything_is_private_whatever_the_umask(tmp_path):
    old = os.umask(0o777)
    try:
        with RunFolder.create(tmp_path / "deep" / "runs", "x") as folder:
            folder.write_settings("[run]\n")
            folder.write_run_json({})
            folder.write_status({})
            assert folder.crash_path.is_dir()
    finally:
        os.umask(old)
    for path in [folder.path, folder.path.parent, *folder.path.iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", "", ".x", "a\n", "a\x00", "x" * 65])
def test_a_name_cannot_lead_elsewhere(tmp_path, name):
    with pytest.raises(SettingsError):
        RunFolder.create(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_matter_of_resources(tmp_path):
    (tmp_path / "file").write_text("")
    for base in (tmp_path / "file", tmp_path / "file" / "runs", "/proc/runs"):
        with pytest.raises(ResourceError, match="no run folder can be made"):
            RunFolder.create(base, "x")


def descriptors():
    return sorted(entry.name for entry in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("refused", ["fchmod", "ftruncate", "pwrite"])
def test_what_fails_while_the_folder_is_locked_gives_the_lock_back(tmp_path, monkeypatch, refused):
    with RunFolder.create(tmp_path, "x") as folder:
        pass
    before = descriptors()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as here:
        here.setattr(os, refused, full)
        for attempt in (lambda: RunFolder.reopen(folder.path), lambda: RunFolder.create(tmp_path, "y")):
            with pytest.raises(ResourceError, match="No space left on device"):
                attempt()
    assert descriptors() == before
    with RunFolder.reopen(folder.path):
        pass


def test_a_folder_that_cannot_be_swept_or_pointed_to_gives_the_lock_back(tmp_path, monkeypatch):
    with RunFolder.create(tmp_path, "x") as folder:
        pass
    (folder.path / f"{STAGED}left").touch()

    def fails(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as here:
        here.setattr(Path, "unlink", fails)
        with pytest.raises(ResourceError, match="cannot be used: Permission denied"):
            RunFolder.reopen(folder.path)
    with monkeypatch.context() as here:
        here.setattr(Path, "symlink_to", fails)
        with pytest.raises(ResourceError, match="no run folder can be made"):
            RunFolder.create(tmp_path, "y")
    assert not any(is_held(path) for path in tmp_path.iterdir())


def test_another_process_is_told_who_holds_the_folder(tmp_path):
    with RunFolder.create(tmp_path, "x") as folder:
        with pytest.raises(RunFolderBusy, match=f"pid {os.getpid()} on .* since "):
            RunFolder.reopen(folder.path)
        assert is_held(folder.path)
    assert is_held(folder.path) is False
    assert is_held(tmp_path) is None


def test_the_lock_goes_with_the_process_that_is_killed(tmp_path):
    folder = RunFolder.create(tmp_path, "x")
    folder.close()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RunFolderBusy, match=f"pid {holder.pid} "):
            RunFolder.reopen(folder.path)
        holder.kill()
        holder.wait(20)
        RunFolder.reopen(folder.path).close()


def test_children_do_not_inherit_the_lock(tmp_path):
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    folder = RunFolder.create(tmp_path, "x")
    with subprocess.Popen(command, stdin=subprocess.PIPE, close_fds=False) as child:
        folder.close()
        RunFolder.reopen(folder.path).close()
        child.kill()


def test_what_is_written_is_replaced_whole_and_without_secrets(tmp_path):
    with RunFolder.create(tmp_path, "x") as folder:
        folder.write_run_json({"seed": 3, "token": "canary"})
        for steps in range(3):
            folder.write_status({"env_steps": steps})
        assert json.loads((folder.path / "run.json").read_text()) == {"seed": 3, "token": "<redacted>"}
        assert json.loads((folder.path / "status.json").read_text()) == {"env_steps": 2}
        assert {path.name for path in folder.path.iterdir()} == {"lock", "run.json", "status.json"}


def test_a_planted_link_is_replaced_and_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_text("untouched")
    with RunFolder.create(tmp_path, "x") as folder:
        for name in ("status.json", ".staged-status.json"):
            (folder.path / name).symlink_to(target)
        folder.write_status({"a": 1})
        assert not (folder.path / "status.json").is_symlink()
        (folder.path / "lock").unlink()
        (folder.path / "lock").symlink_to(target)
        with pytest.raises(ResourceError):
            RunFolder.reopen(folder.path)
    assert target.read_text() == "untouched"


def test_a_folder_that_was_removed_under_a_run_is_told(tmp_path):
    with RunFolder.create(tmp_path, "x") as folder:
        folder.path.rename(tmp_path / "moved")
        with pytest.raises(ResourceError, match=r"status.json cannot be written"):
            folder.write_status({})


def test_reopening_removes_what_a_killed_run_left_half_done_and_nothing_else(tmp_path):
    with RunFolder.create(tmp_path, "x") as folder:
        (folder.path / ".staged-status.json").write_text("{")
        (folder.path / "checkpoints" / ".staged-4").mkdir(parents=True)
        (folder.path / "checkpoints" / ".staged-4" / "x").write_text("")
        (folder.path / "mine.tmp").write_text("")
    RunFolder.reopen(folder.path).close()
    assert {str(path.relative_to(folder.path)) for path in folder.path.rglob("*")} == {
        "lock",
        "checkpoints",
        "mine.tmp",
    }


MAKERS = {
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a socket": lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
    "a file": Path.touch,
}


@pytest.mark.parametrize("kind", ["a FIFO", "a folder", "a socket"])
@pytest.mark.parametrize(
    "name", ["log.jsonl", "log.jsonl.1", "lock", "settings.toml", "run.json", "status.json", "recording.bin"]
)
@pytest.mark.filterwarnings("ignore:unclosed")  # a socket leaves its name behind when it is closed
def test_what_stands_in_the_place_of_a_file_is_refused_before_it_is_opened(tmp_path, monkeypatch, name, kind):
    RunFolder.create(tmp_path, "x").close()
    monkeypatch.chdir(tmp_path / "latest")  # names of sockets are short
    Path(name).unlink(missing_ok=True)
    MAKERS[kind](Path(name))
    with pytest.raises(ResourceError, match=f"{re.escape(name)} is {kind}, expected a file; remove it"):
        RunFolder.reopen(".")


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("checkpoints", "a file", "a folder"),
        ("checkpoints", "a FIFO", "a folder"),
        ("crash", "a file", "a folder"),
        ("crash/mlxe-exe-0.1.txt", "a FIFO", "a file"),
        ("output", "a FIFO", "a folder"),
        ("output/mlxe-exe-0.txt", "a FIFO", "a file"),
    ],
)
def test_what_stands_in_the_place_of_a_folder_or_in_it_is_refused(tmp_path, name, kind, expected):
    with RunFolder.create(tmp_path, "x") as folder:
        path = folder.path / name
        path.parent.mkdir(exist_ok=True)
    MAKERS[kind](path)
    with pytest.raises(ResourceError, match=f"{name} is {kind}, expected {expected}; remove it"):
        RunFolder.reopen(folder.path)


def test_nobody_waits_for_a_lock_that_is_a_fifo(tmp_path):
    os.mkfifo(tmp_path / "lock")
    assert is_held(tmp_path) is False


def test_what_a_user_keeps_under_the_name_latest_stays(tmp_path):
    (tmp_path / "latest").mkdir()
    RunFolder.create(tmp_path, "x").close()
    assert not (tmp_path / "latest").is_symlink()


@pytest.mark.parametrize("run", ["", ".", "..", "/usr", "../../etc", "a\x00b", "missing", "a\nb", "a" * 5000])
def test_what_is_no_run_is_told_in_one_line(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound) as refused:
        find_run(run)
    assert str(refused.value).isprintable()


def test_what_killed_runs_left_half_written_is_removed_and_nothing_else(tmp_path):
    with RunFolder.create(tmp_path, "dead") as dead:
        (dead.checkpoints_path / ".staged-7").mkdir(parents=True)
        (dead.path / ".staged-status.json").write_text("half")
    (tmp_path / ".staged-20200101T000000Z-old").symlink_to("nowhere")
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / ".staged-mine").write_text("no link")
    with RunFolder.create(tmp_path, "living") as living:
        (living.path / ".staged-status.json").write_text("half")
        with RunFolder.create(tmp_path, "new"):
            assert (living.path / ".staged-status.json").exists()
    assert not list(dead.path.rglob(".staged-*"))
    assert not (tmp_path / ".staged-20200101T000000Z-old").is_symlink()
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert (tmp_path / ".staged-mine").exists()


def test_a_folder_knows_whether_it_is_still_there(tmp_path):
    with RunFolder.create(tmp_path, "x") as folder:
        assert folder.is_there
        folder.path.rename(tmp_path / "away")
        assert not folder.is_there
        folder.path.mkdir()
        assert not folder.is_there


def test_checkpoints_are_not_saved_through_a_link_that_was_put_in_their_place(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with RunFolder.create(tmp_path / "runs", "x") as folder:
        folder.save_checkpoint(1, {}, {"version": 1})
        folder.checkpoints_path.rename(tmp_path / "moved")
        folder.checkpoints_path.symlink_to(elsewhere)
        for save in (lambda: folder.save_checkpoint(2, {}, {}), lambda: folder.stage_checkpoint(2)):
            with pytest.raises(ResourceError, match="a link or a file is in its place"):
                save()
        folder.drop_staged_checkpoint(2)
        (folder.path / "crash").symlink_to(elsewhere)
        (folder.crash_path / "report").touch()
    assert list(elsewhere.iterdir()) == []


def test_what_was_staged_is_removed_wherever_the_run_folder_is_by_then(tmp_path):
    with RunFolder.create(tmp_path / "runs", "x") as folder:
        staged = folder.stage_checkpoint(1)
        assert staged.parent == folder.checkpoints_path
        (staged / "learner.safetensors").touch()
        moved = folder.path.rename(tmp_path / "moved")
        folder.path.symlink_to(tmp_path)
        assert not folder.is_there
        with pytest.raises(ResourceError, match=r"status\.json cannot be written"):
            folder.write_status({})
        folder.drop_staged_checkpoint(1)
        assert list((moved / "checkpoints").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moved", "runs"]


def test_a_whole_checkpoint_lacks_none_of_its_files(tmp_path):
    with RunFolder.create(tmp_path, "x") as folder:
        folder.stage_checkpoint(1)
        with pytest.raises(ResourceError, match="No such file"):
            folder.save_checkpoint(1, {}, {}, 3, {"learner.safetensors": Written(5, "")})
        assert list(folder.checkpoints_path.iterdir()) == []


def test_a_living_run_whose_lock_was_removed_is_still_held(tmp_path):
    with RunFolder.create(tmp_path, "run") as folder:
        (folder.path / "lock").unlink()
        assert is_held(folder.path)
        with pytest.raises(RunFolderBusy, match="held by another run"):
            RunFolder.reopen(folder.path)
    with RunFolder.reopen(folder.path):
        assert is_held(folder.path)
    assert not is_held(folder.path)
