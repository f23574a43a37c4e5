"""`dashboard` as it is typed: what is wrong is told in one line before anything is served, and a signal ends it."""

import asyncio
import contextlib
import errno
import os
import re
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from dashboard_tools import LIMIT_S, TOKEN, ask, served, within
from report_runs import story, write

from mlxe_async.cli import main
from mlxe_async.cli.dashboard import command, listening
from mlxe_async.cli.dashboard.listening import FIRST_PORT, LOOPBACK, listen
from mlxe_async.errors import ResourceError

SETTINGS = '[task]\nenv = "CartPole-v1"\n'


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def taken():
    """The number of a port that another socket listens at."""
    with socket.create_server((LOOPBACK, 0)) as other:
        yield other.getsockname()[1]


def refused(capsys, *arguments):
    """(exit code, the one line that is told) of a command that starts nothing."""
    code = main(list(arguments))
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return code, line


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere"], 2, "nowhere is no folder; expected one of runs, or of one run"),
        (["--port", "x"], 2, "--port: got 'x', expected a port from 1 to 65535"),
        (["--port", "65536"], 2, "--port: got '65536'"),
        (["--port", "-1"], 2, "--port: got '-1'"),
        (["--token", "short"], 2, "--token, or MLXE_DASHBOARD_TOKEN: got 5 characters, expected 16 to 200 letters"),
        (["--host", "localhost"], 2, "--host: got 'localhost', expected an address in digits, such as 127.0.0.1"),
        (["--host", "203.0.113.7"], 4, "of 203.0.113.7 cannot be had: Cannot assign requested address"),
        (["--tok", TOKEN], 2, "unrecognized arguments: --tok"),
        ([".", "."], 2, "unrecognized arguments: ."),
    ],
)
def test_mistakes_are_told_in_one_line(capsys, arguments, code, said):
    got, line = refused(capsys, "dashboard", *arguments)
    assert got == code
    assert said in line


def test_a_port_that_is_taken_is_told(capsys, taken):
    code, line = refused(capsys, "dashboard", "--port", str(taken))
    assert code == 4
    assert f"port {taken} of 127.0.0.1 is taken by another program; expected a free one" in line


@pytest.mark.parametrize("arguments", [["dashboard"], ["x.toml", "--dashboard"]])
def test_without_the_library_the_line_that_installs_it_is_told(tmp_path, capsys, monkeypatch, arguments):
    (tmp_path / "x.toml").write_text(SETTINGS)
    monkeypatch.setattr(listening.importlib.util, "find_spec", lambda name: None if name == "aiohttp" else object())
    code, line = refused(capsys, *arguments)
    assert code == 2
    assert 'pip install "mlxe_async[dashboard]"' in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--dashboard", "--check"], "--dashboard: got --check too, expected a run"),
        (["--dashboard", "--seeds", "2"], "--dashboard: got --seeds too, expected a run"),
        (["--dashboard-port", "9000"], "--dashboard-port: got no --dashboard, expected it too"),
        (["--dashboard-stays"], "--dashboard-stays: got no --dashboard, expected it too"),
        (["--dashboard", "--dashboard-port", "eighty"], "--dashboard-port: got 'eighty', expected a port"),
    ],
)
def test_options_of_a_run_that_do_not_fit_are_refused(tmp_path, capsys, arguments, said):
    (tmp_path / "x.toml").write_text(SETTINGS)
    code, line = refused(capsys, "x.toml", *arguments)
    assert code == 2
    assert said in line
    assert not (tmp_path / "runs").exists()


def test_a_run_whose_port_is_taken_does_not_begin(tmp_path, capsys, taken):
    (tmp_path / "x.toml").write_text(SETTINGS)
    code, line = refused(capsys, "x.toml", "--dashboard", "--dashboard-port", str(taken))
    assert code == 4
    assert f"port {taken} of 127.0.0.1 is taken" in line
    assert not (tmp_path / "runs").exists()


def test_a_token_in_the_environment_that_is_none_is_refused_before_the_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MLXE_DASHBOARD_TOKEN", "short")
    (tmp_path / "x.toml").write_text(SETTINGS)
    assert "expected 16 to 200" in refused(capsys, "x.toml", "--dashboard")[1]
    assert not (tmp_path / "runs").exists()


def test_where_no_port_is_asked_for_the_next_free_one_is_taken():
    with contextlib.ExitStack() as held:
        ports = [held.enter_context(listen(None)).getsockname()[1] for _ in range(2)]
    assert FIRST_PORT <= ports[0] < ports[1]


def test_where_all_ports_are_taken_that_is_told(monkeypatch):
    def taken(*_):
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(listening, "_bound", taken)
    with pytest.raises(ResourceError, match="ports 8421 to 8440 of"):
        listen(None)


def test_a_port_that_only_root_may_have_is_told(monkeypatch):
    def forbidden(*_):
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(listening, "_bound", forbidden)
    with pytest.raises(ResourceError, match=r"port 80 of 127.0.0.1 may not be had \(Permission denied\); expected one"):
        listen(80)


def test_help_tells_of_it(capsys):
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    assert "dashboard serve a page" in told
    assert "--dashboard-port N" in told
    with pytest.raises(SystemExit, match="0"):
        main(["--help", "dashboard"])
    assert "ssh -L" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
def test_it_serves_until_a_signal_comes_and_prints_where(tmp_path, ending):
    log = story()
    write(tmp_path / "runs", log)
    process = subprocess.Popen(
        [sys.executable, "-m", "mlxe_async", "dashboard", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert select.select([process.stdout], [], [], LIMIT_S)[0]
        match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{32})\n", process.stdout.readline())
        port, token = int(match[1]), match[2]
        answer = within(lambda: ask(port, "/runs.json", {"Authorization": f"Bearer {token}"}))
        assert answer.json()[0]["run"] == log.name
    finally:
        process.send_signal(ending)
        out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out, err) == (128 + ending, "", "")


def test_the_program_of_the_page_gets_the_state_of_the_newest_run(tmp_path):
    page = Path(command.__file__).with_name("README.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    write(tmp_path / "runs", story())

    async def main():
        async with served(tmp_path / "runs") as (_, port):
            told = program.replace("127.0.0.1:8421", f"127.0.0.1:{port}")
            environment = {**os.environ, "MLXE_DASHBOARD_TOKEN": TOKEN}
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", told, env=environment, stdout=subprocess.PIPE
            )
            return (await process.communicate())[0].decode()

    assert re.fullmatch(r"finished 100\.0 14\.\d+ \['generate', .*\]\n", within(main))
