"""Logs are read whole and followed live, whatever happens to the file."""

import asyncio
import fcntl
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxe_async.errors import NotFound, ResourceError
from mlxe_async.logs import journal as journal_module
from mlxe_async.logs import reader
from mlxe_async.logs.events import RunEnd, Weights
from mlxe_async.logs.journal import Journal
from mlxe_async.logs.reader import follow, read_log
from mlxe_async.storage.run_folder import RunFolder

END = RunEnd("asked", False, 0, 0, 0, 0.0, 0.0, None, 0)
LIMIT_S = 20


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


def versions(events):
    return [event.get("version") for event in events]


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


async def all_of(path):
    return [event async for event in follow(path)]


async def listen(path, heard):
    """Put every event into a queue, so that a story can wait for the next one."""
    async for event in follow(path):
        heard.put_nowait(event.get("version", event.get("event")))


def test_a_torn_last_line_is_left_out_until_it_is_whole(path):
    path.write_bytes(b'{"version": 1}\n{"version": 2')
    assert versions(read_log(path)) == [1]
    with path.open("ab") as file:
        file.write(b"}\n")
    assert versions(read_log(path)) == [1, 2]


def test_a_fifo_in_the_place_of_a_log_is_refused_and_nobody_waits_for_it(path):
    os.mkfifo(path)
    with pytest.raises(ResourceError, match=r"log\.jsonl cannot be read: it is a FIFO, expected a regular file"):
        list(read_log(path))
    with pytest.raises(ResourceError, match="it is a FIFO"):
        asyncio.run(all_of(path))


@pytest.mark.parametrize(
    "again", [b'{"version": 7}\n', b'{"version": 7, "and": "so much more that it is longer than before"}\n']
)
def test_a_torn_line_that_is_cut_off_under_a_reader_is_forgotten(path, again):
    path.write_bytes(b'{"version": 1}\n{"version": 2, "reaso')
    with reader.Tail(path) as tail:
        assert versions(tail.read()) == [1]
        assert tail.read() == []
        os.truncate(path, len(b'{"version": 1}\n'))
        if len(again) < 20:
            assert tail.read() == []
        with path.open("ab") as file:
            file.write(again)
        assert versions(tail.read()) == [7]
        assert tail.read() == []


def test_lines_that_are_no_objects_are_left_out(path):
    path.write_bytes(b'{"version": 1}\n\n{"versi\nnull\n[1]\n\xff\xfe\n' + b"[" * 100_000 + b'\n{"version": 2}\n')
    assert versions(read_log(path)) == [1, 2]


HALVES = [
    '{"a": [1',
    "2]}",
    '{"a": "x',
    'y"}',
    "{",
    "}",
    "[",
    "]",
    '{"a": 1},{"b": 2}',
    '{"a": 1},0,{"b": 2}',
    '"',
    ",",
    "",
]
WHOLE = [
    '{"version": 1}',
    ' {"version": 2} ',
    "[1]",
    "3",
    "null",
    '"x"',
    '{"a": "\\ud800"}',
    '{"a": NaN}',
    "\x1e",
    "{}",
]


@given(st.lists(st.sampled_from(HALVES + WHOLE), max_size=12))
def test_lines_that_are_decoded_together_tell_the_same_as_each_by_itself(texts):
    lines = [text.encode() for text in texts]
    one_by_one = [event for line in lines if (event := reader.event_of(line)) is not None]
    assert repr(reader.events_of(lines)) == repr(one_by_one)


def test_a_line_that_is_spoilt_costs_no_other_line(path, monkeypatch):
    monkeypatch.setattr(reader, "DECODED_AT_ONCE", 4)
    lines = [json.dumps({"version": number}) for number in range(20)]
    lines[9] = lines[9][:-1]
    path.write_text("".join(f"{line}\n" for line in lines))
    assert versions(read_log(path)) == [number for number in range(20) if number != 9]


def test_what_a_resumption_made_void_is_left_out_unless_it_is_asked_for(path):
    lines = [{"event": "weights", "version": n, "seq": n} for n in range(10)]
    # Lines 2 to 4 by the first resumption; the second one goes on from before that.
    lines[5] |= {"event": "run_resume", "void_from": 2, "void_to": 4}
    lines[8] |= {"event": "run_resume", "void_from": 1, "void_to": 6}
    # One by an older program, or with nothing to undo.
    lines[9] |= {"event": "run_resume", "void_from": None}
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert versions(read_log(path)) == [0, 7, 8, 9]
    assert versions(read_log(path, void=True)) == list(range(10))


def test_a_line_without_end_does_not_fill_the_memory(path, monkeypatch):
    monkeypatch.setattr(reader, "LONGEST_LINE", 1000)
    monkeypatch.setattr(reader, "READ_BYTES", 100)
    path.write_bytes(b"x" * 5000 + b'\n{"version": 2}\n')
    assert versions(read_log(path)) == [2]


def test_a_run_is_found_by_folder_name_latest_or_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RunFolder.create("runs", "x") as folder, Journal(folder.log_path, folder.name) as journal:
        journal.emit(Weights(1, 0, 0, 0))
        for run in (folder.path, str(folder.path), folder.name, "latest", folder.log_path):
            assert versions(read_log(run)) == [1]
    with pytest.raises(NotFound, match='no run "nothing"'):
        list(read_log("nothing"))


def test_follow_tells_what_was_and_what_comes_and_ends_with_the_run(path):
    async def story():
        heard = asyncio.Queue()
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            group.create_task(listen(path, heard))
            assert await heard.get() == 1
            journal.emit(Weights(2, 0, 0, 0))
            assert await heard.get() == 2
            journal.emit(END)
            assert await heard.get() == "run_end"

    with Journal(path, "r") as journal:
        journal.emit(Weights(1, 0, 0, 0))
        asyncio.run(story())


def test_follow_survives_a_torn_line_a_cut_and_a_rotation(path):
    async def story():
        heard = asyncio.Queue()
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            group.create_task(listen(path, heard))  # the file is not there yet
            await asyncio.sleep(0)
            path.write_bytes(b'{"version": 1, "padding": "xxxxxxxxxxxxxxxxx"}\n{"version"')
            assert await heard.get() == 1
            with path.open("ab") as file:
                file.write(b": 2}\n")
            assert await heard.get() == 2
            path.write_bytes(b'{"version": 3}\n')  # cut to nothing and written anew
            assert await heard.get() == 3
            path.rename(path.with_suffix(".1"))
            path.write_bytes(b'{"version": 4}\n{"event": "run_end"}\n')
            assert [await heard.get(), await heard.get()] == [4, "run_end"]

    asyncio.run(story())


@pytest.mark.slow
def test_no_line_is_missed_while_the_log_is_begun_again_and_again(path, monkeypatch):
    monkeypatch.setattr(journal_module, "ROTATION_CHECK_S", 0.0)

    async def story():
        heard = asyncio.Queue()
        async with asyncio.timeout(LIMIT_S):
            task = asyncio.create_task(listen(path, heard))
            with Journal(path, "r", most_bytes=4000) as log:
                for version in range(200):
                    log.emit(Weights(version, 0, 0, 0))
                    told = await heard.get()
                    assert (await heard.get() if told == "warning" else told) == version
                log.emit(END)
            await task

    before = descriptors()
    asyncio.run(story())
    assert descriptors() == before


def test_what_was_moved_while_the_reader_began_is_read_once(path):
    with Journal(path, "r") as log:
        log.emit(Weights(1, 0, 0, 0))
    earlier = path.with_name("log.jsonl.1")
    os.link(path, earlier)  # as if it was moved between the opening of the one and of the other
    assert versions(read_log(path)) == [1]
    earlier.unlink()
    earlier.write_bytes(b'{"version": 0}\n')
    assert versions(read_log(path)) == [0, 1]


def test_follow_ends_when_the_run_died_without_a_word(tmp_path):
    folder = RunFolder.create(tmp_path, "x")
    with Journal(folder.log_path, "r") as journal:
        journal.emit(Weights(1, 0, 0, 0))
    folder.close()  # as the kernel does for a killed process

    async def story():
        async with asyncio.timeout(LIMIT_S):
            return await all_of(folder.path)

    assert versions(asyncio.run(story())) == [1]


def test_follow_goes_on_as_long_as_the_run_lives(tmp_path):
    async def story():
        heard = asyncio.Queue()
        async with asyncio.timeout(LIMIT_S):
            task = asyncio.create_task(listen(folder.path, heard))
            assert await heard.get() == 1
            done, _ = await asyncio.wait([task], timeout=10 * reader.POLL_S)
            assert not done
            folder.close()
            await task

    with RunFolder.create(tmp_path, "x") as folder, Journal(folder.log_path, "r") as journal:
        journal.emit(Weights(1, 0, 0, 0))
        asyncio.run(story())


def test_readers_leave_no_descriptor_behind(path):
    path.write_bytes(b'{"event": "run_end"}\n')
    before = descriptors()
    asyncio.run(all_of(path))
    list(read_log(path))
    next(read_log(path))
    assert descriptors() == before


def test_looking_whether_a_run_lives_does_not_take_its_lock(tmp_path):
    folder = RunFolder.create(tmp_path, "x")
    folder.close()
    with (folder.path / "lock").open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        fcntl.flock(looking, fcntl.LOCK_UN)
    RunFolder.reopen(folder.path).close()


@pytest.mark.parametrize("seq", ["3", None, [1], 3.0, True])
def test_a_line_whose_number_is_none_is_told_as_it_is_and_nothing_is_raised(tmp_path, seq):
    odd, void = {"event": "weights", "seq": seq}, {"event": "weights", "seq": 3}
    resumed = {"event": "run_resume", "seq": 5, "void_from": 1, "void_to": 4}
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (odd, void, resumed)))
    assert list(read_log(tmp_path / "log.jsonl")) == [odd, resumed]
