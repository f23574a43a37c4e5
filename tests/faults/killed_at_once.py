"""Everybody of a run is killed in one moment, again and again: `python tests/faults/killed_at_once.py [--times 200]`.

The environments have started simulators, half of them in sessions of their own. Then supervisor, nursery, memorizer,
learner and executors get SIGKILL as `pkill -9` sends it: whoever fits a word, looked up first, then signalled one after
the other. What is left of processes, of shared memory and of temporary files after a bounded wait is counted.
Prints how many of each were left, and how long it took; exits with 1 where anything was.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import leaks
from fault_runs import Case, Row, kill

EXECUTORS = 2
SIMULATORS = {
    "fault": ["child", "child in a session"],
    "executor": -1,
    "step": 5,
    "every": 5,
    "roles": ["executor"],
}
TABLES = {
    "stop": {"env_steps": 10**9},
    "schedule": {"executors": EXECUTORS, "memorizer": "own"},
    "evaluation": {"enabled": False},
}
WAIT_S = 5.0
SHARED = Path("/dev/shm")  # noqa: S108 - only looked at


def by_command_line(word):
    """Whom `pkill -f WORD` finds, of this session."""
    return [pid for pid in leaks.processes() if word in read(pid, "cmdline").replace("\0", " ")]


def by_name(word):
    """Whom `pkill WORD` finds, of this session."""
    return [pid for pid, name in leaks.processes().items() if word in name]


def read(pid, what):
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes().decode(errors="replace")
    except OSError:  # it has ended
        return ""


WAYS = {
    "pkill -9 -f mlxe_async": lambda: by_command_line("mlxe_async"),
    "pkill -9 -f python": lambda: by_command_line("python"),
    "pkill -9 mlxe": lambda: by_name("mlxe"),
}


def simulators():
    return [pid for pid, name in leaks.processes().items() if name == "sleep"]


def kill_all(case, find):
    """One run, killed at once; what was left of it, and the seconds until nothing was."""
    run = case.start(SIMULATORS, TABLES)
    case.runs.remove(run)  # closed here, for there are many
    left = Counter()
    try:
        wanted = 2 * EXECUTORS
        ready = run.until(lambda: len(simulators()) == wanted and run.all("proc_start", process="mlxe-lrn"))
        case.want(ready, f"{wanted} simulators run ({len(simulators())} do; {run.error()[-300:]})")
        sessions = {os.getsid(pid) for pid in simulators()}
        case.want(len(sessions) > EXECUTORS, f"some are in sessions of their own ({sessions})")
        names = leaks.processes()
        hit = find()
        met = {names[pid] for pid in hit if pid in names}
        for who in ("mlxe-sup", "mlxe-nursery", "mlxe-lrn", "mlxe-mem", "mlxe-exe-0", "mlxe-exe-1"):
            case.want(who in met, f"{who} is among those killed ({sorted(met)})")
        case.want("sleep" not in met, "no simulator is")
        for pid in hit:
            kill(pid)
        began = time.monotonic()
        busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        left["processes"] = len(survivors := leaks.processes_after(WAIT_S * busy))
        seconds = time.monotonic() - began
        case.want(not survivors, f"no process is left ({survivors})")
        left["temporary files"] = len(list(run.temporary.iterdir()))
        for pid in survivors:
            kill(pid)
    finally:
        run.close()
    return left, seconds


def play(case, times):
    """Kill so many runs; how much was left of them all, and the seconds each took to be gone."""
    named = set(SHARED.iterdir())
    left, seconds = Counter(), []
    for find in itertools.islice(itertools.cycle(WAYS.values()), times):
        remains, took = kill_all(case, find)
        left += remains
        seconds.append(took)
        if case.failures:
            break
    left["shared memory"] = len({name for name in set(SHARED.iterdir()) - named if "mlxe" in name.name})
    case.want(not left.total(), f"nothing is left ({dict(left)})")
    case.saw(f"{left.total()} left of {len(seconds)} runs; gone after {max(seconds):.3f} s at most")
    return left, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        case = Case(Row("X5", "everybody killed at once", "nothing is left"), chosen.seed, "hour", Path(folder))
        try:
            _, seconds = play(case, chosen.times)
        finally:
            case.close()
    median = sorted(seconds)[len(seconds) // 2]
    print(f"{len(seconds)} runs killed at once in {time.monotonic() - began:.0f} s; {'; '.join(case.seen)}")
    print(f"until the last process was gone: median {1e3 * median:.0f} ms, longest {1e3 * max(seconds):.0f} ms")
    print("all as required" if not case.failures else "NOT: " + "; ".join(case.failures))
    return 1 if case.failures else 0


if __name__ == "__main__":
    sys.exit(main())
