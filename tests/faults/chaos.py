"""Random processes of a live `oa` run get random signals: `python tests/faults/chaos.py [--minutes 20] [--seed 0]`.

Any role, the nursery included, the supervisor spared, gets SIGKILL, SIGSTOP, SIGSEGV, SIGABRT or SIGTERM every 0.5 to 5
seconds (on average less, so that 300 faults fit into twenty minutes). Executor 0 is never aimed at: its rows per CPU
second are held against those of a calm run. The run must come to its stop with exit code 0, its ledger balanced, and
the rows in memory must be what the environments lived through. Exits with 1 where that is not so.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fault_runs import Case, Row, cpu_seconds, kill, pause

SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM)
TARGETS = ("mlxe-exe-1", "mlxe-exe-2", "mlxe-lrn", "mlxe-mem", "mlxe-eval", "mlxe-nursery")
TABLES = {
    "schedule": {"kind": "oa", "executors": 3, "memorizer": "own", "step_timeout_s": 2.0, "update_timeout_s": 2.0},
    "supervision": {"restart_limit": 1000, "restart_window_s": 1.0, "backoff_s": 0.05, "backoff_max_s": 0.5},
    "evaluation": {"enabled": True, "max_episode_steps": 50, "screen_steps": 10, "episodes": 2},
    "checkpoint": {"interval_s": 20.0},
}


class Thrift:
    """Rows per CPU second of one executor, over all its lives as far as they were looked at."""

    def __init__(self, run, process="mlxe-exe-0"):
        self._run, self._process = run, process
        self._lives = {}

    def look(self):
        pid = self._run.living(self._process)
        if pid is None:
            return
        try:
            spent = cpu_seconds(pid)
        except OSError:
            return  # it is between two lives
        rows = sum(line["rows"] for line in self._run.all("phase", phase="generate", idx=0))
        first = self._lives.setdefault(pid, [(spent, rows), (spent, rows)])
        first[1] = (spent, rows)

    def rows_per_second(self):
        spent = sum(last[0] - first[0] for first, last in self._lives.values())
        rows = sum(last[1] - first[1] for first, last in self._lives.values())
        return rows / spent if spent else 0.0


def begun(case, seconds, steps=400):
    """A run of so many seconds, under way."""
    stop = {"stop": {"env_steps": None, "seconds": seconds}}
    run = case.start({"spread": 10}, {**TABLES, **stop})
    case.want(run.reached(steps), "it begins")
    return run


def calm(case, seconds):
    """Rows per CPU second where nothing happens."""
    run = begun(case, seconds)
    thrift = Thrift(run)
    deadline = time.monotonic() + seconds + 60
    while run.process.poll() is None and time.monotonic() < deadline:
        thrift.look()
        pause(0.5)
    case.checks(run)
    return thrift.rows_per_second()


def stormy(case, seconds, pause_s):
    """Faults until shortly before the end; how many of each kind, and rows per CPU second of the spared one."""
    run = begun(case, seconds)
    chance = random.Random(case.seed)  # noqa: S311 - faults, no secrets
    thrift, done = Thrift(run), Counter()
    began = time.monotonic()
    while run.process.poll() is None and time.monotonic() - began < seconds - 15:
        thrift.look()
        pause(chance.uniform(*pause_s))
        target, number = chance.choice(TARGETS), chance.choice(SIGNALS)
        pid = run.living(target) if target != "mlxe-nursery" else nursery_of(run)
        if pid is not None:
            kill(pid, number)
            done[target, signal.Signals(number).name] += 1
    case.want(run.ended(60) is not None, "it comes to its end")
    code = case.checks(run)
    case.saw(f"exit code {code}, {run.all('run_end')[-1]['env_steps']:,} steps")
    return done, thrift.rows_per_second(), run


def nursery_of(run):
    """The process from which all others are forked, by its name, below the run's supervisor."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            name = (folder / "comm").read_text().strip()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended meanwhile
        if name == "mlxe-nursery" and parent == run.pid:
            return int(folder.name)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, nargs=2, default=(0.5, 5.0), metavar=("LEAST", "MOST"))
    chosen = parser.parse_args()
    seconds = 60 * chosen.minutes
    with tempfile.TemporaryDirectory() as folder:
        row = Row("X1", "random faults", "exit 0, ledger balanced, nothing lost")
        case = Case(row, chosen.seed, "hour", Path(folder))
        try:
            bar = calm(case, min(60.0, seconds))
            done, thrift, run = stormy(case, seconds, chosen.pause)
            restarts = len(run.all("proc_restart"))
            hangs = len(run.all("hang"))
            ledger = run.all("ledger")[-1]
        finally:
            case.close()
    for (target, name), times in sorted(done.items()):
        print(f"{target:<14} {name:<8} {times:4d}")
    print(f"{sum(done.values())} faults in {chosen.minutes:g} minutes; {restarts} restarts, {hangs} hangs judged")
    print("; ".join(case.seen))
    print(f"ledger: committed {ledger['committed']:,}, lost {ledger['lost']}, torn {ledger['torn']}")
    print(f"rows per CPU second of executor 0: {thrift:,.0f}, calm {bar:,.0f}: {100 * thrift / max(bar, 1e-9):.0f} %")
    case.want(thrift >= 0.95 * bar, "rows per CPU second of what is spared: at least 95 % of a calm run")
    print("all as required" if not case.failures else "NOT: " + "; ".join(case.failures))
    return 1 if case.failures else 0


if __name__ == "__main__":
    sys.exit(main())
