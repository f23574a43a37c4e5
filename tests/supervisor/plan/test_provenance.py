"""What `run.json` says of the command and of the commit."""

import shutil
import subprocess
import sys

import pytest

from mlxe_async.supervisor.plan.provenance import commit_of, invocation, without_secrets

NOBODY = ("-c", "user.name=x", "-c", "user.email=x@example.org")


def git(*arguments, folder):
    done = subprocess.run(["git", *NOBODY, *arguments], cwd=folder, check=True, capture_output=True, text=True)  # noqa: S607 - the git that is installed
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("needs git, to make a repository")
    folder = tmp_path / "own"
    (folder / "deep" / "down").mkdir(parents=True)
    git("init", "-q", folder=folder)
    git("commit", "-q", "--allow-empty", "-m", "first", folder=folder)
    return folder


def test_the_commit_is_that_of_the_repository_the_folder_lies_in(repository):
    head = git("rev-parse", "HEAD", folder=repository)
    assert commit_of(repository) == commit_of(repository / "deep" / "down") == head
    git("pack-refs", "--all", folder=repository)
    assert commit_of(repository) == head
    git("commit", "-q", "--allow-empty", "-m", "second", folder=repository)
    second = git("rev-parse", "HEAD", folder=repository)
    assert commit_of(repository) == second != head
    git("checkout", "-q", head, folder=repository)
    assert commit_of(repository) == head


def test_further_working_trees_have_their_own_commit(repository):
    head = git("rev-parse", "HEAD", folder=repository)
    git("worktree", "add", "-q", "../other", folder=repository)
    git("commit", "-q", "--allow-empty", "-m", "second", folder=repository)
    assert commit_of(repository.parent / "other") == head
    git("pack-refs", "--all", folder=repository)
    assert commit_of(repository.parent / "other") == head


def test_where_there_is_none_or_it_is_damaged_there_is_no_commit(tmp_path, repository):
    assert commit_of(tmp_path) is None
    head = repository / ".git" / "HEAD"
    for text in (b"", b"ref: refs/heads/none", b"ref: ../../../x", b"\xff\xfe", b"not a commit", b"x" * 2**21):
        head.write_bytes(text)
        assert commit_of(repository) is None
    head.unlink()
    head.mkdir()
    assert commit_of(repository) is None
    shutil.rmtree(repository / ".git")
    (repository / ".git").write_text("gitdir: /nowhere")
    assert commit_of(repository) is None


def test_a_folder_that_is_gone_has_no_commit_and_the_command_is_told(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "mlxe_async", "a.toml"])
    assert invocation() == {"command": ["python", "-m", "mlxe_async", "a.toml"], "commit": None}
    monkeypatch.chdir(tmp_path)


def test_secrets_of_the_command_are_left_out():
    given = [
        "python",
        "--set",
        "task.kwargs.password=hush",
        "--set",
        'task.kwargs={api_key="hush", size=3}',
        "--token",
        "hush",
        "--auth-token=hush",
        "run.name=monkey",
        "a\x1b",
    ]
    assert without_secrets(given) == [
        "python",
        "--set",
        "task.kwargs.password=<redacted>",
        "--set",
        "task.kwargs=<redacted>",
        "--token",
        "<redacted>",
        "--auth-token=<redacted>",
        "run.name=monkey",
        "a\\x1b",
    ]
