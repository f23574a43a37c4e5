"""The command drives the supervisor: checks, runs, shows, and passes signals on."""

import fcntl
import os
import signal
from pathlib import Path

import pytest
from cli_tools import GOOD, install, result, start

from mlxe_async.cli import main
from mlxe_async.cli.run import _of_ones_own, _taken_as_numbers, ending
from mlxe_async.parts import Part
from mlxe_async.rows import Spaces
from mlxe_async.settings import load_settings

LIMIT_S = 30


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.toml").write_text(GOOD)


def test_a_run_ends_with_one_sentence_and_writes_nothing_to_stdout(capfd, monkeypatch):
    made = install(monkeypatch)
    assert main(["good.toml", "--set", "run.seed=7"]) == 0
    assert made[0].settings.run.seed == 7
    captured = capfd.readouterr()
    assert captured.out == ""
    last = captured.err.splitlines()[-1]
    assert last == "finished (episodes) after 5 episodes, 1,234 steps, 6 updates and 7.0 s: runs/x"


def test_the_sentence_says_how_it_ended():
    at = {"version": 7, "episodes_started": 1010, "env_steps": 123456, "updates": 56, "seconds": 3.21}
    said = ending(result(solved=True, solved_at=at, reason="solved"))
    published = "solved by version 7, published after 1,010 episodes begun, 123,456 steps, 56 updates and 3.2 s"
    assert said.startswith(f"{published}; finished (solved) after 5 episodes")
    assert ending(result(reason="SIGINT", exit_code=130)).startswith("finished (SIGINT) after")
    assert ending(result(reason="failed: x", exit_code=3)).startswith("failed (failed: x) after")


def test_the_sentence_tells_faults_and_which_version_was_the_best():
    said = ending(result(env_errors=12, restarts=1, score=212.346, best=40))
    assert said == (
        "finished (episodes) after 5 episodes, 1,234 steps, 6 updates and 7.0 s; 12 faults of the environment; "
        "1 process started again; the best test, of version 40, came to 212.35 (--checkpoint best): runs/x"
    )
    at = {"version": 7, "episodes_started": 1010, "env_steps": 123456, "updates": 56, "seconds": 3.21}
    assert "best" not in ending(result(solved=True, solved_at=at, score=500.0, best=9))  # the solved one is loaded


def test_notable_events_are_told_in_one_harmless_line(capfd, monkeypatch):
    install(monkeypatch)
    main(["good.toml"])
    [line] = [line for line in capfd.readouterr().err.splitlines() if "warning" in line]
    assert line.endswith("message=a\\nb\\x1b[31m count=1")


@pytest.mark.parametrize("arguments", [["--no-progress"], ["--set", "logs.progress=false"]])
def test_progress_can_be_switched_off(capfd, monkeypatch, arguments):
    made = install(monkeypatch)
    main(["good.toml", *arguments])
    assert len(capfd.readouterr().err.splitlines()) == 1
    (alarm,) = made[0].subscribers
    assert made[0].wanted == [["warning", "init_from"]]
    alarm({"event": "warning", "role": "supervisor", "message": "the run folder is gone", "loud": True})
    assert "the run folder is gone" in capfd.readouterr().err
    alarm({"event": "init_from", "role": "supervisor", "path": "runs/x", "checkpoint": 3, "version": 40})
    assert "the run begins with checkpoint 3, version 40, of runs/x\n" in capfd.readouterr().err
    alarm({"event": "warning", "role": "supervisor", "message": "never mind", "loud": False})
    assert capfd.readouterr().err == ""


def test_a_check_prints_the_plan_and_what_the_probe_found_and_runs_nothing(capfd, monkeypatch):
    install(monkeypatch, ends=AssertionError("it ran"))
    assert main(["good.toml", "--check"]) == 0
    captured = capfd.readouterr()
    assert captured.out.splitlines() == [
        "lane-0  1.0 MiB",
        "total  1.0 MiB",
        "",
        "observation   4 floats",
        "action        one of 2",
        "episode limit 500",
        "weights       16",
        "note: odd\\x1b",
        "executors     2",
        "lost nothing",
        "note: episodes may never end",
    ]
    assert captured.err == "the settings are fine, one update on made-up rows went well, and nothing was started\n"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        *(pytest.param(*more, marks=pytest.mark.long) for more in ((signal.SIGTERM, 143), (signal.SIGHUP, 129))),
    ],
    ids=lambda value: str(value),
)
def test_a_signal_asks_the_run_to_stop_and_is_the_exit_code(tmp_path, number, code):
    how = "waits=True, ends=__import__('cli_tools').result(reason=%r)" % signal.Signals(number).name  # noqa: UP031 - braces would clash
    with start("good.toml", folder=tmp_path, how=how) as process:
        process.send_signal(number)
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == code
    assert f"{signal.Signals(number).name}: stopping" in err
    assert "Traceback" not in err


def test_the_process_of_a_run_has_its_name(tmp_path):
    with start("good.toml", folder=tmp_path) as process:
        name = Path(f"/proc/{process.pid}/comm").read_text()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
    assert name == "mlxe-sup\n"


def test_a_second_signal_stops_at_once(tmp_path):
    how = "waits=True)\nFakeSupervisor.request_stop = lambda self, reason: None\n(lambda *_: 0)(0"
    with start("good.toml", folder=tmp_path, how=how) as process:
        process.send_signal(signal.SIGTERM)
        assert "stopping" in [process.stderr.readline() for _ in range(2)][-1]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143
    assert err.splitlines()[-1] == "stopped at once by a second signal after SIGTERM"


@pytest.mark.long
def test_under_nohup_a_hang_up_is_ignored(tmp_path):
    with start(
        "good.toml", folder=tmp_path, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ) as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT_S)
    assert "SIGHUP" not in err
    assert "SIGINT: stopping" in err


def test_a_reader_of_stderr_that_is_gone_does_not_stop_the_run(tmp_path):
    reading, writing = os.pipe()
    process = start("good.toml", folder=tmp_path, stderr=writing)
    os.close(writing)
    os.close(reading)
    with process:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0  # the fake's own; no broken pipe


@pytest.mark.long
def test_a_reader_of_stderr_that_does_not_read_does_not_stop_the_run(tmp_path):
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, b"x" * 4096)  # not a byte more fits
    process = start("good.toml", folder=tmp_path, stderr=writing)
    os.close(writing)
    with process:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    os.close(reading)


def test_a_check_tells_of_small_pictures_that_are_taken_as_numbers():
    parts = (Part("img", (12, 12, 1), "|u1", 0), Part("vec", (3,), "<f4", 144))
    facts = {
        "spaces": Spaces((156,), actions=2, observation_dtype="|u1", parts=parts).to_json(),
        "algorithm": {"body": "none"},
    }
    tree = {"task": {"env": "CartPole-v1"}, "algorithm": {"name": "ppo"}}
    [told] = _taken_as_numbers(load_settings(tree), facts)
    assert told.startswith('note: img: taken as numbers, without convolutions; algorithm.body = "small"')
    chosen = load_settings({**tree, "algorithm": {"name": "ppo", "body": "none"}})
    assert not list(_taken_as_numbers(chosen, facts))


def test_a_check_tells_by_what_an_algorithm_of_ones_own_differs():
    assert "have its own defaults, not the task's" in next(_of_ones_own("my_ppo:PPO"))
    assert not list(_of_ones_own("ppo"))
