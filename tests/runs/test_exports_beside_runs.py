"""`[logs] export`: processes beside the run export its log; the run needs none of them, and none outlives it."""

import asyncio
import csv
import os
import signal
import time

import leaks
import live_runs
import pytest
from command import LIMIT_S, left_after

from mlxe_async.analysis.exporters import TARGETS, lacking
from mlxe_async.analysis.past_runs import past_runs
from mlxe_async.cli import main
from mlxe_async.errors import SettingsError
from mlxe_async.logs.reader import read_log
from mlxe_async.supervisor import Supervisor

TOML = '[task]\nenv = "CartPole-v1"\n[schedule]\nkind = "oa"\n[algorithm]\nname = "mlxe"\nmin_updates = 4\n'
CSV = {"logs": {"export": ["csv"]}}


async def exporter_of(run):
    """The process id of a run's one companion, once it is a companion by its name, and not still a Python."""
    (companion,) = run.supervisor._exports._companions.values()
    while leaks.processes()[companion.pid] != "mlxe-export":  # noqa: ASYNC110 - of another process, which tells no event
        await asyncio.sleep(0.01)
    return companion.pid


def exported(folder):
    """The values of a CSV export, by the number of the line."""
    found = {}
    for path in (folder / "csv").glob("*.csv"):
        with path.open(newline="") as file:
            found |= {int(row["seq"]): row for row in csv.DictReader(file)}
    return found


def expect_whole(folder):
    """See that each line of the log has its row, and no row is of another line."""
    lines, found = list(read_log(folder)), exported(folder)
    assert found
    assert sorted(found) == sorted(line["seq"] for line in lines)
    assert {seq: row["event"] for seq, row in found.items()} == {line["seq"]: line["event"] for line in lines}


@pytest.mark.long
@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_a_run_ends_all_that_it_told_is_exported_and_no_process_is_left(command, number):
    """Each format that can be written here, all at once."""
    targets = [name for name in TARGETS if not lacking(name)]
    limit = [] if number else ["--set", "stop.env_steps=1500"]
    run = command(TOML, "--set", f"logs.export={targets}".replace("'", '"'), *limit)
    run.saw("weights", times=3)
    if number:
        folder = (run.runs / "latest").resolve()
        deadline = time.monotonic() + LIMIT_S
        while not all((folder / name).exists() for name in targets):  # some packages take seconds to import
            assert time.monotonic() < deadline
            time.sleep(0.01)
        run.signal(number)
    code, _, said = run.wait()
    assert code == {None: 0, signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number], said
    assert left_after(5) == {}
    folder = (run.runs / "latest").resolve()
    expect_whole(folder)
    assert set(targets) <= {path.name for path in folder.iterdir()}
    assert all(any(path.is_file() for path in (folder / name).rglob("*")) for name in targets)
    (past,) = past_runs(run.runs)
    assert past.foreign == ()


@pytest.mark.long
def test_a_run_whose_exporter_is_killed_says_so_once_and_goes_on(live):
    async def watch(run):
        await run.saw("weights", times=2)
        os.kill(await exporter_of(run), signal.SIGKILL)
        await run.saw("warning", loud=True)
        await run.enough("weights", times=len(run.all("weights")) + 3)

    result, run = live(watch, **CSV, stop={"env_steps": 10**6})
    (told,) = [line["message"] for line in run.all("warning", loud=True)]
    assert "the export to csv ended: mlxe-export (pid " in told
    assert told.endswith(") killed by signal 9 (SIGKILL); the run goes on without it, "
                         "export RUN --to csv writes all of it")  # fmt: skip
    assert result.exit_code == 0
    assert [*result.unexported] == [
        f"the export to csv is not whole: {told.partition('ended: ')[2].partition(';')[0]}; "
        "export RUN --to csv writes all of it"
    ]


@pytest.mark.long
def test_what_an_exporter_cannot_write_is_told_and_the_run_goes_on(live):
    def in_the_way(run):
        def hook(line):
            if line["event"] == "probe_ok":
                run.supervisor._startup.folder.path.joinpath("csv").touch()

        run.hooks.append(hook)

    async def watch(run):
        in_the_way(run)
        await run.saw("warning", loud=True)
        (told,) = [line["message"] for line in run.all("warning", loud=True)]
        assert "/csv cannot be written to: File exists" in told
        await run.enough("weights", times=len(run.all("weights")) + 2)

    result, _ = live(watch, **CSV, stop={"env_steps": 10**6})
    assert result.exit_code == 0


@pytest.mark.long
def test_one_that_hangs_is_ended_with_the_run_and_that_is_said(live, monkeypatch):
    monkeypatch.setattr("mlxe_async.supervisor.run.FINISH_S", 0.2)

    async def watch(run):
        await run.saw("weights", times=2)
        os.kill(await exporter_of(run), signal.SIGSTOP)
        run.supervisor.request_stop("enough")

    result, _ = live(watch, **CSV, stop={"env_steps": 10**6})
    (said,) = result.unexported
    assert " was not done after 0.2 s; export RUN --to csv writes all of it" in said
    assert left_after(5) == {}


@pytest.mark.long
def test_of_a_run_that_is_resumed_what_became_void_is_not_exported(command, capsys):
    run = command(TOML, "--set", 'logs.export=["csv"]', "--set", "checkpoint.interval_s=0.2")
    run.saw("checkpoint", times=1)
    run.saw("episode_end", times=8)
    run.signal(signal.SIGKILL)
    run.wait()
    assert left_after(5) == {}
    folder = (run.runs / "latest").resolve()
    expect_whole(folder)
    resume = ["--resume", str(folder), "--no-progress", "--set", "stop.env_steps=3000"]
    assert main(resume) == 0, capsys.readouterr().err
    assert any(line["event"] == "run_resume" for line in read_log(folder))
    expect_whole(folder)


def test_a_missing_package_is_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError) as refused:
        Supervisor(live_runs.settings(logs={"export": ["csv", "wandb", "parquet"]}), run_dir=tmp_path)
    assert [told.partition("logs.export: ")[2] for told in refused.value.problems] == [
        'got "wandb", but wandb is not installed: pip install "mlxe_async[wandb]"',
        'got "parquet", but pyarrow is not installed: pip install "mlxe_async[parquet]"',
    ]
    assert list(tmp_path.iterdir()) == []


def test_settings_name_the_targets_that_there_are():
    assert live_runs.settings(logs={"export": list(TARGETS)}).logs.export == tuple(TARGETS)
    with pytest.raises(SettingsError, match=r"logs.export\[0\]"):
        live_runs.settings(logs={"export": ["excel"]})
