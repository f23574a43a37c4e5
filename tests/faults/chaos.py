"""Random processes of a live `oa` run get random signals: `python tests/faults/chaos.py [--minutes 20] [--seed 0]`.

Any role, the nursery included, the supervisor spared, gets SIGKILL, SIGSTOP, SIGSEGV, SIGABRT or SIGTERM every 0.5 to 5
seconds. The run must come to its stop with exit code 0, its ledger balanced, and the rows in memory must be what the
environments lived through. Exits with 1 where that is not so, or where there were fewer than fifteen faults a minute.

Executor 0 is never aimed at; it dies with the nursery only. Its rows per second of its own CPU time, within each of its
lives from the first delivered rollout on, are held against those of the same executor of a calm run that goes on beside
the other for as long: what else the host does slows both down.
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

from fault_runs import Case, Row, kill, pause

SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM)
TARGETS = ("mlxe-exe-1", "mlxe-exe-2", "mlxe-lrn", "mlxe-mem", "mlxe-eval", "mlxe-nursery")
TABLES = {
    "schedule": {"kind": "oa", "executors": 3, "memorizer": "own", "step_timeout_s": 2.0, "update_timeout_s": 2.0},
    "supervision": {"restart_limit": 1000, "restart_window_s": 1.0, "backoff_s": 0.05, "backoff_max_s": 0.5},
    "evaluation": {"enabled": True, "max_episode_steps": 50, "screen_steps": 10, "episodes": 2},
    "checkpoint": {"interval_s": 20.0},
    "memory": {"capacity_rows": 60_000},
}
TASK = {"length": 200, "spread": 10}
LOOK_S = 0.25
SETTLE_S = 5.0  # from the last fault to the audit
REST_S = 60.0  # from the last fault to the run's own stop


class Thrift:
    """Rows per CPU second of one executor: of each life from its first delivered rollout to its last one.

    Between two deliveries nothing is noted: a life that is cut off would else be charged with half a rollout that it
    had no time to deliver.
    """

    def __init__(self, run, index=0):
        self._run, self._index, self._process = run, index, f"mlxe-exe-{index}"
        self._read = self._rows = 0
        self._pid = None
        self.lives = []  # (CPU seconds, rows) just after the first and after the last delivery

    def look(self):
        lines = self._run.lines()
        delivered = False
        for line in lines[self._read :]:
            if line["event"] == "proc_start" and line["process"] == self._process:
                self._pid, delivered = line["pid"], False
                self.lives.append([])
            elif line["event"] == "phase" and line["phase"] == "generate" and line["idx"] == self._index:
                self._rows += line["rows"]
                delivered = True
        self._read = len(lines)
        if not delivered or not self.lives:
            return
        try:
            spent = int(Path(f"/proc/{self._pid}/schedstat").read_text().split()[0]) / 1e9
        except (OSError, IndexError):
            return  # it is between two lives
        self.lives[-1] = [*self.lives[-1][:1], (spent, self._rows)]

    def spent(self):
        """(CPU seconds, rows) of each life with two looks after deliveries."""
        return [(last[0] - first[0], last[1] - first[1]) for first, last in (x for x in self.lives if len(x) == 2)]

    def rows_per_second(self):
        seconds, rows = (sum(column) for column in zip(*self.spent(), strict=True))
        return rows / seconds


def begun(case, seconds, steps=2000):
    """A run of so many seconds, under way."""
    stop = {"stop": {"env_steps": None, "seconds": seconds}}
    run = case.start(TASK, {**TABLES, **stop})
    case.want(run.reached(steps), "it begins")
    return run


def rest(seconds, *watched):
    """Time passes, and is watched."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        for thrift in watched:
            thrift.look()
        pause(min(LOOK_S, left))


def stormy(case, seconds, pause_s):
    """Faults for so many seconds; how many of each kind, what was spent by the spared one, and beside, and the run."""
    calm, run = begun(case, seconds + 2 * REST_S), begun(case, seconds + REST_S)
    chance = random.Random(case.seed)  # noqa: S311 - faults, no secrets
    bar, thrift, done = Thrift(calm), Thrift(run), Counter()
    began = time.monotonic()
    while run.process.poll() is None and time.monotonic() - began < seconds:
        rest(chance.uniform(*pause_s), bar, thrift)
        target, number = chance.choice(TARGETS), chance.choice(SIGNALS)
        pid = run.living(target) if target != "mlxe-nursery" else nursery_of(run)
        if pid is not None:
            kill(pid, number)
            done[target, signal.Signals(number).name] += 1
    rest(SETTLE_S, bar, thrift)
    calm.signal(signal.SIGTERM)
    calm.ended()
    found = case.proves(run, whole=False)
    case.saw(f"{found.rows if found else 0:,} rows of {len(found.lives) if found else 0} lives audited")
    case.want(run.ended(2 * REST_S) is not None, "it comes to its end")
    code = case.checks(run)
    case.saw(f"exit code {code}, {run.all('run_end')[-1]['env_steps']:,} steps")
    return done, thrift, bar, run


def nursery_of(run):
    """The process from which all others are forked, by its name, below the run's supervisor and the guard."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            name = (folder / "comm").read_text().strip()
            parent = parent_of(parent_of(folder.name)) if name == "mlxe-nursery" else None
        except OSError:
            continue  # it ended meanwhile
        if parent == run.pid:
            return int(folder.name)
    return None


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, nargs=2, default=(0.5, 5.0), metavar=("LEAST", "MOST"))
    parser.add_argument("--lives", action="store_true", help="print what each life of executor 0 spent")
    chosen = parser.parse_args()
    seconds = 60 * chosen.minutes
    with tempfile.TemporaryDirectory() as folder:
        row = Row("X1", "random faults", "exit 0, ledger balanced, nothing lost")
        case = Case(row, chosen.seed, "hour", Path(folder))
        try:
            done, thrift, bar, run = stormy(case, seconds, chosen.pause)
            restarts = len(run.all("proc_restart"))
            hangs = len(run.all("hang"))
            ledger = run.all("ledger")[-1]
        finally:
            case.close()
    for (target, name), times in sorted(done.items()):
        print(f"{target:<14} {name:<8} {times:4d}")
    faults = sum(done.values())
    print(f"{faults} faults in {chosen.minutes:g} minutes; {restarts} restarts, {hangs} hangs judged")
    print("; ".join(case.seen))
    print(f"ledger: committed {ledger['committed']:,}, lost {ledger['lost']}, torn {ledger['torn']}")
    if chosen.lives:
        for name, one in (("spared", thrift), ("calm", bar)):
            for seconds, rows in one.spent():
                print(
                    f"{name:<8}{seconds:10.2f} s of CPU {rows:10,} rows {rows / max(seconds, 1e-9):10,.0f} per second"
                )
    share = 100 * thrift.rows_per_second() / bar.rows_per_second()
    print(
        f"rows per CPU second of executor 0, {len(thrift.spent())} lives: {thrift.rows_per_second():,.0f}, of a calm "
        f"run beside it: {bar.rows_per_second():,.0f}: {share:.0f} %"
    )
    case.want(share >= 95, "rows per CPU second of what is spared: at least 95 % of a calm run")
    case.want(faults >= 15 * chosen.minutes, f"at least {15 * chosen.minutes:.0f} faults")
    print("all as required" if not case.failures else "NOT: " + "; ".join(case.failures))
    return 1 if case.failures else 0


if __name__ == "__main__":
    sys.exit(main())
