"""Processes: what a control round trip, a fork, a death and a restart cost. `python tests/benchmarks/ipc_processes.py`

Prints one table per event loop. `--preload torch` makes the nursery as large as it is in a run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import socket
import sys
import time
from pathlib import Path

import uvloop

from mlxe_async.ipc.messages.channel import ChildChannel
from mlxe_async.ipc.messages.frames import Decoder, encode
from mlxe_async.ipc.processes.nursery import ExitStatus, Nursery
from mlxe_async.ipc.processes.process import Process, ProcessListener
from mlxe_async.ipc.processes.restarts import RestartPolicy
from mlxe_async.ipc.processes.serve import serve

HERE = str(Path(__file__).parent)
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


class Answering:
    """The role at the other end."""

    def echo(self, **args):
        """What came."""
        return args


def answering(spec: dict, channel: ChildChannel, fds: dict[str, int]) -> None:
    """Entry of the children."""
    serve(channel, {"answering": Answering()})


class Clock(ProcessListener):
    """Notes when a death was seen and when the child was back."""

    def __init__(self) -> None:
        self.exited_at = self.started_at = 0.0
        self.back = asyncio.Event()

    def exited(self, process: Process, sentence: str, status: ExitStatus, expected: bool) -> None:
        self.exited_at = time.perf_counter()

    def started(self, process: Process, pid: int, seconds: float) -> None:
        self.started_at = time.perf_counter()
        self.back.set()


def table(name: str, samples: list[float], unit: float, unit_name: str) -> None:
    ordered = sorted(samples)
    median, p95, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * q))] * unit for q in (0.5, 0.95, 0.99))
    print(f"  {name:<44} {median:9.1f} {p95:9.1f} {p99:9.1f} {ordered[-1] * unit:9.1f} {unit_name}")


def bare_round_trips(count: int) -> list[float]:
    """Two processes, blocking sockets, 32 bytes: the floor that the kernel sets."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        while data := theirs.recv(64):
            theirs.send(data)
        os._exit(0)
    theirs.close()
    samples = []
    for _ in range(count):
        begin = time.perf_counter()
        ours.send(b"x" * 32)
        ours.recv(64)
        samples.append(time.perf_counter() - begin)
    ours.close()
    os.waitpid(pid, 0)
    return samples


def framing(count: int) -> list[float]:
    """One request encoded and decoded."""
    samples, decoder = [], Decoder()
    message = {"id": 1, "role": None, "verb": "generate", "args": {"version": 41}}
    for _ in range(count):
        begin = time.perf_counter()
        decoder.feed(encode(message))
        samples.append(time.perf_counter() - begin)
    return samples


async def measure(preload: list[str], calls: int, kills: int) -> None:
    nursery, clock = Nursery(), Clock()
    process = Process(
        lambda: nursery,
        "mlxe-bench",
        "ipc_processes:answering",
        lambda epoch: {},
        policy=RestartPolicy(limit=10**9),
        listener=clock,
    )
    try:
        begin = time.perf_counter()
        await nursery.start([*preload, "ipc_processes"], [HERE])
        returned = time.perf_counter() - begin
        await process.start()
        print(f"  start() of the nursery returns after {returned * 1e3:.1f} ms, first child after", end=" ")
        print(f"{(time.perf_counter() - begin) * 1e3:.0f} ms")
        watch = asyncio.create_task(process.run())
        samples = []
        for i in range(calls):
            begin = time.perf_counter()
            await process.call("echo", version=i)
            samples.append(time.perf_counter() - begin)
        table("call of a verb", samples, 1e6, "us")
        begin = time.perf_counter()
        for _ in range(calls // 100):
            await asyncio.gather(*(process.call("echo", version=i) for i in range(100)))
        print(f"  {'calls sent without waiting':<44} {calls / (time.perf_counter() - begin):9.0f} calls/s")
        seen, back = [], []
        for _ in range(kills):
            clock.back.clear()
            process.note_progress()
            begin = time.perf_counter()
            os.kill(process.pid, signal.SIGKILL)
            await clock.back.wait()
            seen.append(clock.exited_at - begin)
            back.append(clock.started_at - begin)
        table("SIGKILL until seen, reaped and told", seen, 1e3, "ms")
        table("SIGKILL until the successor shook hands", back, 1e3, "ms")
        samples = []
        for i in range(kills):
            extra = Process(lambda: nursery, f"mlxe-x-{i}", "ipc_processes:answering", lambda epoch: {})
            begin = time.perf_counter()
            await extra.start()
            samples.append(time.perf_counter() - begin)
            await extra.stop()
        table("fork until the hand-shake", samples, 1e3, "ms")
        samples = []
        for _ in range(4):
            clock.back.clear()
            begin = time.perf_counter()
            os.kill(nursery.pid, signal.SIGKILL)
            await clock.back.wait()
            samples.append(clock.started_at - begin)
        table("SIGKILL of the nursery until a child is back", samples, 1e3, "ms")
        begin = time.perf_counter()
        watch.cancel()
    finally:
        await process.stop()
        await nursery.stop()
    print(f"  everything stopped in {(time.perf_counter() - begin) * 1e3:.1f} ms")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--preload", nargs="*", default=["numpy"])
    options = parser.parse_args()
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}, Python {platform.python_version()}"
    )
    print(f"  {'':<44} {'median':>9} {'p95':>9} {'p99':>9} {'worst':>9}")
    table("bare socketpair round trip, blocking", bare_round_trips(options.calls), 1e6, "us")
    table("a request encoded and decoded", framing(options.calls), 1e6, "us")
    for name, factory in LOOPS.items():
        print(f"{name}, nursery with {', '.join(options.preload) or 'nothing'}")
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(measure(options.preload, options.calls, options.kills))


if __name__ == "__main__":
    sys.exit(main())
