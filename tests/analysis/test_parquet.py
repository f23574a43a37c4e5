"""Parquet files hold what the log holds, with its types, at any moment while they grow."""

import datetime as dt
import json

import pytest
from log_lines import episode, exported, learn, line, numbered, run_start, short_run

pytest.importorskip("pyarrow", reason="needs the extra parquet")

import pyarrow.parquet as pq

from mlxe_async.analysis.exporters import parquet
from mlxe_async.analysis.exporters.cells import cells_of, kind_of


def rows(folder, name):
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def column(folder, name, field):
    return [row.get(field) for row in rows(folder, name)]


def expected(value):
    return json.dumps(value) if isinstance(value, list) else value


def test_each_kind_of_line_has_a_file_in_which_every_value_of_the_log_stands(tmp_path):
    lines = numbered(short_run())
    assert exported(parquet.Files(tmp_path / "t"), lines).told() == "17 lines in 14 files"
    assert {path.stem for path in (tmp_path / "t").iterdir()} == {kind_of(one) for one in lines}
    found = {row["seq"]: row for path in (tmp_path / "t").iterdir() for row in rows(tmp_path / "t", path.stem)}
    for one in lines:
        told = {name: expected(value) for name, value in cells_of(one)} | {"ts": dt.datetime.fromisoformat(one["ts"])}
        row = found[one["seq"]]
        assert {name: row[name] for name in told} == told
        assert [name for name, value in row.items() if name not in told and value is not None] == []


def test_columns_that_come_up_later_are_empty_before_and_widen_where_they_must(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "ROWS_OF_A_CHUNK", 1)
    told = [{"a": 1}, {"a": 2.5, "b": 1}, {"c": None, "d": True, "b": "x"}, {"e": 2**60, "d": 3}, {"e": 0.5}]
    exported(parquet.Files(tmp_path), [learn(n, n + 1, 5, n, losses=losses) for n, losses in enumerate(told, 1)])
    assert column(tmp_path, "phase-learn", "losses.a") == [1.0, 2.5, None, None, None]
    assert column(tmp_path, "phase-learn", "losses.b") == [None, "1", "x", None, None]
    assert column(tmp_path, "phase-learn", "losses.c") == [None] * 5
    assert column(tmp_path, "phase-learn", "losses.d") == [None, None, "true", "3", None]
    assert column(tmp_path, "phase-learn", "losses.e") == [None, None, None, str(2**60), "0.5"]


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, [1, None], "\ud800", "ä\n", "", 1e308, -0.0, True])
def test_any_value_is_kept(tmp_path, value):
    exported(parquet.Files(tmp_path), [line("warning", 1, message=value, count=2)])
    (found,) = column(tmp_path, "warning", "message")
    if isinstance(value, bool | float) or (isinstance(value, str) and value.isprintable()):
        assert found == value
    else:
        assert found == (value.encode("utf-8", "backslashreplace").decode() if value in ("\ud800", "ä\n")
                         else json.dumps(value))  # fmt: skip


def test_what_was_fed_can_be_read_after_a_flush_while_more_is_to_come(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "PATIENCE", 0)
    files = parquet.Files(tmp_path)
    for number in range(1, 4):
        files.feed(numbered([episode(number, float(number))])[0])
        files.flush()
        assert column(tmp_path, "episode_end", "episode_return") == [1.0, 2.0, 3.0][:number]
    files.close()
    files.close()


def test_rewriting_takes_a_small_part_of_the_time_and_the_end_is_always_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "PATIENCE", 1e9)
    files = parquet.Files(tmp_path)
    for number in (1, 2):
        files.feed(numbered([episode(number, float(number))])[0])
        files.flush()
    assert column(tmp_path, "episode_end", "episode_return") == [1.0]
    files.close()
    assert column(tmp_path, "episode_end", "episode_return") == [1.0, 2.0]


def test_a_long_log_goes_on_in_further_files_that_are_not_touched_again(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "ROWS_OF_A_CHUNK", 10)
    monkeypatch.setattr(parquet, "ROWS_OF_A_FILE", 100)
    told = exported(parquet.Files(tmp_path), [episode(number, float(number)) for number in range(250)]).told()
    assert told == "250 lines in 3 files"
    names = ["episode_end", "episode_end.2", "episode_end.3"]
    found = [value for name in names for value in column(tmp_path, name, "episode_return")]
    assert found == [float(number) for number in range(250)]
    exported(parquet.Files(tmp_path), [run_start()])
    assert [path.name for path in tmp_path.iterdir()] == ["run_start.parquet"]


def test_a_link_in_the_place_of_a_file_is_not_written_through_and_other_files_stay(tmp_path):
    (tmp_path / "other").write_text("precious")
    (tmp_path / "warning.parquet").symlink_to(tmp_path / "other")
    (tmp_path / "mine.parquet").write_text("mine")
    exported(parquet.Files(tmp_path), [line("warning", 1, message="x")])
    assert (tmp_path / "other").read_text() == "precious"
    assert (tmp_path / "mine.parquet").read_text() == "mine"
    assert column(tmp_path, "warning", "message") == ["x"]
