"""Logs of runs for reports: lines by the program's own events, at known seconds, in folders as runs leave them."""

import datetime as dt
import json
import math
from dataclasses import asdict

from mlxe_async.logs import events

SECOND = 10**9
ZERO_NS = 5000 * SECOND
BEGAN = dt.datetime(2026, 11, 27, 13, 50, 2, tzinfo=dt.UTC)
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e"


class Log:
    """Lines of a log at seconds since the run began."""

    def __init__(self, name="x"):
        self.name, self.lines = name, []

    def add(self, at, event, role="supervisor", idx=None):
        moment = BEGAN + dt.timedelta(seconds=at)
        ts = f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
        head = {"ts": ts, "mono_ns": ZERO_NS + round(at * SECOND), "seq": len(self.lines), "run": self.name}
        self.lines.append({**head, "event": event.name, "role": role, "idx": idx, **asdict(event)})

    def phase(self, name, role, start, seconds, idx=None, **fields):
        told = events.PhaseEvent(name, ZERO_NS + round(start * SECOND), seconds, **{"version": 1, **fields})
        self.add(start + seconds, told, role, idx)


def settings(name="oa", seed=0, kind="oa", **algorithm):
    return {
        "run": {"name": name, "seed": seed},
        "schedule": {"kind": kind, "executors": 1},
        "algorithm": {"name": "mlxe", **algorithm},
        "task": {"env": "CartPole-v1"},
    }


def start(log, name="oa", seed=0, kind="oa", **algorithm):
    """The first lines of a run."""
    versions, host = {"python": "3.11.7", "torch": "2.13.0"}, {"system": "Linux", "cores": 2}
    all_of_it = settings(name, seed, kind, **algorithm)
    log.add(0.0, events.RunStart(seed, kind, "mlxe", "CartPole-v1", all_of_it, versions, host))
    log.add(0.4, events.ProcStart("mlxe-exe-0", 11, 1, 0.2), "executor", 0)
    log.add(0.5, events.ProcStart("mlxe-lrn", 12, 1, 0.25), "learner")


def second(log, at, number, value=10.0):
    """One second of work: 100 steps in an episode, a batch of rows, a version and its test."""
    log.phase("generate", "executor", at, 0.5, 0, rows=100, episodes=1, env_steps=100 * number, waits={"lane": 0.125})
    log.add(
        at + 0.5,
        events.EpisodeEnd(0, number, value, 100, True, number, number, 100 * number),
        "executor",
        0,
    )
    log.phase("memorize", "memorizer", at + 0.5, 0.1, rows=100, ingest_seconds=0.05)
    learned = {"updates": 8, "rows": 200, "lag_min": 0, "lag_mean": float(number % 3), "lag_max": 4}
    log.phase("learn", "learner", at + 0.6, 0.25, losses={"loss": 1.0 / number, "odd": math.nan}, **learned)
    log.add(at + 0.85, events.Weights(number + 1, 8 * number, 100 * number, number, 1.0), "learner")
    log.add(
        at + 0.9,
        events.Evaluation(number + 1, False, 20, 180, 0.05, value - 1, value, 9, 0),
        "evaluator",
    )
    log.add(at + 0.95, events.Ledger(100 * number, 100 * number, 0, kept=min(200, 100 * number), capacity=200))


def story(name="oa", seed=0, seconds=10, *, kind="oa", ended="seconds", code=0, better=1.0, **algorithm):
    """Lines of a run of some seconds; `ended=""`: it has no last word."""
    log = Log(f"20261127T135002Z-{name}-{seed}")
    start(log, name, seed, kind, **algorithm)
    for number in range(1, seconds + 1):
        second(log, float(number), number, better * 10.0 * number + seed)
    if ended:
        end(log, seconds + 1.5, ended, seconds, code)
    return log


def end(log, at, reason, number, code=0, *, solved=False):
    log.add(at, events.ProcExit("mlxe-lrn", 12, 1, True, "mlxe-lrn exited", 0), "learner")
    log.add(at, events.RunEnd(reason, solved, number, 100 * number, 8 * number, at, 2 * at, None, code))


def hostile():
    """A run in which every text is an attempt to be run by a browser."""
    log = Log("20261127T135002Z-hostile")
    start(log, HOSTILE)
    log.lines[0].update(algorithm=HOSTILE, env=HOSTILE, schedule=HOSTILE, seed=HOSTILE)
    log.lines[0]["settings"] = {HOSTILE: {HOSTILE: HOSTILE, "list": [HOSTILE]}, "run": {"name": HOSTILE}}
    log.lines[0]["versions"] = log.lines[0]["host"] = {HOSTILE: HOSTILE}
    log.phase(HOSTILE, HOSTILE, 1.0, 0.5, waits={HOSTILE: 0.1})
    log.phase("learn", "learner", 2.0, 0.5, losses={HOSTILE: 1.0}, rows=5, lag_mean=1.0)
    log.add(3.0, events.EnvError(0, HOSTILE, HOSTILE, 3, 4), HOSTILE, 0)
    log.add(3.0, events.ProcExit(HOSTILE, 11, 1, False, HOSTILE), HOSTILE, 0)
    log.add(3.0, events.Bottleneck({HOSTILE: 0.5}, HOSTILE, HOSTILE))
    log.add(3.0, events.Solved(HOSTILE, 1, 1, 1, 1.0))
    log.add(4.0, events.RunEnd(HOSTILE, False, 1, 1, 1, 4.0, 1.0, None, HOSTILE))
    for line in log.lines:
        line["ts"] = HOSTILE
    return log


def write(base, log, *, lock=True, **files):
    """A run folder with these lines, and further files by their names without the ending; returns its path."""
    path = base / log.name
    path.mkdir(parents=True)
    if lock:
        (path / "lock").touch()
    (path / "log.jsonl").write_text("".join(f"{json.dumps(plain(line))}\n" for line in log.lines))
    for file, content in files.items():
        (path / f"{file}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def plain(value):
    """As the journal writes it: what is not finite is null."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
