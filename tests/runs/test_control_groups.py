"""Runs in a control group with little memory: what is too little is told by exit code 4, and the rest works."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOML = """
[run]
dir = "runs"
[stop]
env_steps = 500
[task]
env = "CartPole-v1"
[algorithm]
name = "ppo"
[schedule]
kind = "is"
executors = 2
sync = "rollout"
rollout_steps = 64
[evaluation]
enabled = false
"""
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT)
LACKS = ("MiB of memory left, expected at least 180 MiB", "by the kernel for lack of memory")


def groups():
    """Folder below which control groups of memory can be made, and the file that holds a group's limit."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.strip("/"), "memory.limit_in_bytes"
    own = Path("/sys/fs/cgroup") / path.strip("/")
    return own, "memory.max"


@pytest.fixture
def group(tmp_path):
    """A group of its own, and its limit's file; it is gone afterwards."""
    folder, name = groups()
    made = folder / f"mlxe-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        pytest.skip(f"this user may make no control group here: {error}")
    try:
        if not (made / name).exists():
            pytest.skip(f"control groups here limit no memory: {made} has no {name}")
        yield made, made / name
    finally:
        made.rmdir()


@pytest.mark.cold
@pytest.mark.slow
def test_less_and_less_memory_is_enough_or_told_by_exit_code_4(tmp_path, group):
    made, limit = group
    (tmp_path / "little.toml").write_text(TOML)
    codes = []
    for mebibytes in (400, 250, 220, 200, 175, 150, 100):
        limit.write_text(f"{mebibytes}M")
        done = subprocess.run(
            [sys.executable, "-m", "mlxe_async", "little.toml", "--no-progress"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            preexec_fn=lambda: (made / "cgroup.procs").write_text(str(os.getpid())),
        )
        codes.append(done.returncode)
        assert done.returncode in (0, 4), (mebibytes, done.stderr)
        if done.returncode:
            assert any(words in done.stderr.splitlines()[-1] for words in LACKS), (mebibytes, done.stderr)
    assert (codes[0], codes[-1]) == (0, 4)
