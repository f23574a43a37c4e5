"""`trace RUN` writes a timeline of a run that ended, goes on, or died; and says which."""

import gzip
import json
import os

import pytest
from log_lines import folder_of, generate, publish, run_end, run_start, short_run, text_of
from trace_format import of_kind, problems

from mlxe_async.cli import main
from mlxe_async.storage.run_folder import RunFolder


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_timeline_of_a_run_is_a_file_and_a_line_says_what_is_in_it(tmp_path, capsys):
    folder_of("runs", short_run())
    assert main(["trace", "latest"]) == 0
    assert capsys.readouterr().out == "trace.json: 4 tracks, 6 spans, 3 arrows; 0.0 MiB\n"
    made = json.loads((tmp_path / "trace.json").read_bytes())
    assert problems(made) == []
    assert len(of_kind(made, "X")) == 6 + 5


def test_a_name_that_ends_in_gz_is_packed(tmp_path, capsys):
    folder = folder_of("runs", short_run())
    assert main(["trace", str(folder), "--out", "t.json.gz"]) == 0
    assert main(["trace", folder.name, "--out", "t.json"]) == 0
    assert gzip.decompress((tmp_path / "t.json.gz").read_bytes()) == (tmp_path / "t.json").read_bytes()
    capsys.readouterr()


def test_of_a_run_that_was_killed_in_the_middle_of_a_line_all_others_are_there_and_when_it_died(tmp_path, capsys):
    lines = short_run()[:-2]
    folder_of("runs", lines, torn='{"ts": "2026-01-01T00:00:00.999Z", "mono_ns": 50000999')
    assert main(["trace", "latest"]) == 0
    said = "the run died without a last word, its last line is of 2026-01-01T00:00:00.081Z"
    assert said in capsys.readouterr().out
    made = json.loads((tmp_path / "trace.json").read_bytes())
    assert problems(made) == []
    assert len([one for one in of_kind(made, "X") if one["name"] not in ("start", "alive", "probe")]) == 6
    (mark,) = [one for one in of_kind(made, "i") if one["name"] == "the run died without a last word"]
    assert mark["ts"] == max(one["ts"] for one in made["traceEvents"])


def test_a_run_that_goes_on_is_told_so_far(tmp_path, capsys):
    with RunFolder.create("runs", "x") as folder:
        folder.log_path.write_text(text_of(short_run()[:-2]))
        assert main(["trace", "latest"]) == 0
        assert "; the run goes on, its last line" in capsys.readouterr().out


def test_a_log_alone_does_not_say_whether_its_run_lives(tmp_path, capsys):
    (tmp_path / "copy.jsonl").write_text(text_of(short_run()[:-2]))
    assert main(["trace", "copy.jsonl"]) == 0
    assert "the log ends without a last word: the run died, or goes on elsewhere" in capsys.readouterr().out


def test_the_earlier_part_of_a_log_is_read_first_and_what_is_void_is_left_out(tmp_path, capsys):
    folder = folder_of("runs", [])
    lines = [*short_run(), run_start(100, resumed=True), generate(110, 120, 0, 5, 95), run_end(130)]
    first, second = text_of(lines[:5]), text_of(lines)[len(text_of(lines[:5])) :]
    (folder / "log.jsonl.1").write_text(first)
    (folder / "log.jsonl").write_text(second)
    assert main(["trace", "latest"]) == 0
    assert "7 spans" in capsys.readouterr().out
    made = json.loads((tmp_path / "trace.json").read_bytes())
    assert [one["args"]["version"] for one in of_kind(made, "X") if one["name"] == "publish"] == [1, 2]


def test_a_log_whose_first_lines_were_dropped_has_a_timeline_from_then_on(tmp_path, capsys):
    (tmp_path / "log.jsonl").write_text(text_of(short_run()[6:]))
    assert main(["trace", "log.jsonl"]) == 0
    assert "5 spans, 2 arrows" in capsys.readouterr().out
    assert problems(json.loads((tmp_path / "trace.json").read_bytes())) == []


@pytest.mark.parametrize(("out", "why"), [("none/t.json", "No such file"), ("a" * 300, "File name too long")])
def test_a_file_that_cannot_be_written_is_told(tmp_path, capsys, out, why):
    folder_of("runs", short_run())
    assert main(["trace", "latest", "--out", out]) == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert f"cannot be written: {why}" in said.err


def test_lines_that_are_no_log_of_ours_are_told_and_nothing_is_written(tmp_path, capsys):
    (tmp_path / "log.jsonl").write_text('{"event": "phase"}\n')
    assert main(["trace", "log.jsonl"]) == 3
    assert capsys.readouterr().err.startswith("log.jsonl: expected a log of this program")
    assert os.listdir(tmp_path) == ["log.jsonl"]  # noqa: PTH208 - names alone


def test_a_run_that_has_published_and_no_more_has_a_timeline(tmp_path, capsys):
    folder_of("runs", [run_start(), publish(1, 2, 1)])
    assert main(["trace", "latest"]) == 0
    assert "1 tracks, 1 spans, 0 arrows" in capsys.readouterr().out
