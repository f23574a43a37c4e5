"""`python -m mlxe_async [FILE] --resume RUN`: by the run's own settings, and with the exit codes that were promised."""

import json
import os
import subprocess
import sys

import pytest

TOML = """
[stop]
env_steps = 200
[task]
env = "CartPole-v1"
max_episode_steps = 100
[algorithm]
name = "mlxe"
min_updates = 2
batch = 32
[evaluation]
enabled = false
"""


def command(*arguments, folder):
    done = subprocess.run(
        [sys.executable, "-m", "mlxe_async", *arguments, "--no-progress"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume")
    (folder / "quick.toml").write_text(TOML)
    assert command("quick.toml", folder=folder)[0] == 0
    return folder


@pytest.mark.long
def test_a_run_goes_on_by_its_own_settings_and_says_no_twice(run):
    before = json.loads((run / "runs" / "latest" / "status.json").read_text())
    assert command("--resume", "latest", "--set", "stop.env_steps=400", folder=run)[0] == 0
    after = json.loads((run / "runs" / "latest" / "status.json").read_text())
    assert before["env_steps"] < 400 <= after["env_steps"]
    assert len([path for path in (run / "runs").iterdir() if not path.is_symlink()]) == 1

    code, error = command("quick.toml", "--resume", "latest", "--set", "task.env=Acrobot-v1", folder=run)
    assert code == 2
    assert 'task.env: "CartPole-v1" -> "Acrobot-v1"' in error

    checkpoints = (run / "runs" / "latest" / "checkpoints").resolve()
    for path in checkpoints.iterdir():
        os.truncate(path / "manifest.json", 7)
    code, error = command("--resume", "latest", folder=run)
    assert code == 3
    assert all(path.name in error for path in checkpoints.iterdir())


@pytest.mark.long
@pytest.mark.parametrize(("arguments", "code"), [(("--resume", "nothing"), 2), (("--no-progress",), 2)])
def test_what_is_missing_is_told(run, arguments, code):
    assert command(*arguments, folder=run)[0] == code
