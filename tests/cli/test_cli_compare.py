"""`compare` with real runs: interrupted, then killed, it goes on with what is missing, and leaves nothing behind."""

import json
import signal
import subprocess
import sys

import leaks
import pytest

SETTINGS = """
[run]
name = "{name}"
[stop]
env_steps = 600
[task]
env = "CartPole-v1"
max_episode_steps = 50
[schedule]
kind = "{kind}"
[algorithm]
min_updates = 2
batch = 16
"""


def start(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "mlxe_async", "compare", *arguments, "--no-pictures"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until_a_run_has_finished(process):
    line = process.stderr.readline()
    assert " of 4: " in line, line + process.stderr.read()


@pytest.mark.slow
def test_a_study_is_interrupted_killed_and_finished(tmp_path):
    for kind in ("is", "oa"):
        (tmp_path / f"{kind}.toml").write_text(SETTINGS.format(name=kind, kind=kind))
    outcomes = tmp_path / "study" / "outcomes"
    with start(tmp_path, "is.toml", "oa.toml", "--seeds", "1,2", "--out", "study") as process:
        until_a_run_has_finished(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert "SIGINT: 1 of 4 runs have finished" in process.stderr.read()
    assert [path.name for path in outcomes.iterdir()] == ["is-1.json"]
    first = (outcomes / "is-1.json").stat().st_mtime_ns

    with start(tmp_path, "--resume", "study") as process:
        until_a_run_has_finished(process)
        process.kill()
    assert not leaks.processes_after(30), "the run under way went on without its study"
    assert sorted(path.name for path in outcomes.glob("[!.]*")) == ["is-1.json", "oa-1.json"]

    with start(tmp_path, "--resume", "study", "--rows") as process:
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert (outcomes / "is-1.json").stat().st_mtime_ns == first
    assert [line.split(":")[0] for line in err.splitlines()[:2]] == ["3 of 4", "4 of 4"]
    stored = [json.loads(path.read_text()) for path in sorted(outcomes.glob("[!.]*"))]
    assert [(one["name"], one["seed"], one["completed"]) for one in stored] == [
        ("is", 1, True),
        ("is", 2, True),
        ("oa", 1, True),
        ("oa", 2, True),
    ]
    assert all(one["clock"] == "command" and one["curve"] and one["spans"] and one["idle"] for one in stored)
    assert all(one["env_steps"] >= 600 and not one["tested"] for one in stored)
    assert "return at the end" in out
    assert "not tested" in out
