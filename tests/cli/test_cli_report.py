"""`report` writes one page about runs and studies, prints its top, and refuses what it cannot do in one line."""

import asyncio
import datetime as dt
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis/report"))

from report_runs import story, write

from mlxe_async.analysis import study
from mlxe_async.analysis.outcomes import failure, outcome
from mlxe_async.analysis.study import Arm, Plan, StudyFolder
from mlxe_async.cli import main, report
from mlxe_async.logs.reader import follow

KEPT = Path(__file__).parents[2] / "runs/study/istb"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_run_by_its_name_becomes_a_page_of_its_name(tmp_path, capsys):
    log = story(ended="")
    write(tmp_path / "runs", log)
    assert main(["report", log.name]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(
        f"{log.name} (mlxe on CartPole-v1, schedule oa, seed 0) died without a last word at 2026-11-27"
    )
    assert err == f"the report is in {log.name}.html\n"
    assert Path(f"{log.name}.html").read_text().startswith("<!doctype html>")


def test_several_runs_become_one_page_where_it_is_wanted(tmp_path, capsys):
    folders = [str(write(tmp_path, story("oa", seed))) for seed in range(2)]
    assert main(["report", *folders]) == 0
    assert main(["report", *folders, "--out", "deep.htm"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert Path("report.html").read_text() == Path("deep.htm").read_text()


def test_an_earlier_report_is_replaced_and_nothing_else_is(tmp_path, capsys):
    folders = [str(write(tmp_path, story("oa", seed))) for seed in range(2)]
    assert main(["report", *folders]) == 0
    assert main(["report", *folders]) == 0
    Path("report.html").write_text("<p>my own")
    assert main(["report", *folders]) == 2
    assert "report.html is there and no report of ours, expected --out FILE" in capsys.readouterr().err
    assert Path("report.html").read_text() == "<p>my own"
    Path("report.html").unlink()
    Path("report.html").mkdir()
    assert main(["report", *folders]) == 2
    assert "report.html is in the way" in capsys.readouterr().err


def test_a_log_alone_is_enough(tmp_path):
    folder = write(tmp_path, story())
    shutil.copy(folder / "log.jsonl", "saved.jsonl")
    assert main(["report", "saved.jsonl", "--out", "a.html"]) == 0
    assert "algorithm.<wbr>name" in Path("a.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere"], 2, 'there is no run "nowhere"'),
        ([], 2, "expected: python -m mlxe_async report RUN ... [--dir FOLDER] [--out FILE]"),
        (["RUN", "--html"], 2, "unrecognized arguments: --html"),
        (["RUN", "--out", "no/such/folder/a.html"], 4, "no/such/folder/a.html cannot be written: No such file"),
        (["RUN", "--out", "."], 4, "cannot be written"),
        (["RUN"] * (report.MOST_RUNS + 1), 2, "got more than 200 runs, expected fewer for one page"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, capsys, arguments, code, said):
    folder = str(write(tmp_path, story(seconds=1)))
    assert main(["report", *(folder if one == "RUN" else one for one in arguments)]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def studied(path, *, keep):
    """A study of two seeds and a third that left nothing."""
    with StudyFolder(path) as kept:
        arm = Arm("oa", "oa.toml", (), "key")
        kept.write_plan(Plan((arm,), (0, 1, 2)))
        for seed in (0, 1):
            folder = write(kept.runs, story("oa", seed))
            kept.store(arm, outcome(folder), "program")
            if not keep:
                shutil.rmtree(folder)
        kept.store(arm, failure("oa", 2, "killed by SIGKILL", 2.0), "program")


@pytest.mark.parametrize("keep", [True, False], ids=["with its folders", "with outcomes alone"])
def test_a_study_is_told_by_its_runs_and_its_tables(capsys, keep):
    studied(Path("study"), keep=keep)
    assert main(["report", "study"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3
    assert "failed with exit code 3" in said[2]
    assert "killed by SIGKILL" in said[2]
    text = Path("study.html").read_text()
    assert "return by environment steps" in text
    assert "Every run" in text
    assert ("Where the time went" in text) == keep
    assert ("not its folder" in text) == keep or not keep


def test_a_study_that_keeps_its_table_alone_is_told(capsys):
    assert main(["report", str(KEPT), "--out", "kept.html"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    text = Path("kept.html").read_text()
    assert "share not solved yet" in text
    assert "What was needed" in text


def test_a_study_in_which_nothing_has_finished_is_refused(capsys):
    with StudyFolder(Path("study")) as kept:
        kept.write_plan(Plan((Arm("oa", "oa.toml", (), "key"),), (0,)))
    assert main(["report", "study"]) == 2
    assert "got no run in study, expected runs that have begun" in capsys.readouterr().err


def test_an_outcome_cannot_lead_out_of_its_study(tmp_path, capsys):
    elsewhere = write(tmp_path / "elsewhere", story("other", 5))
    studied(Path("study"), keep=False)
    file = Path("study/outcomes/oa-0.json")
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "run": f"../../elsewhere/{elsewhere.name}"}))
    assert main(["report", "study"]) == 0
    assert "other" not in capsys.readouterr().out.replace(elsewhere.name, "")
    assert study.has_outcomes(Path("study"))


async def killed(process, folders):
    """Folder of a run whose supervisor is killed after three versions, told by a report shortly before."""
    while not (found := list(folders.glob("2*/log.jsonl"))):
        assert process.poll() is None
        await asyncio.sleep(0.01)
    folder = found[0].parent
    async for line in follow(folder):
        if line["event"] == "weights" and line["version"] >= 3 and process.poll() is None:
            assert main(["report", str(folder), "--out", "alive.html"]) == 0
            process.kill()
            process.wait(60)
    return folder


@pytest.mark.slow
def test_a_run_that_is_killed_is_told_while_it_lives_and_when_it_is_dead(tmp_path, capsys):
    Path("own.toml").write_text('[task]\nenv = "CartPole-v1"\n[schedule]\nkind = "oa"\n[stop]\nseconds = 50\n')
    command = [sys.executable, "-m", "mlxe_async", "own.toml", "--no-progress"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        folder = asyncio.run(asyncio.wait_for(killed(process, tmp_path / "runs"), 90))
    assert "is still running: " in capsys.readouterr().out
    assert main(["report", str(folder), "--out", "dead.html"]) == 0
    said = capsys.readouterr().out
    assert f"died without a last word at {dt.datetime.now(dt.UTC):%Y-%m-%d} " in said
    text = Path("dead.html").read_text()
    for part in ("Returns in training", "Where the time went", "How fast it went", "end of the log: 1", "Settings"):
        assert part in text
