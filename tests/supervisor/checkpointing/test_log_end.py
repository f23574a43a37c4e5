"""The end of a log is read in pieces, whatever stands in it."""

import json
import tracemalloc
from types import SimpleNamespace

import pytest

from mlxe_async.supervisor.checkpointing.log_end import TAIL_BYTES, read_log_end, tells_of_checkpoints

LINE = json.dumps({"event": "checkpoint", "seq": 4, "version": 3}).encode() + b"\n"
LONG = 200 * 2**20


def peak(function, *arguments):
    """What a call returns, and the most bytes that Python had at once for it."""
    tracemalloc.start()
    try:
        return function(*arguments), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(LINE)
    with path.open("r+b") as file:
        file.truncate(LONG)  # zeros that take no room on the disk
    return path


def test_a_line_of_any_length_without_an_end_is_cut_off_within_little_memory(log):
    end, most = peak(read_log_end, log)
    assert (end.next_seq, end.version, end.whole_bytes, end.torn_bytes) == (5, 3, len(LINE), LONG - len(LINE))
    assert most < 40 * 2**20
    end.mend(log)
    assert log.read_bytes() == LINE
    assert read_log_end(log).torn_bytes == 0


def test_a_log_that_is_looked_through_for_checkpoints_takes_little_memory_too(log):
    folder = SimpleNamespace(log_path=log)
    assert tells_of_checkpoints(folder)
    log.write_bytes(b"x" * (TAIL_BYTES - 5) + LINE)  # across the border of two pieces
    assert tells_of_checkpoints(folder)
    with log.open("r+b") as file:
        file.truncate(0)
        file.truncate(LONG)
    told, most = peak(tells_of_checkpoints, folder)
    assert not told
    assert most < 8 * 2**20


def test_a_whole_last_line_that_lacks_its_newline_is_kept(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(LINE + LINE.strip())
    end = read_log_end(path)
    assert (end.is_open, end.torn, end.whole_bytes) == (True, b"", 2 * len(LINE) - 1)
