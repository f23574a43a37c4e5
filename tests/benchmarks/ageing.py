"""Is a run that has gone on for long slower than if it were begun anew? `python tests/benchmarks/ageing.py RUN`.

RUN is the folder of a run at work, with checkpoints. A copy of it is resumed beside it: the same weights, memory and
counters, in new processes. Then all processes of both share one core, a few seconds on each core in turn, and the
updates of both are counted. The scheduler lets them take turns every few milliseconds, so that whatever the machine
does to one of them (other guests of its host, a slower core) it does to the other: between runs side by side on cores
of their own ratios differ by a tenth from one ten seconds to the next. How fast a process is depends a little on where
its memory happens to lie, so that is done with several copies, one after the other.

Printed are the ratio of rates, old by new, and that of CPU time per update, new by old; 1 is as fast, less is slower
with age. The standard error is that of single turns or that of single copies, whichever is larger. The last line is
JSON. At the end the copies are killed and RUN may use all the cores it could before.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

TURN_S, TURNS_PER_CORE = 4.0, 4
SETTLE_S = 0.3
"After a change of core nothing is counted for so long."
BEGIN_S, WARM_UP_S = 60.0, 20.0


class Progress(NamedTuple):
    """What `status.json` says.

    Args:
        seconds: when it was written, by the clock of files.
        updates: so far, those before a resumption included.
        cpu_s: CPU seconds of all its processes.
    """

    seconds: float
    updates: int
    cpu_s: float


class Compared(NamedTuple):
    """The outcome.

    Args:
        rate: updates per second, the old run's by the new one's.
        rate_error: its standard error.
        cost: CPU time per update, the new run's by the old one's.
        cost_error: its standard error.
        turns: how many looks these are the geometric means of.
        copies: `rate` beside each of the copies.
    """

    rate: float
    rate_error: float
    cost: float
    cost_error: float
    turns: int
    copies: list[float]


def progress(run: Path) -> Progress:
    """How far a run is."""
    with (run / "status.json").open() as file:
        told = json.load(file)
        written = os.fstat(file.fileno()).st_mtime
    return Progress(written, told["updates"], sum(told["cpu_seconds"].values()))


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for each in found:
        try:
            for thread in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
        except OSError:
            continue  # it has ended meanwhile
    return found


def confine(pid: int, cores: set[int]) -> None:
    """Let a process and its descendants, all their threads, use these cores only."""
    for each in family(pid):
        try:
            for thread in Path(f"/proc/{each}/task").iterdir():
                os.sched_setaffinity(int(thread.name), cores)
        except OSError:
            continue  # it has ended meanwhile


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Until it is true; refuses to wait for longer."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"ageing: waited {seconds:g} s for {what}")
        time.sleep(0.05)


def copied(run: Path, target: Path) -> None:
    """Copy a run's folder while it is at work: again, where what was listed had been replaced before it was read."""
    for _ in range(20):
        try:
            shutil.copytree(run, target)
        except (shutil.Error, FileNotFoundError):
            shutil.rmtree(target, ignore_errors=True)
        else:
            return
    raise SystemExit(f"ageing: {run} changed each time while it was copied")


def ratios(old: tuple[Progress, Progress], new: tuple[Progress, Progress]) -> tuple[float, float]:
    """Logarithms of the ratio of rates (old by new) and of costs (new by old)."""

    def rate(since: Progress, until: Progress) -> float:
        return (until.updates - since.updates) / (until.seconds - since.seconds)

    def cost(since: Progress, until: Progress) -> float:
        return (until.cpu_s - since.cpu_s) / (until.updates - since.updates)

    return math.log(rate(*old) / rate(*new)), math.log(cost(*new) / cost(*old))


def looks(run: Path, pid: int, seconds: float) -> list[tuple[float, float]]:
    """What `ratios` says of each turn of the run, whose supervisor is `pid`, beside one copy, within so many seconds.

    Raises:
        SystemExit: the run has ended, or its copy cannot be resumed.
    """
    before = os.sched_getaffinity(pid)
    until = time.monotonic() + seconds
    found: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        again, said = Path(folder) / "again", Path(folder) / "said"
        copied(run, again)
        (again / "status.json").unlink(missing_ok=True)
        with said.open("w") as output:
            command = [sys.executable, "-m", "mlxe_async", "--resume", str(again), "--no-progress"]
            new = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            at_work = (again / "status.json").exists
            wait_for(lambda: at_work() or new.poll() is not None, BEGIN_S, "the resumed copy")
            if new.poll() is not None:
                raise SystemExit(f"ageing: the resumed copy ended with {new.returncode}:\n{said.read_text()[-2000:]}")
            time.sleep(WARM_UP_S)
            while time.monotonic() < until:
                core = sorted(before)[len(found) // TURNS_PER_CORE % len(before)]
                for each in (pid, new.pid):
                    confine(each, {core})
                time.sleep(SETTLE_S)
                since = progress(run), progress(again)
                time.sleep(TURN_S)
                now = progress(run), progress(again)
                found.append(ratios((since[0], now[0]), (since[1], now[1])))
        finally:
            if new.poll() is None:
                new.kill()
            new.wait()
            confine(pid, before)
    return found


def mean(copies: list[list[float]]) -> tuple[float, float]:
    """Geometric mean of all, and its error: that of the turns, or that of the means of the copies, if it is larger."""
    turns = [each for copy in copies for each in copy]
    error = statistics.stdev(turns) / math.sqrt(len(turns))
    if len(copies) > 1:
        error = max(error, statistics.stdev(map(statistics.mean, copies)) / math.sqrt(len(copies)))
    return math.exp(statistics.mean(turns)), error


def compare(run: Path, seconds: float, copies: int) -> Compared:
    """Hold a run against so many copies of it, one after the other, for so many seconds in all.

    Raises:
        SystemExit: the run has ended, a copy cannot be resumed, or the time is too short for it.
    """
    pid = json.loads((run / "status.json").read_text())["pid"]
    found = [looks(run, pid, seconds / copies) for _ in range(copies)]
    if min(map(len, found)) < 2:
        raise SystemExit(f"ageing: {seconds:g} s are too few for {copies} copies: each needs {WARM_UP_S:g} s and more")
    rates, costs = ([[turn[place] for turn in copy] for copy in found] for place in (0, 1))
    of_each = [math.exp(statistics.mean(copy)) for copy in rates]
    return Compared(*mean(rates), *mean(costs), sum(map(len, found)), of_each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--copies", type=int, default=4)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a copy is not left behind
    found = compare(chosen.run.resolve(), chosen.seconds, chosen.copies)
    each = ", ".join(f"{rate:.3f}" for rate in found.copies)
    print(
        f"old by new, {found.turns} turns of {TURN_S:g} s: rate {found.rate:.4f} +- {found.rate_error:.4f} ({each}), "
        f"CPU time for an update (new by old) {found.cost:.4f} +- {found.cost_error:.4f}"
    )
    print(json.dumps(found._asdict()))


if __name__ == "__main__":
    main()
