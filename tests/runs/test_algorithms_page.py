"""What `mlxe_async/algorithms/README.md` prints runs as printed, and learns."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlxe_async import load_policy, read_log

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "mlxe_async" / "algorithms" / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.S)
SOME = 30  # episodes at a run's beginning, and at its end
COMMANDS = [text for language, text in BLOCKS if language == "sh"]


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(COMMANDS)))
def test_a_command_of_the_page_runs_as_printed(number, tmp_path, monkeypatch):
    (tmp_path / "mlxe_async").symlink_to(ROOT / "mlxe_async")
    for language, text in BLOCKS:
        if language in ("python", "toml"):
            (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text)
    words = shlex.split(COMMANDS[number].removeprefix("python "))
    done = subprocess.run(
        [sys.executable, *words, "--no-progress"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    log = list(read_log(tmp_path / "runs" / "latest"))
    returns = [event["episode_return"] for event in log if event["event"] == "episode_end"]
    assert sum(1 for event in log if event.get("phase") == "learn" and event["updates"]) >= 3
    assert np.mean(returns[-SOME:]) > np.mean(returns[:SOME])
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = set(sys.modules)
    try:
        assert load_policy(tmp_path / "runs" / "latest").module() is not None
    finally:
        for name in set(sys.modules) - modules:
            if name.startswith("my_"):
                del sys.modules[name]


def test_the_algorithm_of_the_page_is_short():
    (text,) = (text for language, text in BLOCKS if text.startswith("# my_reinforce.py"))
    assert len(text.splitlines()) <= 60
