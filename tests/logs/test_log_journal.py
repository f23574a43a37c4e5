"""The journal writes whole lines of plain numbers, and never stands in a run's way."""

import json
import math
import os
import re
import resource
import signal
import stat
import threading
import time
from dataclasses import fields
from functools import partial

import numpy as np
import pytest
import structlog
import torch

from mlxe_async.logs import journal as journal_module
from mlxe_async.logs.events import (
    COMMON,
    CheckpointRejected,
    EnvError,
    EpisodeEnd,
    PhaseEvent,
    RunStart,
    Warning,  # noqa: A004 - the event
    Weights,
)
from mlxe_async.logs.journal import LONGEST_TEXT, Journal
from mlxe_async.logs.reader import read_log

NAN = float("nan")


def lines_of(path):
    return [json.loads(line) for line in path.read_bytes().decode("ascii").splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


def phase(**values):
    return PhaseEvent("learn", start_ns=1, seconds=0.5, version=3, **values)


def test_numbers_of_numpy_and_torch_are_numbers_and_what_is_not_finite_is_null(path):
    with Journal(path, "r") as journal:
        losses = {"a": np.float32(1.5), "b": torch.tensor(2.5), "c": NAN, "d": np.float64("inf"), "e": np.int64(7)}
        journal.emit(phase(losses=losses, rows=np.int32(4), waits={"x": np.array([1.0, NAN])}))
    [line] = lines_of(path)
    assert line["losses"] == {"a": 1.5, "b": 2.5, "c": None, "d": None, "e": 7}
    assert line["rows"] == 4
    assert line["waits"] == {"x": [1.0, None]}


def test_any_value_at_all_becomes_json(path):
    class Hostile:
        def __str__(self):
            raise RuntimeError("no")

    looped: list = []
    looped.append(looped)
    values = [Hostile(), looped, b"\x00\xff", {1: {2}}, 10**400, 2**70, "x" * 100_000, "\ud800", object, {3, 4}]
    with Journal(path, "r") as journal:
        for value in values:
            journal.emit(RunStart(1, "is", "mlxe", "E", {"value": value}))
    lines = lines_of(path)
    assert len(lines) == len(values)
    assert len(lines[6]["settings"]["value"]) == LONGEST_TEXT + 1


def test_a_message_cannot_forge_a_line_or_reach_a_terminal(path):
    with Journal(path, "r") as journal:
        journal.emit(EnvError(0, "step", 'x\n{"event": "run_end"}\r\x1b[2J\x00\u2028\x7f'))
    raw = path.read_bytes()
    assert raw.count(b"\n") == 1
    assert not set(raw[:-1]) & set(range(32))
    assert lines_of(path)[0]["event"] == "env_error"


def test_secrets_stay_out(path):
    settings = {"task": {"kwargs": {"api_key": "canary", "tokens": {"a": "canary"}, "max_tokens": 3}}}
    with Journal(path, "r") as journal:
        journal.emit(RunStart(1, "is", "mlxe", "E", settings))
    assert b"canary" not in path.read_bytes()
    assert lines_of(path)[0]["settings"]["task"]["kwargs"]["max_tokens"] == 3


def test_the_file_is_private_whatever_the_umask(path):
    old = os.umask(0)
    try:
        Journal(path, "r").close()
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_planted_in_its_place_is_not_followed(tmp_path, path):
    (tmp_path / "target").write_text("untouched")
    path.symlink_to("target")
    with pytest.raises(OSError, match="symbolic"):
        Journal(path, "r")
    assert (tmp_path / "target").read_text() == "untouched"


def test_a_fifo_in_its_place_is_refused_at_once_whether_or_not_somebody_reads_it(path):
    os.mkfifo(path)
    with pytest.raises(OSError, match="No such device"):  # that reads it
        Journal(path, "x")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="it is a FIFO, expected a regular file"):
            Journal(path, "x")
    finally:
        os.close(reader)


def test_lines_are_numbered_and_their_clock_never_goes_back(path):
    with Journal(path, "r", first_seq=5) as journal:
        for version in range(20):
            journal.emit(Weights(version, 0, 0, 0))
    lines = lines_of(path)
    assert [line["seq"] for line in lines] == list(range(5, 25))
    clocks = [line["mono_ns"] for line in lines]
    assert clocks == sorted(clocks)


def test_every_line_is_one_write(path, monkeypatch):
    writes = []
    journal = Journal(path, "r")
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or write(fd, data))
    journal.emit(Weights(1, 2, 3, 4))
    journal.emit(phase(losses={str(number): 0.5 for number in range(5000)}))
    journal.close()
    assert [data.count(b"\n") for data in writes] == [1, 1]
    assert all(data.endswith(b"\n") for data in writes)


def test_subscribers_get_the_lines_until_they_leave_or_fail(path):
    heard, broken = [], []

    def fail(line):
        broken.append(line)
        raise ValueError

    with Journal(path, "r") as journal:
        leave = journal.subscribe(heard.append)
        journal.subscribe(fail)
        journal.emit(Weights(1, 2, 3, 4))
        journal.emit(Weights(2, 2, 3, 4))
        leave()
        leave()
        journal.emit(Weights(3, 2, 3, 4))
    assert heard == lines_of(path)[:2]
    assert len(broken) == 1


def test_a_full_disk_costs_lines_and_says_how_many(path, monkeypatch):
    # A limit on the size of files stands for the disk; the signal it would bring is ignored, as Python itself does.
    told = []
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(journal_module, "RETRY_S", 0.0)
    with Journal(path, "r") as journal:
        journal.subscribe(told.append)
        journal.emit(Weights(1, 0, 0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limits[1]))  # room for half a line
        try:
            for version in range(2, 7):
                journal.emit(Weights(version, 0, 0, 0))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, ignored)
        assert journal.dropped == 5
        journal.emit(Weights(7, 0, 0, 0))
    first, gap, last = lines_of(path)
    assert (first["version"], last["version"]) == (1, 7)
    assert (gap["event"], gap["dropped"]) == ("log_gap", 5)
    assert [line["event"] for line in told].count("warning") == 1
    assert [line["version"] for line in told if line["event"] == "weights"] == list(range(1, 8))


def test_a_closed_journal_counts_what_it_cannot_write(path):
    journal = Journal(path, "r")
    journal.close()
    journal.close()
    journal.emit(Weights(1, 0, 0, 0))
    assert journal.dropped == 1


def test_a_log_that_was_moved_or_deleted_is_begun_again(tmp_path, path, monkeypatch):
    monkeypatch.setattr(journal_module, "ROTATION_CHECK_S", 0.0)
    with Journal(path, "r") as journal:
        journal.emit(Weights(1, 0, 0, 0))
        path.rename(tmp_path / "log.1")
        journal.emit(Weights(2, 0, 0, 0))
        path.unlink()
        journal.emit(Weights(3, 0, 0, 0))
        os.truncate(path, 0)  # copytruncate
        journal.emit(Weights(4, 0, 0, 0))
    assert [line["version"] for line in lines_of(tmp_path / "log.1")] == [1]
    assert [line["version"] for line in lines_of(path)] == [4]


def test_a_log_that_becomes_too_long_is_begun_again_and_the_part_before_is_kept(path, monkeypatch):
    monkeypatch.setattr(journal_module, "ROTATION_CHECK_S", 0.0)
    most, told = 20_000, []
    with Journal(path, "r", most_bytes=most) as journal:
        journal.subscribe(told.append)
        for version in range(400):
            journal.emit(Weights(version, 0, 0, 0))
            earlier = path.with_name("log.jsonl.1")
            assert path.stat().st_size + (earlier.stat().st_size if earlier.exists() else 0) <= most + 1000
        assert journal.dropped == 0
    assert [line["seq"] for line in told] == list(range(len(told)))
    both = lines_of(earlier) + lines_of(path)
    assert both == told[-len(both) :]
    assert list(read_log(path)) == both
    assert stat.S_IMODE(earlier.stat().st_mode) == stat.S_IMODE(path.stat().st_mode) == 0o600
    said = [line["message"] for line in told if line["event"] == "warning"]
    assert len(said) > 3
    assert all("oldest lines were dropped, because [logs] max_mb" in one for one in said)
    assert any(line["event"] == "warning" for line in both), "who reads the log later is told too"


def test_what_is_said_of_a_log_that_is_begun_again_stands_in_its_order_among_lines_that_waited(path, monkeypatch):
    monkeypatch.setattr(journal_module, "ROTATION_CHECK_S", 0.0)
    with Journal(path, "r", most_bytes=4000) as journal:
        journal.hold_routine([].append)
        for version in range(40):
            for _ in range(3):
                journal.emit_routine(partial(Weights, version=version, env_steps=0, episodes=0, updates=0, norm=0))
            journal.flush()
    lines = lines_of(path.with_name("log.jsonl.1")) + lines_of(path)
    assert any(line["event"] == "warning" for line in lines)
    assert [line["seq"] for line in lines] == list(range(lines[0]["seq"], lines[0]["seq"] + len(lines)))
    assert [line["mono_ns"] for line in lines] == sorted(line["mono_ns"] for line in lines)
    versions = [line["version"] for line in lines if line["event"] == "weights"]
    assert versions == sorted(versions)
    assert versions[-3:] == [39] * 3


def test_a_log_that_cannot_be_begun_again_goes_on(path, monkeypatch):
    monkeypatch.setattr(journal_module, "ROTATION_CHECK_S", 0.0)
    path.with_name("log.jsonl.1").mkdir()
    with Journal(path, "r", most_bytes=2000) as journal:
        for version in range(50):
            journal.emit(Weights(version, 0, 0, 0))
    lines = lines_of(path)
    assert [line["version"] for line in lines if line["event"] == "weights"] == list(range(50))
    assert [line["message"] for line in lines if line["event"] == "warning"] == [
        "log.jsonl: expected to begin a new file, log.jsonl.1 cannot be made: Is a directory"
    ]


def test_a_log_whose_folder_went_away_goes_on_in_the_old_file(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "ROTATION_CHECK_S", 0.0)
    (tmp_path / "run").mkdir()
    with Journal(tmp_path / "run" / "log.jsonl", "r") as journal:
        (tmp_path / "run").rename(tmp_path / "moved")
        journal.emit(CheckpointRejected(1, "x"))
        assert journal.dropped == 0
    assert len(lines_of(tmp_path / "moved" / "log.jsonl")) == 1


def test_lines_of_two_threads_do_not_mix(path):
    with Journal(path, "r") as journal:
        threads = [
            threading.Thread(target=lambda: [journal.emit(Warning("x" * 500)) for _ in range(200)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [line["seq"] for line in lines_of(path)] == list(range(800))


SAME = {"version": 3, "env_steps": 900}
ENDED = {
    "env": [0, 2, 1],
    "episode": [7, 8, 9],
    "episode_return": [1.5, -1e-300, 0.1],
    "length": [1, 2, 3],
    "terminated": [True, False, True],
    "episodes": range(5, 8),
    "seed": [1, 2**62, 3],
    "average": [1.5, 1.485, 1.47115],
    "discounted_return": [1.5, 1.25, 0.5],
}


def without_clocks(lines):
    return [{name: value for name, value in line.items() if name not in ("ts", "mono_ns")} for line in lines]


@pytest.mark.parametrize(
    "odd", [{}, {"episode_return": [1.0, NAN, 2.0]}, {"seed": [None, 1, 2]}, {"discounted_return": [None, 1.0, 2.0]}]
)
def test_many_lines_at_once_are_the_same_lines(tmp_path, monkeypatch, odd):
    monkeypatch.setattr(journal_module, "LINES_AT_ONCE", 2)
    heard = {"one by one": [], "together": []}
    for name, lines in heard.items():
        with Journal(tmp_path / name, "50%s") as journal:
            journal.subscribe(lines.append)
            if name == "together":
                journal.emit_all(EpisodeEnd, SAME, {**ENDED, **odd}, "executor", 1)
            else:
                for row in range(3):
                    known = {**{key: column[row] for key, column in {**ENDED, **odd}.items()}, **SAME}
                    journal.emit(EpisodeEnd(**known), "executor", 1)
            journal.emit(phase())
    told = {name: (tmp_path / name).read_text().splitlines() for name in heard}
    assert [len(line) for line in told["together"]] == [len(line) for line in told["one by one"]]
    read = {name: without_clocks(lines_of(tmp_path / name)) for name in heard}
    assert read["together"] == read["one by one"] == without_clocks(heard["together"])
    assert [list(line) for line in heard["together"]] == [list(line) for line in heard["one by one"]]


def test_a_subscriber_that_takes_columns_gets_many_lines_at_once_and_others_get_each(path):
    rows, many, singles = [], [], []
    with Journal(path, "r") as journal:
        journal.subscribe(rows.append)
        journal.subscribe(singles.append, columns=lambda same, columns: many.append((same, columns)))
        journal.emit_all(EpisodeEnd, SAME, ENDED, "executor", 1)
        journal.emit(phase())
    assert [line["event"] for line in singles] == ["phase"]
    ((same, columns),) = many
    assert [{**same, **dict(zip(columns, row, strict=True))} for row in zip(*columns.values(), strict=True)] == rows[:3]
    assert lines_of(path) == rows


def test_one_that_raises_over_columns_is_not_called_again(path):
    heard = []

    def fails(same, columns):
        heard.append(columns)
        raise ValueError("no")

    with Journal(path, "r") as journal:
        journal.subscribe(heard.append, columns=fails)
        journal.emit_all(EpisodeEnd, SAME, ENDED, "executor", 1)
        journal.emit_all(EpisodeEnd, SAME, ENDED, "executor", 1)
    assert len(heard) == 1
    assert len(lines_of(path)) == 6


def test_a_subscriber_may_ask_for_some_events_only(path):
    phases, all_lines = [], []
    with Journal(path, "r") as journal:
        leave = journal.subscribe(phases.append, ["phase"])
        journal.emit_all(EpisodeEnd, SAME, ENDED, "executor", 0)  # nobody asks for these
        journal.subscribe(all_lines.append)
        journal.emit_all(EpisodeEnd, SAME, ENDED, "executor", 0)
        journal.emit(phase())
        leave()
        journal.emit(phase())
    assert [line["event"] for line in phases] == ["phase"]
    assert all_lines == lines_of(path)[3:]
    assert [line["event"] for line in all_lines] == [*3 * ["episode_end"], "phase", "phase"]


def test_many_lines_on_a_full_disk_are_counted_one_by_one(path, monkeypatch):
    monkeypatch.setattr(journal_module, "RETRY_S", 0.0)
    real, room = os.write, [0]

    def write(fd, data):
        if room[0] < 1:
            raise OSError(28, "full")
        return real(fd, data)

    with Journal(path, "r") as journal:
        monkeypatch.setattr(os, "write", write)
        journal.emit_all(EpisodeEnd, SAME, ENDED, "executor", 0)
        room[0] = 1
        journal.emit_all(EpisodeEnd, SAME, ENDED, "executor", 0)
        journal.emit_all(EpisodeEnd, SAME, ENDED, "executor", 0)
    lines = lines_of(path)
    assert [line["event"] for line in lines] == ["log_gap", *6 * ["episode_end"]]
    assert (lines[0]["dropped"], journal.dropped) == (3, 3)
    assert [line["seq"] for line in lines] == sorted({line["seq"] for line in lines})


def weights(version):
    return partial(Weights, version=version, updates=2, env_steps=3, episodes=4, norm=None)


def held_journal(path):
    """A journal that holds routine lines, and what it was asked to call later."""
    journal, later = Journal(path, "r"), []
    journal.hold_routine(later.append)
    return journal, later


def test_routine_lines_wait_and_are_written_together_with_the_time_at_which_they_happened(path, monkeypatch):
    journal, later = held_journal(path)
    writes, write = [], os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or write(fd, data))
    began = time.monotonic_ns()
    journal.emit_routine(weights(1), "learner")
    journal.emit_all(EpisodeEnd, SAME, ENDED, "executor", 1)
    journal.emit_routine(partial(PhaseEvent, "learn", start_ns=1, seconds=0.5, version=3), "learner")
    happened = time.monotonic_ns()
    assert writes == []
    (flush,) = later
    flush()
    flush()
    assert len(writes) == 1
    lines = lines_of(path)
    assert [line["event"] for line in lines] == ["weights", *3 * ["episode_end"], "phase"]
    assert [line["seq"] for line in lines] == list(range(5))
    assert all(began <= line["mono_ns"] <= happened for line in lines)
    assert [line["mono_ns"] for line in lines] == sorted(line["mono_ns"] for line in lines)
    journal.emit_routine(weights(2))
    assert len(later) == 2
    journal.close()
    assert lines_of(path)[-1]["version"] == 2


GENERATED = {"phase": "generate", "start_ns": 1, "seconds": 0.1, "version": 3, "rows": 5, "waits": {"lane": 1e-300}}


@pytest.mark.parametrize(
    "values",
    [
        GENERATED,
        {**GENERATED, "phase": "50%s \N{SNOWMAN}", "waits": {"100%d": -0.0, '"': 1.5}},
        {**GENERATED, "waits": {"lane": NAN}},
        {**GENERATED, "waits": {"lane": 1}},
        {**GENERATED, "waits": {"api_key": 1.0, "password": 2.0}},
        {**GENERATED, "waits": {3: 1.0}},
        {**GENERATED, "waits": {}},
        {**GENERATED, "seconds": math.inf, "start_ns": 2**80},
        {**GENERATED, "seconds": 1e19, "start_ns": -(2**63)},
        {**GENERATED, "seconds": True, "rows": np.int64(4)},
        {**GENERATED, "lag_mean": None, "lag_max": 2},
        {**GENERATED, "phase": "x" * 20_000},
        {"version": 3, "seconds": 0.25, "start_ns": 2, "phase": "publish"},
    ],
)
def test_a_line_that_waited_is_the_line_that_is_written_at_once(tmp_path, values):
    texts = {}
    for name in ("waited", "at once"):
        with Journal(tmp_path / name, "50%s") as journal:
            if name == "waited":
                journal.hold_routine([].append)
            for repeated in range(2):
                journal.emit_routine(partial(PhaseEvent, **{**values, "version": repeated}), "executor", 1)
        lines = (tmp_path / name).read_text().splitlines()
        texts[name] = [re.sub(r'"ts": "[^"]*", "mono_ns": \d+', "", line) for line in lines]
        assert all(set(json.loads(line)) == {*COMMON, *(f.name for f in fields(PhaseEvent))} for line in lines)
    assert texts["waited"] == texts["at once"]


def test_processors_of_structlogs_change_lines_add_to_them_and_drop_them(path):
    def dropping(_logger, _method, line):
        if line["event"] == "episode_end" and line["env"] == 2:
            raise structlog.DropEvent
        return line

    def adding(_logger, method, line):
        return {**line, "host": np.int64(7), "api_key": "canary", "said": method}

    heard = []
    journal, _ = held_journal(path)
    journal.emit_routine(weights(1), "learner")
    journal.process(dropping)
    journal.process(adding)
    journal.subscribe(heard.append, ["warning", "weights"])
    journal.emit_routine(weights(2), "learner")
    journal.emit_all(EpisodeEnd, SAME, ENDED, "executor", 1)
    journal.emit(Warning("odd"))
    journal.close()
    lines = lines_of(path)
    assert [line["event"] for line in lines] == ["weights", "weights", "episode_end", "episode_end", "warning"]
    assert [line["env"] for line in lines if line["event"] == "episode_end"] == [0, 1]
    assert [line["seq"] for line in lines] == list(range(5))
    assert "host" not in lines[0]
    assert all((line["host"], line["said"]) == (7, "msg") for line in lines[1:])
    assert b"canary" not in path.read_bytes()
    assert heard == [lines[1], lines[4]]
    assert journal.dropped == 0


def test_whatever_else_happens_is_written_at_once_after_what_waited(path):
    journal, _ = held_journal(path)
    journal.emit_routine(weights(1))
    journal.emit(Warning("odd"))
    assert [line["event"] for line in lines_of(path)] == ["weights", "warning"]
    journal.emit_routine(weights(2))
    assert journal.next_seq == 3  # a checkpoint is made before the line of this number
    assert len(lines_of(path)) == 3
    journal.close()


def test_lines_that_a_subscriber_asks_for_do_not_wait(path):
    journal, _ = held_journal(path)
    versions, everything = [], []
    journal.emit_routine(weights(1))
    leave = journal.subscribe(versions.append, ["weights"])
    journal.emit_routine(weights(2))
    assert [line["version"] for line in versions] == [2]  # the first one happened before
    journal.emit_all(EpisodeEnd, SAME, ENDED, "executor", 1)
    leave()
    leave = journal.subscribe(everything.append)
    assert len(lines_of(path)) == 5
    journal.emit_all(EpisodeEnd, SAME, ENDED, "executor", 1)
    assert everything == lines_of(path)[5:]
    assert len(everything) == 3
    leave()
    journal.emit_routine(weights(3))
    assert len(lines_of(path)) == 8
    journal.close()


def test_lines_of_another_thread_do_not_wait(path):
    journal, later = held_journal(path)
    journal.emit_routine(weights(1))
    thread = threading.Thread(target=journal.emit_routine, args=[weights(2)])
    thread.start()
    thread.join()
    assert [line["version"] for line in lines_of(path)] == [1, 2]
    assert len(later) == 1
    journal.close()


def test_lines_that_waited_for_a_disk_that_is_full_are_counted(path, monkeypatch):
    monkeypatch.setattr(journal_module, "RETRY_S", 0.0)
    journal, _ = held_journal(path)
    real, room = os.write, [0]

    def write(fd, data):
        if room[0] < 1:
            raise OSError(28, "full")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    for _ in range(2):  # together at first, then one by one
        journal.emit_routine(weights(1))
        journal.emit_all(EpisodeEnd, SAME, ENDED, "executor", 1)
        journal.flush()
    assert journal.dropped == 8
    room[0] = 1
    journal.emit_routine(weights(2))
    journal.emit_routine(weights(3))
    journal.close()
    lines = lines_of(path)
    assert [line["event"] for line in lines] == ["log_gap", "weights", "weights"]
    assert lines[0]["dropped"] == 8
    assert [line["seq"] for line in lines] == sorted({line["seq"] for line in lines})


def test_a_line_that_cannot_be_made_takes_no_other_along(path):
    journal, _ = held_journal(path)
    journal.emit_routine(weights(1))
    journal.emit_routine(partial(Weights, 2))
    with pytest.raises(TypeError, match="missing"):
        journal.flush()
    journal.emit(Weights(3, 2, 3, 4))
    journal.close()
    assert [line["version"] for line in lines_of(path)] == [1, 3]


def test_a_descriptor_stays_its_owners(path):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with Journal(descriptor, "r") as journal:
        journal.emit(Weights(1, 0, 0, 0))
    os.write(descriptor, b"{}\n")
    os.close(descriptor)
    assert len(lines_of(path)) == 2
