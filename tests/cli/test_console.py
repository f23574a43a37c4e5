"""Lines stay, a block below them changes, and a terminal far away gets no more than what changed."""

import contextlib
import os

import pytest
from cli_tools import Screen, resize, terminal
from hypothesis import given
from hypothesis import strategies as st

from mlxe_async.cli.console import Console

TEXT = st.text("abc", max_size=5)
STEPS = st.lists(st.one_of(TEXT, st.lists(TEXT, min_size=1, max_size=6)), max_size=12)


def block(*lines):
    return [(line, len(line)) for line in lines]


@pytest.fixture(autouse=True)
def _is_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")


@given(STEPS)
def test_whatever_is_written_the_screen_shows_the_lines_and_then_the_block(steps):
    screen, lines, last = Screen(), [], []
    with pytest.MonkeyPatch.context() as patch, terminal() as (stream, written):
        patch.setenv("TERM", "xterm")
        console = Console(stream)
        for step in steps:
            if isinstance(step, str):
                console.line(f"> {step}")
                lines.append(f"> {step}".rstrip())
            else:
                console.show(block(*step))
                last = step
            screen.write(written())
            expected = [*lines, *last]
            while expected and not expected[-1]:
                expected.pop()
            assert screen.shown() == expected


def test_of_a_block_only_lines_that_changed_are_sent():
    with terminal() as (stream, written):
        console = Console(stream)
        console.show(block("one", "two", "three"))
        written()
        console.show(block("one", "2", "three"))
        assert written() == "\x1b[2A\r2\x1b[K\x1b[2B\r"
        console.show(block("one", "2", "three"))
        assert written() == ""


def test_the_last_block_stays_above_the_last_lines():
    with terminal() as (stream, written):
        console = Console(stream)
        console.show(block("one"))
        console.finish("t\x1bwo", "three")
        assert written() == "one\r\nt\\x1bwo\nthree\n"


def test_a_terminal_that_became_narrower_is_cleared_of_what_it_wrapped():
    with terminal() as (stream, written):
        console = Console(stream)
        console.show(block("x" * 50, "y"))
        written()
        resize(stream, 20)
        console.show(block("x" * 10, "y"))
        assert written() == f"\x1b[4A\r\x1b[J{'x' * 10}\r\ny\r\n"


def test_after_a_block_was_lost_the_next_one_is_written_whole():
    with terminal() as (stream, written):
        console = Console(stream)
        console.show(block("one", "two"))
        written()
        console._writable = lambda _patience_s: False
        console.show(block("one", "2"))
        assert console.dropped == 1
        del console._writable
        console.show(block("one", "3"))
        assert written() == "one\r\n3\r\n"


def test_a_dumb_terminal_is_none(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with terminal() as (stream, _):
        assert not Console(stream).is_terminal


def test_elsewhere_lines_are_plain(tmp_path):
    path = tmp_path / "err"
    with path.open("w") as stream:
        console = Console(stream)
        console.line("t\x1bwo")
        console.finish("three", "four")
        assert console.size == (80, 24)
    assert path.read_text() == "t\\x1bwo\nthree\nfour\n"


def test_a_pipe_that_is_full_costs_lines_and_no_time():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writing, b"x" * 4096):
            continue
    os.set_blocking(writing, True)
    with os.fdopen(writing, "w") as stream:
        console = Console(stream)
        console.line("lost")
        assert console.dropped == 1
        os.read(reading, 2**20)
        console.line("kept")
        assert os.read(reading, 100) == b"kept\n"
    os.close(reading)


def test_whoever_asked_hears_that_the_reader_of_a_pipe_has_gone():
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream:
        console, heard = Console(stream), []
        console.on_gone = lambda: heard.append("gone")
        console.line("one")
        assert heard == []
        os.close(read)
        console.line("two")
        assert heard == ["gone"]
        assert console.dropped == 1
