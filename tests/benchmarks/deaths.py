"""How fast a killed process is missed and works again: `python tests/benchmarks/deaths.py [kills] [--executors 2]`.

In a live `oa` run of CartPole. Times count from the SIGKILL: until the supervisor's loop sees the death (through a
pidfd, as the supervisor does), until it is in the log (reaped, what it left behind ended, and told), until its
successor shook hands, until that began its first phase, and until the phase is finished and in the log. A
phase of an executor is an episode: how long it takes says who shares the cores and how far executors may run ahead of
the learner; `mean phase ms` is what the executors that nobody killed take from one end to the next meanwhile. The last
lines time the end of the whole run by SIGINT's way.

Before all that, in the same sitting, as many bare processes as the run will have import torch and spin, and are killed
one after another: who dies needs a core for it, and this is what the machine takes for it when all want its cores.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import select
import signal
import statistics
import tempfile
import time

import numpy as np
import uvloop

from mlxe_async.settings import load_settings
from mlxe_async.supervisor import Supervisor

PHASE = {"mlxe-exe-0": ("executor", 0), "mlxe-mem": ("memorizer", None), "mlxe-lrn": ("learner", None)}


def spin():
    while True:
        pass


def end(process):
    """Milliseconds from its SIGKILL until its pidfd says that it is dead."""
    pidfd = os.pidfd_open(process.pid)
    try:
        began = time.monotonic()
        process.kill()
        if not select.select([pidfd], [], [], 60)[0]:
            raise SystemExit(f"process {process.pid} still lives a minute after its SIGKILL")
        return (time.monotonic() - began) * 1e3
    finally:
        os.close(pidfd)
        process.join(60)
        process.close()


def bare(kills, processes):
    """Milliseconds of each of so many deaths among so many spinning processes, killed at random moments."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "torch"])
    rng, taken = np.random.default_rng(0), []
    with contextlib.ExitStack() as crowd:
        crowded = []
        crowd.callback(lambda: [end(process) for process in crowded])
        for count in range(processes + kills):
            crowded.append(context.Process(target=spin))
            crowded[-1].start()
            if count >= processes:
                time.sleep(rng.uniform(0.05, 0.15))
                taken.append(end(crowded.pop(0)))
    return taken


async def main(kills, executors, folder):
    settings = load_settings(
        {
            "task": {"env": "CartPole-v1"},
            "schedule": {"kind": "oa", "memorizer": "own", "executors": executors},
            "supervision": {"restart_limit": 1000},
            "algorithm": {"min_updates": 4},
        }
    )
    supervisor = Supervisor(settings, run_dir=folder)
    lines, news = [], asyncio.Event()
    supervisor.subscribe(lambda line: (lines.append(line), news.set()))
    running = asyncio.create_task(supervisor.run())

    async def saw(after_ns, least_rows=0, **wanted):
        while True:
            for line in reversed(lines):  # the newest first: it is looked for after each line
                if line["mono_ns"] <= after_ns:
                    break
                fits = all(line.get(key) == value for key, value in wanted.items())
                if fits and line.get("rows", 0) >= least_rows:
                    return line
            news.clear()
            async with asyncio.timeout(120):
                await news.wait()

    async def death_seen(pid):
        """When this loop, which is the supervisor's, sees the end of the process."""
        loop, seen, pidfd = asyncio.get_running_loop(), asyncio.Event(), os.pidfd_open(pid)
        loop.add_reader(pidfd, seen.set)
        try:
            async with asyncio.timeout(120):
                await seen.wait()
            return time.monotonic_ns()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)

    await saw(0, event="weights")
    heads = ("death seen ms", "death told ms", "shook hands ms", "began a phase ms", "finished it ms")
    print(f"{'process':<12} {'kills':>5}  " + "  ".join(f"{head:>26}" for head in heads))
    print(f"{'':<12} {'':>5}  " + "  ".join(f"{'median      p95      p99':>26}" for _ in heads))
    first_ns = time.monotonic_ns()
    for process, (role, idx) in PHASE.items():
        rows = []
        for _ in range(kills):
            pid = [line for line in lines if line["event"] == "proc_start" and line["process"] == process][-1]["pid"]
            seeing = asyncio.create_task(death_seen(pid))
            await asyncio.sleep(0)  # so that it looks before there is anything to see
            now = time.monotonic_ns()
            os.kill(pid, signal.SIGKILL)
            seen_ns = await seeing
            told = await saw(now, event="proc_exit", process=process)
            ready = await saw(now, event="proc_start", process=process)
            works = await saw(ready["mono_ns"], event="phase", role=role, idx=idx)
            # Deaths without any progress in between are met with growing patience, which is not what is measured.
            await saw(ready["mono_ns"], least_rows=1, event="phase", role=role, idx=idx)
            moments = (seen_ns, told["mono_ns"], ready["mono_ns"], works["start_ns"], works["mono_ns"])
            rows.append([(moment - now) / 1e6 for moment in moments])
        cells = []
        for column in zip(*rows, strict=True):
            p95, p99 = np.percentile(column, (95, 99), method="higher")
            cells.append(f"{statistics.median(column):8.1f} {p95:8.1f} {p99:8.1f}")
        print(f"{process:<12} {kills:5d}  " + "  ".join(cells))
    seen = [line for line in lines if line["mono_ns"] > first_ns and line["event"] == "phase"]
    others = [line for line in seen if line["role"] == "executor" and line["idx"]]
    if others:
        mean = (time.monotonic_ns() - first_ns) * (executors - 1) / len(others) / 1e6
        print(f"mean phase ms of the executors that nobody killed: {mean:.1f}")
    began = time.monotonic()
    supervisor.request_stop("SIGINT")
    result = await running
    print(f"a stop as by SIGINT took {time.monotonic() - began:.2f} s; {result.episodes:,} episodes were played")
    ledger = [line for line in lines if line["event"] == "ledger"][-1]
    print(f"rows committed {ledger['committed']:,}, lost {ledger['lost']}, torn {ledger['torn']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", nargs="?", type=int, default=30)
    parser.add_argument("--executors", type=int, default=2)
    asked = parser.parse_args()
    processes = asked.executors + 3
    taken = bare(asked.kills, processes)
    cells = (statistics.median(taken), *np.percentile(taken, (95, 99), method="higher"))
    print(f"{processes} bare processes spin; death seen ms, median, p95, p99: " + " ".join(f"{ms:.1f}" for ms in cells))
    with tempfile.TemporaryDirectory() as there, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(asked.kills, asked.executors, there))
