"""Settings files whose executors make the gradients start as they are: what they leave out fits them."""

import subprocess
import sys
from pathlib import Path

import pytest

from mlxe_async import load_settings

FOLDER = Path(__file__).parents[2] / "settings"
FILES = sorted((*FOLDER.glob("*.toml"), *FOLDER.glob("study/ladder-*.toml")))
PUSHING = [path for path in FILES if load_settings(path).schedule.gradients == "executors"]


def test_there_are_some():
    assert {"a3c-cartpole", "gorila-cartpole", "dppo-cartpole"} <= {path.stem for path in PUSHING}


@pytest.mark.long
@pytest.mark.parametrize("path", PUSHING, ids=lambda path: path.stem)
def test_a_file_is_fine_as_it_is(path, tmp_path):
    command = [sys.executable, "-m", "mlxe_async", str(path), "--check"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "the settings are fine" in done.stdout + done.stderr
