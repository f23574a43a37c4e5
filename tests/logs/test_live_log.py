"""A log read piece by piece tells what reading it whole tells, in bounded memory, and says when it is stale."""

import contextlib
import json
import os
import tracemalloc

import pytest

from mlxe_async.errors import ResourceError
from mlxe_async.logs.reader import LiveLog, read_log


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


def lines(first, last, **fields):
    return "".join(f"{json.dumps({'seq': seq, 'version': seq, **fields})}\n" for seq in range(first, last))


def resumption(seq, first, last):
    return json.dumps({"seq": seq, "event": "run_resume", "void_from": first, "void_to": last}) + "\n"


def pieces(live):
    """All that there is for now."""
    told = []
    while (more := live.more()) is not None:
        told += more
    return told


def read(path, **options):
    with contextlib.closing(LiveLog(path, **options)) as live:
        return pieces(live)


@pytest.mark.parametrize(
    "text",
    [
        "",
        lines(0, 5),
        lines(0, 20_000),
        lines(0, 5) + '{"torn": ',
        "no JSON\n[1, 2]\n" + lines(0, 2),
        lines(0, 9) + resumption(9, 4, 8) + lines(10, 12),
        resumption(0, "x", None) + lines(1, 3),
    ],
    ids=["empty", "short", "long", "torn", "foreign", "resumed", "odd resumption"],
)
def test_piece_by_piece_the_same_is_told(path, text):
    path.write_text(text)
    assert read(path) == list(read_log(path))


def test_the_earlier_part_of_a_log_that_was_begun_anew_is_told_first(path):
    path.with_name("log.jsonl.1").write_text(lines(0, 5))
    path.write_text(lines(5, 8) + resumption(8, 3, 6))
    assert [event["seq"] for event in read(path)] == [0, 1, 2, 7, 8]


def test_what_is_written_later_is_told_later(path):
    with contextlib.closing(LiveLog(path)) as live:
        assert pieces(live) == []
        path.write_text(lines(0, 2))
        assert [event["seq"] for event in pieces(live)] == [0, 1]
        with path.open("a") as file:
            file.write(lines(2, 3))
        assert [event["seq"] for event in pieces(live)] == [2]
        assert live.share_read == 1.0


def test_a_resumption_to_come_makes_it_stale_and_one_that_undoes_nothing_does_not(path):
    path.write_text(lines(0, 5) + resumption(5, 2, 3))
    with contextlib.closing(LiveLog(path)) as live:
        assert [event["seq"] for event in pieces(live)] == [0, 1, 4, 5]
        assert not live.is_stale
        with path.open("a") as file:
            file.write(resumption(6, 7, 6))
        pieces(live)
        assert not live.is_stale
        with path.open("a") as file:
            file.write(resumption(7, 4, 6))
        pieces(live)
        assert live.is_stale
    assert [event["seq"] for event in read(path)] == [0, 1, 7]


def test_a_line_that_is_too_long_is_passed_over(path):
    path.write_text(lines(0, 1) + lines(1, 2, text="x" * 5000) + lines(2, 3))
    assert [event["seq"] for event in read(path, longest=1000)] == [0, 2]
    assert [event["seq"] for event in read(path)] == [0, 1, 2]


@pytest.mark.parametrize(
    "filler",
    [
        pytest.param(b"\0" * 2**20, id="zeros"),
        pytest.param(b'{"a": 1, ' * 2**17, id="one line"),
        pytest.param((b"[" * 50 + b"]" * 50 + b"\n") * 10_000, id="nested", marks=pytest.mark.slow),
    ],
)
def test_memory_stays_bounded_whatever_is_in_the_file(path, filler):
    with path.open("wb") as file:
        for _ in range(16):
            file.write(filler)
        file.write(b"\n" + lines(0, 1).encode())
    tracemalloc.start()
    try:
        assert [event["seq"] for event in read(path, longest=2**18)] == [0]
        assert tracemalloc.get_traced_memory()[1] < 8e6
    finally:
        tracemalloc.stop()


@pytest.mark.long
def test_twenty_thousand_resumptions_do_not_fill_the_memory(path):
    path.write_text(
        "".join(resumption(2 * seq, 2 * seq + 1, 2 * seq + 1) for seq in range(20_000)) + lines(10**6, 10**6 + 1)
    )
    with contextlib.closing(LiveLog(path)) as live:
        assert pieces(live)[-1]["seq"] == 10**6
        assert len(live._ranges) == 1000
        assert not live.is_stale


def test_something_else_in_the_place_of_a_log_is_refused(path):
    os.mkfifo(path)
    with contextlib.closing(LiveLog(path)) as live, pytest.raises(ResourceError, match="it is a FIFO"):
        live.more()
