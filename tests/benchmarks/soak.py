"""Does a run grow while it goes on, or slow down? `python tests/benchmarks/soak.py [--minutes 120] [--settings FILE]`.

Runs the command as a user would (`settings/oa.toml`, or FILE), for so long, with its tests on, but each of them short
and not for every episode: how long a test takes says how good the policy has become, and it shares the cores with what
is timed. Looks at each of the processes every ten seconds: memory of its own (RssAnon), descriptors and threads. After
a warm-up of a tenth of the time (at least two minutes) it fits a line through each. Twice, after the warm-up and just
before the end, the run is compared with copies that are resumed beside it (`ageing.py`, each time for a tenth of the
time): the same weights, memory and work, the same machine at the same moments, but new processes.

Exits with 1 where memory grows by more than 1 MiB an hour *and* by more than 2 MiB in all, where a process has more
descriptors or threads at the end than after the warm-up, where a process is not the one it was, where the log takes
more than a twentieth more than its 8 MiB, or where the rate beside the run begun anew drifts by more than 2 % from the
first comparison to the second, or is not known, its standard error being above 1 %.

The rate by itself says as much about the machine as about the program, and is printed only: updates per second of the
first and of the last third, of those half minutes in which others took less than a twentieth of the machine. A virtual
machine's cores are not equally fast all along: at each look a fixed piece of work is timed too (CPU time).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ageing import Compared

ROOT = Path(__file__).parents[2]
AGEING = Path(__file__).with_name("ageing.py")
EVERY_S = 10.0
MIB = 2.0**20
SHARED = 0.05
LOG_MB = 8
WINDOW_LOOKS = 3
SURE = 0.01
"The largest standard error with which a drift of 2 % is judged."
TELL_EVERY_S = 600.0


class Look(NamedTuple):
    """How far the run is at one moment.

    Args:
        seconds: since the start.
        updates: so far.
        log_bytes: both parts of the log.
        others_s: CPU seconds of all other processes of the machine.
        learner_s: CPU seconds of the learner.
        piece_s: CPU seconds of a fixed piece of work.
    """

    seconds: float
    updates: int
    log_bytes: int
    others_s: float
    learner_s: float
    piece_s: float


@dataclass
class Watched:
    """One process, as it was at each look."""

    name: str
    seconds: list[float] = field(default_factory=list)
    anonymous: list[float] = field(default_factory=list)
    "Bytes of memory that is its own."
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)


def look(run: Path, watched: dict[int, Watched], now: float, supervisor: int) -> None:
    """Note what each living process of the run has; who was once seen is known, as the log's early lines go."""
    pids = {supervisor: "mlxe-sup", **{pid: known.name for pid, known in watched.items()}}
    for line in (run / "log.jsonl").read_text().splitlines():
        if '"event":"proc_start"' in line.replace(": ", ":"):
            told = json.loads(line)
            pids[told["pid"]] = told["process"]
    for pid, name in pids.items():
        folder = Path(f"/proc/{pid}")
        try:
            status = (folder / "status").read_text()
            descriptors = len(list((folder / "fd").iterdir()))
        except OSError:
            continue  # it has ended
        anonymous = re.search(r"RssAnon:\s+(\d+) kB", status)
        threads = re.search(r"Threads:\s+(\d+)", status)
        if anonymous is None or threads is None:
            continue  # it is ending: the kernel has taken its memory
        known = watched.setdefault(pid, Watched(name))
        known.seconds.append(now)
        known.anonymous.append(1024.0 * int(anonymous[1]))
        known.descriptors.append(descriptors)
        known.threads.append(int(threads[1]))


def busy_s() -> float:
    """CPU seconds that the whole machine has worked since it was started, what others of its host took included."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def judge(watched: dict[int, Watched], warm_up_s: float) -> list[str]:
    """Print a line for each process; what is wrong with them."""
    wrong = []
    print(f"{'process':<12} {'looks':>5} {'MiB':>7} {'MiB more':>8} {'MiB/h':>8} {'descriptors':>12} {'threads':>9}")
    for known in watched.values():
        after = [place for place, seconds in enumerate(known.seconds) if seconds >= warm_up_s]
        if len(after) < 10:
            wrong.append(f"{known.name}: seen only {len(after)} times after the warm-up")
            continue
        hours = np.array(known.seconds)[after] / 3600
        memory = np.array(known.anonymous)[after] / MIB
        slope = float(np.polyfit(hours, memory, 1)[0])
        more = slope * float(hours[-1] - hours[0])
        files = [known.descriptors[place] for place in after]
        threads = [known.threads[place] for place in after]
        print(
            f"{known.name:<12} {len(after):5d} {memory[-1]:7.1f} {more:8.2f} {slope:8.2f} "
            f"{f'{files[0]} -> {files[-1]}':>12} {f'{threads[0]} -> {threads[-1]}':>9}"
        )
        if slope > 1.0 and more > 2.0:
            wrong.append(f"{known.name}: memory grows by {slope:.1f} MiB an hour")
        # One look may fall on a moment when a file is open; what stays open raises them all.
        if min(files[-10:]) > max(files[:10]) or min(threads[-10:]) > max(threads[:10]):
            wrong.append(f"{known.name}: descriptors {files[0]} -> {files[-1]}, threads {threads[0]} -> {threads[-1]}")
    return wrong


def piece_s() -> float:
    """CPU seconds that a fixed piece of work takes now: loops of the interpreter, and numbers through the caches."""
    numbers, total = np.linspace(-1.0, 1.0, 65_536, dtype=np.float32), 0
    began = time.thread_time()
    for _ in range(20):
        np.tanh(numbers)
        total += sum(range(20_000))
    return time.thread_time() - began


class Speed(NamedTuple):
    """How fast it went in a part of the run: in the quiet windows, or else in all.

    Args:
        rate: updates per second.
        piece_s: CPU seconds of the fixed piece of work, the median.
        quiet: how many windows were quiet.
    """

    rate: float
    piece_s: float
    quiet: int


def speed(looks: list[Look]) -> Speed:
    """How fast it went."""
    windows = list(zip(looks[::WINDOW_LOOKS], looks[WINDOW_LOOKS::WINDOW_LOOKS], strict=False))
    cores = os.cpu_count() or 1
    quiet = [(a, b) for a, b in windows if (b.others_s - a.others_s) / (b.seconds - a.seconds) / cores <= SHARED]
    taken = quiet or [(looks[0], looks[-1])]
    rate = sum(b.updates - a.updates for a, b in taken) / sum(b.seconds - a.seconds for a, b in taken)
    return Speed(rate, statistics.median(look.piece_s for window in taken for look in window), len(quiet))


def cost_ms(looks: list[Look]) -> float:
    """CPU milliseconds of the learner for an update."""
    return 1e3 * (looks[-1].learner_s - looks[0].learner_s) / max(1, looks[-1].updates - looks[0].updates)


def tell(looks: list[Look], watched: dict[int, Watched]) -> None:
    """A line on how the last minutes went, so that nobody has to wait for the end."""
    memory = ", ".join(f"{known.name} {known.anonymous[-1] / MIB:.2f}" for known in watched.values())
    since, now = looks[0], looks[-1]
    others = (now.others_s - since.others_s) / (now.seconds - since.seconds) / (os.cpu_count() or 1)
    rate = (now.updates - since.updates) / (now.seconds - since.seconds)
    print(
        f"minute {now.seconds / 60:.0f}: {rate:,.1f} updates/s, {cost_ms(looks):.3f} CPU ms of the learner for each; "
        f"others {100 * others:.0f} % of the machine; MiB: {memory}",
        flush=True,
    )


def rates_told(warm: list[Look]) -> str:
    """The rates of the first and of the last third."""
    third = len(warm) // 3
    first, last = speed(warm[:third]), speed(warm[-third:])
    drift = last.rate / first.rate - 1
    per_piece = (1 + drift) * last.piece_s / first.piece_s - 1
    return (
        f"updates/s {first.rate:,.1f} in the first third ({first.quiet} quiet half minutes), {last.rate:,.1f} in the "
        f"last ({last.quiet}): {100 * drift:+.1f} %; a fixed piece of work took "
        f"{1e3 * first.piece_s:.2f} and {1e3 * last.piece_s:.2f} ms; updates per piece: {100 * per_piece:+.1f} %\n"
        f"CPU ms of the learner for an update: {cost_ms(warm[:third]):.3f}, {cost_ms(warm[-third:]):.3f}"
    )


def slower_with_age(*said: str) -> list[str]:
    """Print what the two comparisons with the run begun anew say; what is wrong."""
    if len(said) != 2 or not all(said):
        return ["expected two comparisons with the run begun anew, one of them failed (see above)"]
    early, late = (Compared(**json.loads(each.splitlines()[-1])) for each in said)
    drift, error = late.rate / early.rate - 1, math.hypot(early.rate_error, late.rate_error)
    print(
        f"rate beside the same run begun anew: {early.rate:.4f} +- {early.rate_error:.4f} early, {late.rate:.4f} +- "
        f"{late.rate_error:.4f} late: {100 * drift:+.1f} % (standard error {100 * error:.1f}); CPU time for an "
        f"update, new by old: {early.cost:.4f} +- {early.cost_error:.4f}, {late.cost:.4f} +- {late.cost_error:.4f}"
    )
    if error > SURE:
        return [f"the drift is not known: its standard error is {100 * error:.1f} %, above {100 * SURE:g}"]
    return [f"the rate drifts by {100 * drift:+.1f} % beside the same run begun anew"] if abs(drift) > 0.02 else []


def main() -> int:
    """Run, look, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--settings", default=str(ROOT / "settings" / "oa.toml"))
    chosen = parser.parse_args()
    if chosen.minutes < 10:
        parser.error(f"--minutes: got {chosen.minutes:g}, expected at least 10: a line is fitted after the warm-up")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the run is not left behind
    seconds = 60 * chosen.minutes
    warm_up_s, compare_s = max(120.0, seconds / 10), seconds / 10
    to_compare = [warm_up_s, seconds - compare_s - 30]
    comparing: list[subprocess.Popen[str]] = []
    watched: dict[int, Watched] = {}
    rates: list[Look] = []
    told = 0
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "mlxe_async", chosen.settings, "--no-progress", "--set", f'run.dir="{folder}"',
            "--set", f"stop.seconds={seconds:g}", "--set", "stop.episodes=1000000000", "--set", "stop.solved=false",
            "--set", f"logs.max_mb={LOG_MB}", "--set", "evaluation.max_episode_steps=1000",
            "--set", "evaluation.interval_steps=2000", "--set", "learner.own_core=false",  # `ageing` places everybody
        ]  # fmt: skip
        began = time.monotonic()
        supervisor = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        run = Path(folder) / "latest"
        try:
            while True:
                try:
                    supervisor.wait(EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    now = time.monotonic() - began
                if (run / "status.json").exists():
                    look(run, watched, now, supervisor.pid)
                    status = json.loads((run / "status.json").read_text())
                    size = sum(file.stat().st_size for file in run.glob("log*"))
                    cpu_s = status["cpu_seconds"]
                    others_s = busy_s() - sum(cpu_s.values())
                    rates.append(Look(now, status["updates"], size, others_s, cpu_s.get("mlxe-lrn", 0.0), piece_s()))
                    if rates[-1].seconds - rates[told].seconds >= TELL_EVERY_S:
                        tell(rates[told:], watched)
                        told = len(rates) - 1
                if to_compare and now >= to_compare[0]:
                    to_compare.pop(0)
                    ageing = [sys.executable, str(AGEING), str(run), "--seconds", f"{compare_s:g}"]
                    comparing.append(subprocess.Popen(ageing, stdout=subprocess.PIPE, text=True))
                if now > seconds + 120:
                    raise SystemExit(f"soak: expected the run to stop after {seconds:g} s, it still runs")
        finally:
            if supervisor.poll() is None:
                os.kill(supervisor.pid, signal.SIGKILL)
            for each in comparing:
                if each.poll() is None:
                    each.terminate()
            said = supervisor.communicate()[1]
        print(said.strip().splitlines()[-1])
        wrong = judge(watched, warm_up_s)
    warm = [each for each in rates if each.seconds >= warm_up_s]
    print(rates_told(warm))
    wrong += slower_with_age(*(each.communicate()[0] for each in comparing))
    longest = max(look.log_bytes for look in rates) / MIB
    print(f"log: {longest:,.1f} MiB at most, of {LOG_MB} MiB that it may take")
    if longest > 1.05 * LOG_MB:
        wrong.append(f"the log takes {longest:,.1f} MiB, expected {LOG_MB} at most")
    others = (warm[-1].others_s - warm[0].others_s) / (warm[-1].seconds - warm[0].seconds) / (os.cpu_count() or 1)
    print(f"others used {100 * others:.0f} % of the machine; {warm[-1].updates:,} updates in all")
    if supervisor.returncode != 0:
        wrong.append(f"expected exit code 0, got {supervisor.returncode}")
    print(f"{os.cpu_count()} cores, {chosen.minutes:g} minutes: " + ("; ".join(wrong) or "nothing grows"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
