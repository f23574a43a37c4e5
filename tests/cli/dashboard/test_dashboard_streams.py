"""Streams: all at first, then what changes; a reader that reads nothing is cut off; the end is told."""

import asyncio
import json
import resource
import socket
import time

import pytest
from dashboard_tools import LIMIT_S, ask, deaf, eventually, served, streamed, within
from report_runs import Log, end, plain, second, start, story, write

from mlxe_async.cli.dashboard import server, watching
from mlxe_async.cli.dashboard.panels import ON_DEMAND, PANELS
from mlxe_async.logs import events
from mlxe_async.storage.run_folder import RunFolder

NAME = "20261127T135002Z-oa-0"


class Growing:
    """A run's folder whose log grows as it is told."""

    def __init__(self, base, seconds=3):
        self.log = Log(NAME)
        start(self.log)
        for number in range(1, seconds + 1):
            second(self.log, float(number), number)
        self.path = write(base, self.log)
        self.written = len(self.log.lines)
        self.number = seconds

    def grow(self, seconds=1):
        for _ in range(seconds):
            self.number += 1
            second(self.log, float(self.number), self.number)
        self.flush()

    def flush(self):
        with (self.path / "log.jsonl").open("a") as file:
            file.writelines(f"{json.dumps(plain(line))}\n" for line in self.log.lines[self.written :])
        self.written = len(self.log.lines)


@pytest.fixture
def quick(monkeypatch):
    """Pages are made twenty times a second, whatever that costs."""
    monkeypatch.setattr(watching, "LEAST_INTERVAL_S", 0.05)
    monkeypatch.setattr(watching, "MOST_INTERVAL_S", 0.05)
    monkeypatch.setattr(watching, "POLL_S", 0.01)


def read(parts):
    """Whether the log was read to its end."""
    return "numbers" in parts and "being read" not in parts["top"]


def test_a_reader_gets_all_parts_at_first_and_then_what_has_changed(tmp_path, quick):
    growing = Growing(tmp_path)

    async def main():
        async with served(tmp_path) as (_, port), streamed(port, f"/run/{NAME}/stream") as stream:
            await stream.until(read)
            assert set(stream.parts) == set(PANELS) - ON_DEMAND
            assert "300" in stream.parts["numbers"]
            many = len(stream.sent)
            growing.grow()
            await stream.until(lambda parts: "400" in parts["numbers"])
            changed = set().union(*stream.sent[many:])
            assert {"numbers", "returns", "episodes"} <= changed
            assert not {"faults", "times"} & changed

    within(main)


def test_what_is_folded_away_is_sent_to_those_who_ask_for_it(tmp_path, quick):
    growing = Growing(tmp_path)

    async def main():
        async with served(tmp_path) as (_, port):
            async with streamed(port, f"/run/{NAME}/stream?more=losses,settings,nonsense,top") as stream:
                await stream.until(lambda parts: "settings" in parts)
                assert set(stream.parts) == {*set(PANELS) - ON_DEMAND, "losses", "settings"}
                assert "CartPole-v1" in stream.parts["settings"]
            async with streamed(port, f"/run/{NAME}/stream") as stream:
                await stream.until(read)
                growing.grow()
                await stream.until(lambda parts: "400" in parts["numbers"])
                assert set(stream.parts) == set(PANELS) - ON_DEMAND

    within(main)


def test_the_list_follows_runs_that_come(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "LIST_EVERY_S", 0.05)
    write(tmp_path, story("one"))

    async def main():
        async with served(tmp_path) as (_, port), streamed(port, "/stream") as stream:
            await stream.until(lambda parts: "one-0" in parts.get("runs", ""))
            write(tmp_path, story("two", ended=""))
            await stream.until(lambda parts: "two-0" in parts["runs"])
            assert 'class="state died"' in stream.parts["runs"]

    within(main)


def test_a_run_that_lives_and_then_dies_is_told_as_such(tmp_path, quick):
    growing = Growing(tmp_path)

    async def main():
        async with served(tmp_path) as (_, port):
            with RunFolder.reopen(growing.path):
                async with streamed(port, f"/run/{NAME}/stream") as stream:
                    await stream.until(lambda parts: ">running<" in parts.get("top", ""))
                    assert (await ask(port, "/runs.json")).json()[0]["state"] == "running"
            async with streamed(port, f"/run/{NAME}/stream") as stream:
                await stream.until(lambda parts: ">died<" in parts.get("top", ""))

    within(main)


@pytest.mark.long
def test_a_resumption_that_makes_lines_void_has_the_page_begin_anew(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(watching, "ANEW_S", 0.0)
    growing = Growing(tmp_path, seconds=5)

    async def main():
        async with served(tmp_path) as (_, port), streamed(port, f"/run/{NAME}/stream") as stream:
            await stream.until(lambda parts: "500" in parts.get("numbers", ""))
            numbers = [line["seq"] for line in growing.log.lines if (line.get("env_steps") or 0) > 200]
            growing.log.add(9.0, events.RunStart(0, "oa", "mlxe", "CartPole-v1", {}, resumed=True))
            void = {"void_from": min(numbers), "void_to": max(numbers), "gap_ns": 0}
            growing.log.add(9.1, events.RunResume(1, 3, 200, 2, 16, 2.9, **void))
            growing.flush()
            await stream.until(lambda parts: "<dd>200</dd>" in parts["numbers"])

    within(main)


def test_the_last_state_and_the_end_are_told_to_each_reader(tmp_path, quick):
    growing = Growing(tmp_path)

    async def main():
        serving = served(tmp_path)
        _, port = await serving.__aenter__()
        async with streamed(port, f"/run/{NAME}/stream") as stream:
            await stream.until(read)
            end(growing.log, 9.0, "seconds", 3)
            growing.flush()
            await serving.__aexit__(None, None, None)
            while not stream.is_over:
                await stream.next()
            assert ">finished<" in stream.parts["top"]

    within(main)


def test_a_reader_that_takes_nothing_does_not_hold_up_the_end(tmp_path):
    Growing(tmp_path)

    async def main():
        serving = served(tmp_path)
        _, port = await serving.__aenter__()
        silent = [deaf(port, f"/run/{NAME}/stream?more=losses,settings") for _ in range(20)]
        began = time.monotonic()
        await serving.__aexit__(None, None, None)
        for one in silent:
            one.close()
        return time.monotonic() - began

    assert within(main) < 15


@pytest.mark.long
def test_a_hundred_readers_that_never_read_are_cut_off_and_cost_little(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(server, "SLOW_S", 1.0)
    growing = Growing(tmp_path, seconds=50)

    async def main():
        async with served(tmp_path) as (serving, port):
            async with streamed(port, f"/run/{NAME}/stream") as stream:
                await stream.until(read)
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                silent = [await asyncio.to_thread(deaf, port, f"/run/{NAME}/stream?more=losses") for _ in range(100)]
                await eventually(lambda: serving.streams == 101)
                deadline = time.monotonic() + LIMIT_S
                while serving.dropped < 100:
                    assert time.monotonic() < deadline, f"{serving.dropped} of 100 were cut off"
                    growing.grow()
                    # The one who reads is served all the while.
                    await stream.until(lambda parts: f"<dd>{100 * growing.number:,}</dd>" in parts["numbers"])
                for one in silent:
                    one.close()
            await eventually(lambda: serving.streams == 0)
            assert serving.dropped == 100
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    assert within(main) < 64 * 1024  # KiB


def test_more_streams_than_there_may_be_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "MOST_STREAMS", 2)
    Growing(tmp_path)

    async def main():
        async with served(tmp_path) as (serving, port):
            async with streamed(port, "/stream"), streamed(port, f"/run/{NAME}/stream"):
                answer = await ask(port, "/stream")
                assert (answer.status, answer.body) == (503, "too many pages are open; close one\n")
            await eventually(lambda: serving.streams == 0)

    within(main)


def test_more_runs_than_may_be_looked_at_are_refused_and_idle_ones_give_way(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "MOST_WATCHED", 1)
    one, other = story("one"), story("two")
    write(tmp_path, one)
    write(tmp_path, other)

    async def main():
        async with served(tmp_path) as (serving, port):
            async with streamed(port, f"/run/{one.name}/stream"):
                assert (await ask(port, f"/run/{other.name}/state.json")).status == 503
                assert (await ask(port, f"/run/{one.name}/state.json")).status == 200
            await eventually(lambda: serving.streams == 0)
            assert (await ask(port, f"/run/{other.name}/state.json")).status == 200

    within(main)


def test_a_connection_that_asks_for_nothing_and_one_too_many_are_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "FIRST_REQUEST_S", 0.2)
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 3)

    async def main():
        async with served(tmp_path) as (_, port):
            made = [socket.create_connection(("127.0.0.1", port), LIMIT_S) for _ in range(4)]
            for one in made:
                with one:
                    assert await asyncio.to_thread(_is_closed, one)
            assert (await ask(port)).status == 200

    within(main)


def _is_closed(one):
    try:
        return one.recv(1) == b""
    except ConnectionError:
        return True
