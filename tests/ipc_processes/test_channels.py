"""Both ends of a control channel, without any process."""

import asyncio
import os
import resource
import socket

import leaks
import pytest
from conftest import run_on

from mlxe_async.ipc.messages import loop_channel
from mlxe_async.ipc.messages.channel import ChildChannel, ControlLost
from mlxe_async.ipc.messages.frames import encode
from mlxe_async.ipc.messages.loop_channel import UNSENT_LIMIT, SupervisorChannel


class Ends:
    """A supervisor's channel, what it heard, and the bare socket of its peer."""

    def __init__(self, **options):
        ours, self.peer = socket.socketpair()
        self.heard, self._news = [], asyncio.Event()
        self.ended = asyncio.get_running_loop().create_future()
        self.channel = SupervisorChannel(ours, self._hear, lambda *how: self.ended.set_result(how), **options)

    def _hear(self, message, fds):
        self.heard.append((message, fds))
        self._news.set()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.channel.close()
        self.channel.close()
        self.peer.close()

    async def hears(self, count):
        while len(self.heard) < count:
            self._news.clear()
            await self._news.wait()
        return [message for message, _ in self.heard]


async def received(child):
    """The child's next message, while the loop goes on sending it."""
    while (message := child.receive(0)) is None:  # noqa: ASYNC110 the child's end blocks, it has no event
        await asyncio.sleep(0)
    return message


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    channel = ChildChannel(theirs)
    yield ours, channel
    ours.close()
    channel.close()


def test_a_child_that_waits_in_vain_gets_none(pair):
    assert pair[1].receive(0.0) is None
    assert pair[1].receive(0.01) is None
    assert not pair[1].waiting


def test_a_child_receives_messages_one_by_one(pair):
    ours, channel = pair
    ours.send(encode({"a": 1}) + encode({"b": 2}))
    assert channel.waiting
    assert [channel.receive(1), channel.receive(0), channel.receive(0)] == [{"a": 1}, {"b": 2}, None]


def test_a_child_whose_supervisor_is_gone_is_told_so_by_either_verb(pair):
    ours, channel = pair
    ours.close()
    with pytest.raises(ControlLost):
        channel.receive(1)
    with pytest.raises(ControlLost):
        channel.send({})


def test_a_child_whose_descriptor_was_closed_by_foreign_code_is_told_so(pair):
    _, channel = pair
    os.close(channel.fileno())
    with pytest.raises(ControlLost):
        channel.receive(1)
    with pytest.raises(ControlLost):
        channel.send({})
    channel._sock.detach()


def test_descriptors_travel_with_the_message_that_announces_them(run_both):
    async def main():
        read, write = os.pipe()
        async with Ends(fds=True) as ends:
            child = ChildChannel(ends.peer, fds=True)
            ends.channel.send({"fds": 1}, [write])
            os.close(write)
            message = await received(child)
            (copy,) = child.take_fds(message["fds"])
            assert not os.get_inheritable(copy)
            child.send({"fds": 2}, [copy, copy])
            os.close(copy)
            await ends.hears(1)
            ((_, fds),) = ends.heard
            os.write(fds[0], b"x")
            assert os.read(read, 1) == b"x"
            for fd in (*fds, read):
                os.close(fd)

    run_both(main)


def test_descriptors_nobody_takes_are_closed(run):
    async def main():
        async with Ends(fds=True) as ends:
            child = ChildChannel(ends.peer, fds=True)
            ends.channel.send({"fds": 1}, [0])
            await received(child)
            child.close()
            assert (await ends.ended)[0] == "ended"

    run(main)


def test_descriptors_that_do_not_fit_any_more_break_the_channel_and_none_stays_open(run):
    async def main():
        async with Ends(fds=True) as ends:
            before = leaks.descriptors()
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            socket.send_fds(ends.peer, [encode({"fds": 3})], [0, 0, 0])
            resource.setrlimit(resource.RLIMIT_NOFILE, (_lowest_free() + 1, hard))
            try:
                ends.channel.drain()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert "descriptors were lost" in (await ends.ended)[1]
            assert leaks.descriptors().keys() <= before.keys()

    run(main)


def _lowest_free():
    fd = os.dup(0)
    os.close(fd)
    return fd


def test_messages_larger_than_the_pipe_pass_both_ways(run_both):
    async def main():
        async with Ends() as ends:
            child, big = ChildChannel(ends.peer), {"x": "a" * 200_000}
            for _ in range(20):
                ends.channel.send(big)
                assert await received(child) == big
            big = {"x": "a" * 1_000_000}
            sending = asyncio.get_running_loop().run_in_executor(None, child.send, big)
            assert await ends.hears(1) == [big]
            await sending
            await asyncio.get_running_loop().shutdown_default_executor()

    run_both(main)


def test_a_peer_that_does_not_read_is_unresponsive_after_256_kib(run_both):
    async def main():
        async with Ends() as ends:
            sent = 0
            while not ends.ended.done() and sent < 100:
                ends.channel.send({"x": "a" * 50_000})
                sent += 1
                await asyncio.sleep(0)
            how, sentence = await ends.ended
            assert how == "unresponsive"
            assert "does not read" in sentence
            assert sent * 50_000 < UNSENT_LIMIT + 1_000_000
            ends.channel.send({"after": "that"})

    run_both(main)


@pytest.mark.parametrize("data", [b"Traceback (most recent call last)", b'{"ev', encode({})[:-1] + b"x"])
def test_a_peer_that_sends_anything_but_frames_is_broken(run, data):
    async def main():
        async with Ends() as ends:
            ends.peer.send(data)
            how, sentence = await ends.ended
            assert how == "broken"
            assert data[:2].hex() in sentence

    run(main)


def test_a_frame_left_unfinished_is_broken_but_a_late_rest_is_not(run, monkeypatch):
    monkeypatch.setattr(loop_channel, "FRAME_LIMIT_S", 0.05)

    async def main():
        whole = encode({"a": 1})
        async with Ends() as ends:
            ends.peer.send(whole[:5])
            await asyncio.sleep(0)
            ends.peer.send(whole[5:])
            assert await ends.hears(1) == [{"a": 1}]
            ends.peer.send(whole[:5])
            how, sentence = await ends.ended
            assert how == "broken"
            assert "unfinished" in sentence

    run(main)


def test_a_listener_that_refuses_a_message_breaks_the_channel(run):
    async def main():
        async with Ends(fds=True) as ends:
            ends.peer.send(encode({"fds": 3}))
            assert "announces 3 descriptors, 0 came" in (await ends.ended)[1]
            assert ends.heard == []

    run(main)


def test_what_a_dead_peer_had_sent_is_still_heard(run):
    async def main():
        async with Ends() as ends:
            ends.peer.send(encode({"a": 1}) * 3)
            ends.peer.close()
            ends.channel.drain()
            assert len(ends.heard) == 3
            assert ends.channel.closed

    run(main)


def test_a_closed_channel_takes_messages_and_calls_nobody(run):
    async def main():
        async with Ends() as ends:
            ends.channel.close()
            ends.channel.send({"a": 1})
            ends.channel.drain()
            await asyncio.sleep(0)
            assert not ends.ended.done()

    run(main)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_thousand_channels_leave_no_descriptor(loop):
    async def main():
        for _ in range(1000):
            async with Ends() as ends:
                ends.channel.send({"x": "a" * 1000})
                ends.peer.send(encode({}))
                await ends.hears(1)

    run_on(loop, main)
