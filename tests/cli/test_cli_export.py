"""`export RUN` writes what there is, or follows the run to its end; and says how much that is."""

import asyncio
import csv
import errno
import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from log_lines import episode, folder_of, line, run_end, run_start, short_run, text_of

from mlxe_async.analysis.exporters import TARGETS, lacking
from mlxe_async.analysis.outcomes import Outcome
from mlxe_async.analysis.study import Arm, Plan, StudyFolder
from mlxe_async.cli import main
from mlxe_async.storage.run_folder import RunFolder

LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def returns(path):
    try:
        with path.open(newline="") as file:
            return [row["episode_return"] for row in csv.DictReader(file)]
    except FileNotFoundError:
        return []


def test_a_run_becomes_tables_in_a_folder_of_its_name(tmp_path, capsys):
    folder = folder_of("runs", short_run())
    assert main(["export", "latest", "--to", "csv"]) == 0
    assert capsys.readouterr().out == f"csv/{folder.name}: 17 lines in 14 files\n"
    assert returns(tmp_path / "csv" / folder.name / "episode_end.csv") == ["5.0"]


def test_another_folder_may_be_chosen_and_runs_lie_side_by_side(tmp_path, capsys):
    one, other = folder_of("runs", short_run()), folder_of("runs", [run_start(), episode(1, 2.0)])
    (tmp_path / "copy.jsonl").write_text(text_of(short_run()))
    for run in (one.name, other.name, "copy.jsonl"):
        assert main(["export", run, "--to", "csv", "--out", "a/b"]) == 0
    assert {path.name for path in (tmp_path / "a" / "b").iterdir()} == {one.name, other.name, "copy"}
    capsys.readouterr()


def test_of_a_study_the_runs_that_count_are_written_under_their_settings_name_and_seed(tmp_path, capsys):
    arms = tuple(Arm(name, f"/x/{name}.toml", (), name) for name in ("is", "oa"))
    with StudyFolder(tmp_path / "cmp") as kept:
        kept.write_plan(Plan(arms, (1, 2), (), timeout_s=7.5, keep_runs=True, d2=False, rerun=False))
        for number, (arm, seed) in enumerate(((arms[0], 1), (arms[1], 1), (arms[1], 2))):
            folder = folder_of("cmp/runs", [*short_run()[:-1], episode(2, float(number)), short_run()[-1]])
            kept.store(arm, Outcome(arm.name, seed, True, True, True, "solved", run=folder.name), "program")
        folder_of("cmp/runs", short_run())  # one that was made again since
    assert main(["export", "cmp", "--to", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    written = {path.name: returns(path / "episode_end.csv")[-1] for path in (tmp_path / "csv").iterdir()}
    assert written == {"is-seed-1": "0.0", "oa-seed-1": "1.0", "oa-seed-2": "2.0"}
    assert main(["export", "cmp", "--to", "csv", "--follow"]) == 2
    assert "--follow: got a study, expected a run" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "cmp" / "runs")
    assert main(["export", "cmp", "--to", "csv"]) == 2
    assert "has kept none of its runs" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "run"), [("../../out", "x"), ("is", "../../x"), ("is", "/etc"), ("a/b", "x")])
def test_a_study_from_elsewhere_cannot_lead_to_other_folders(tmp_path, capsys, name, run):
    with StudyFolder(tmp_path / "cmp") as kept:
        kept.write_plan(Plan((), (1,), (), timeout_s=7.5, keep_runs=True, d2=False, rerun=False))
        kept.store(Arm("is", "/x", (), "k"), Outcome(name, 1, True, True, True, "solved", run=run), "program")
    (tmp_path / "cmp" / "runs").mkdir(exist_ok=True)
    assert main(["export", "cmp", "--to", "csv"]) == 3
    assert "for a run, expected a plain name" in capsys.readouterr().err
    assert not (tmp_path / "csv").exists()


def test_of_a_run_that_was_killed_all_whole_lines_are_there_and_when_it_died_is_said(tmp_path, capsys):
    folder = folder_of("runs", [run_start(), episode(1, 2.0), episode(3, 4.0)], torn='{"event": "episode_end", "ts"')
    assert main(["export", "latest", "--to", "csv"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("; the run died without a last word, its last line is of 2026-01-01T00:00:00.003Z\n")
    assert returns(tmp_path / "csv" / folder.name / "episode_end.csv") == ["2.0", "4.0"]
    assert main(["export", "latest", "--to", "csv", "--follow"]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("target", TARGETS)
def test_each_format_of_a_run_that_was_killed_comes_out_and_when_it_died_is_said(tmp_path, capsys, target):
    if lacking(target):
        pytest.skip(lacking(target))
    torn = '{"event": "episode_end", "ts"'
    folder_of("runs", [run_start(), episode(1, 2.0), episode(3, 4.0)], torn=torn)
    died = "the run died without a last word, its last line is of 2026-01-01T00:00:00.003Z"
    for follow in ([], ["--follow"]):
        assert main(["export", "latest", "--to", target, *follow]) == 0
        assert capsys.readouterr().out.endswith(f"; {died}\n")
    files = [path for path in (tmp_path / target).rglob("*") if path.is_file()]
    assert files
    if target in ("tensorboard", "wandb", "mlflow"):  # they have room for a word on it
        assert any(died.encode() in path.read_bytes() for path in files)


def until(condition):
    """Wait until something holds, which another process or thread brings about."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_run_is_followed_while_it_goes_on_and_until_its_end(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mlxe_async.analysis.exporters.job.FLUSH_S", 0.005)
    with RunFolder.create("runs", "x") as folder, ThreadPoolExecutor(1) as thread:
        lines = [run_start()]
        folder.log_path.write_text(text_of(lines))
        code = thread.submit(main, ["export", "latest", "--to", "csv", "--follow"])
        path = tmp_path / "csv" / folder.path.name / "episode_end.csv"
        for number in range(1, 4):
            lines.append(episode(number, float(number)))
            with folder.log_path.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
            until(lambda number=number: returns(path) == ["1.0", "2.0", "3.0"][:number])
            assert not code.done()
        with folder.log_path.open("a") as file:
            file.write(json.dumps(run_end(9)) + "\n")
        assert code.result(LIMIT_S) == 0
    assert capsys.readouterr().out == f"csv/{folder.path.name}: 5 lines in 3 files\n"


def resumed(at, first, last):
    return line("run_resume", at, checkpoint=1, version=1, env_steps=9, episodes=1, updates=0, seconds=1.0) | {
        "void_from": first,
        "void_to": last,
    }


@pytest.mark.parametrize("target", ["csv", "mlflow"])
def test_what_a_resumption_makes_void_while_it_is_followed_is_taken_back(tmp_path, monkeypatch, target):
    """The log is read anew from its start: lines that were told before are left out then."""
    before = [run_start(), episode(1, 1.0, env_steps=9), episode(2, 2.0, env_steps=30)]
    with RunFolder.create("runs", "x") as folder, ThreadPoolExecutor(1) as thread:
        folder.log_path.write_text(text_of(before))
        monkeypatch.setattr("mlxe_async.analysis.exporters.job.FLUSH_S", 0.005)
        code = thread.submit(main, ["export", "latest", "--to", target, "--follow"])
        pattern = {"csv": "csv/*/episode_end.csv", "mlflow": "mlflow/*/*/metrics/charts/episodic_return"}[target]
        until(lambda: any("2.0" in path.read_text() for path in tmp_path.glob(pattern)))
        lines = [*before, resumed(3, 2, 2), episode(4, 4.0, env_steps=20), run_end(9)]
        with folder.log_path.open("a") as file:
            file.write("".join(f"{one}\n" for one in text_of(lines).splitlines()[3:]))
        assert code.result(LIMIT_S) == 0
    (path,) = tmp_path.glob(pattern)
    assert "2.0" not in path.read_text()
    assert "1.0" in path.read_text()
    assert "4.0" in path.read_text()


def test_following_ends_by_ctrl_c_with_all_that_was_told(tmp_path, capsys, monkeypatch):
    async def interrupted(run):
        yield episode(1, 1.0)
        raise KeyboardInterrupt

    folder = folder_of("runs", [])
    monkeypatch.setattr("mlxe_async.analysis.exporters.job.follow", interrupted)
    assert main(["export", "latest", "--to", "csv", "--follow"]) == 130
    assert returns(tmp_path / "csv" / folder.name / "episode_end.csv") == ["1.0"]
    assert capsys.readouterr() == ("", "")


def test_a_full_disk_ends_the_following_with_a_line(tmp_path, capsys, monkeypatch):
    class Full:
        forgets = True

        def feed(self, line):
            pass

        def flush(self, died=""):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        close = flush

    async def later(run):
        yield episode(1, 1.0)
        await asyncio.sleep(0.05)
        yield episode(2, 1.0)

    folder_of("runs", [])
    monkeypatch.setattr("mlxe_async.analysis.exporters.job.FLUSH_S", 0.001)
    monkeypatch.setattr("mlxe_async.analysis.exporters.job.follow", later)
    monkeypatch.setattr("mlxe_async.cli.export.exporter_to", lambda target: lambda folder: Full())
    assert main(["export", "latest", "--to", "csv", "--follow"]) == 4
    assert capsys.readouterr().err.endswith("cannot be written to: No space left on device\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["export", "latest"], "--to"),
        (["export", "latest", "--to", "excel"], "invalid choice: 'excel'"),
        (["export", "--to", "csv"], "RUN"),
        (["export", "nothing", "--to", "csv"], 'there is no run "nothing"'),
        (["export", "nothing", "--to", "csv", "--follow"], 'there is no run "nothing"'),
        (["export", "empty.jsonl", "--to", "csv"], "is no run: expected a run folder, or a log with events"),
    ],
)
def test_a_mistake_is_told_in_one_line_and_nothing_is_written(tmp_path, capsys, arguments, says):
    (tmp_path / "empty.jsonl").touch()
    assert main(arguments) == 2
    said = capsys.readouterr()
    (told,) = said.err.splitlines()
    assert says in told
    assert said.out == ""
    assert os.listdir(tmp_path) == ["empty.jsonl"]  # noqa: PTH208 - names alone


def test_a_folder_that_cannot_be_written_to_and_a_line_that_is_not_ours_are_told(tmp_path, capsys):
    folder_of("runs", short_run())
    (tmp_path / "file").touch()
    assert main(["export", "latest", "--to", "csv", "--out", "file"]) == 4
    assert capsys.readouterr().err.startswith("file/")
    (tmp_path / "odd.jsonl").write_text(json.dumps({"event": "../x", "ts": "now"}) + "\n")
    assert main(["export", "odd.jsonl", "--to", "csv"]) == 3
    assert capsys.readouterr().err.startswith("odd.jsonl: expected a log of this program, a line of it cannot be used")


ODD = [None, "x", -1, 10**30, 1e308, float("inf"), [], {}, True, "\ud800"]


@pytest.mark.parametrize("target", TARGETS)
def test_lines_of_any_content_are_exported_or_a_mistake_that_is_told(tmp_path, capsys, target):
    if lacking(target):
        pytest.skip(lacking(target))
    resumed = line("run_resume", 95, checkpoint=1, version=1, env_steps=9, episodes=0, updates=0, seconds=1.0)
    lines, codes = [*short_run(), resumed], set()
    cases = [(number, name, value) for number, one in enumerate(lines) for name in one for value in ODD]
    for number, name, value in cases[::139]:
        (tmp_path / "log.jsonl").write_text(
            text_of([*lines[:number], {**lines[number], name: value}, *lines[number + 1 :]])
        )
        codes.add(main(["export", "log.jsonl", "--to", target]))
        assert "Traceback" not in capsys.readouterr().err
    assert 0 in codes
    assert codes <= {0, 3}


def test_a_run_goes_to_tensorboard_and_how_it_is_looked_at_is_said(tmp_path, capsys):
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    folder = folder_of("runs", short_run())
    assert main(["export", "latest", "--to", "tensorboard"]) == 0
    assert capsys.readouterr().out == (f"tensorboard/{folder.name}: 22 values; tensorboard --logdir tensorboard\n")
    (file,) = (tmp_path / "tensorboard" / folder.name).iterdir()
    assert file.name.startswith("events.out.tfevents.")
    assert file.stat().st_mode & 0o777 == 0o600
