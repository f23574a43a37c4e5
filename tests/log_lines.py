"""Lines of a log, made by hand: each with all its fields, at a moment that is chosen."""

import datetime as dt
import json
from dataclasses import MISSING, fields

from mlxe_async.logs import events
from mlxe_async.storage.run_folder import RunFolder

MS = 10**6
DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
BOOT = 5 * 10**12  # of the host's clock, long before the run
SETTINGS = {"run": {"name": "x"}, "algorithm": {"name": "ppo"}}


def line(event, at_ms, role="supervisor", idx=None, **told):
    """One line; what is not given has its default, or nothing of its kind."""
    known = {field.name: field.default for field in fields(events.EVENTS[event]) if field.default is not MISSING}
    ts = (DAY + dt.timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds")
    head = {"ts": ts.replace("+00:00", "Z"), "mono_ns": BOOT + round(at_ms * MS), "run": "x"}
    return {**head, "event": event, "role": role, "idx": idx, **known, **told}


def phase(name, start_ms, end_ms, role, idx=None, **fields):
    """A phase, told at its end."""
    times = {"start_ns": BOOT + round(start_ms * MS), "seconds": (end_ms - start_ms) / 1000}
    empty = {"losses": {}, "waits": {}}
    return line("phase", end_ms, role, idx, phase=name, **{"version": 0, "env_steps": None, **times, **empty, **fields})


def generate(start, end, idx, rows, env_steps, version=1, **fields):
    return phase("generate", start, end, "executor", idx, rows=rows, env_steps=env_steps, version=version, **fields)


def memorize(start, end, rows):
    return phase("memorize", start, end, "memorizer", rows=rows)


def learn(start, end, rows, version, **fields):
    return phase("learn", start, end, "learner", rows=rows, updates=1, version=version, **fields)


def publish(start, end, version):
    return phase("publish", start, end, "learner", version=version)


def evaluate(start, end, version):
    return phase("evaluate", start, end, "evaluator", version=version)


def run_start(at=0, **fields):
    about = {"seed": 3, "schedule": "oa", "algorithm": "ppo", "env": "CartPole-v1", "settings": SETTINGS}
    return line("run_start", at, **{**about, **fields})


def run_end(at, reason="episodes"):
    counts = {"solved": False, "episodes": 1, "env_steps": 90, "updates": 1, "seconds": at / 1000}
    return line("run_end", at, reason=reason, cpu_seconds=1.0, weights_hash="ab", exit_code=0, **counts)


def episode(at, value, idx=0, **fields):
    about = {"env": 0, "episode": 0, "episode_return": value, "length": 10, "terminated": True, "version": 1}
    return line("episode_end", at, "executor", idx, **{**about, "episodes": 1, "env_steps": 90, **fields})


def short_run():
    """All that happens in the shortest run of one executor: a rollout, its batch, a version and its test."""
    return [
        run_start(),
        line("probe_ok", 1, "probe", seconds=0.5, spaces={}, parameters=9, memory="replay"),
        line("proc_start", 20, "executor", 0, process="mlxe-exe-0", pid=7, epoch=1, seconds=0.01),
        line("proc_start", 22, "learner", process="mlxe-lrn", pid=8, epoch=1, seconds=0.01),
        publish(23, 24, 1),
        line("weights", 24, "learner", version=1, updates=0, env_steps=0, episodes=0),
        generate(30, 40, 0, 90, 90, episodes=1),
        episode(40, 5.0),
        memorize(42, 45, 90),
        learn(46, 60, 360, 2, lag_mean=0.5, lag_max=1, env_steps=90, losses={"loss": 0.25}),
        publish(60, 61, 2),
        line("weights", 61, "learner", version=2, updates=1, env_steps=90, episodes=1),
        evaluate(62, 80, 2),
        line("evaluation", 80, "evaluator", version=2, passed=True, episodes=3, steps=30, seconds=0.018)
        | {"return_mean": 9.0, "return_min": 8.0},
        line("ledger", 81, committed=90, ingested=90, backlog=0, kept=90)
        | {"lanes": [{"committed_blocks": 2, "backlog_blocks": 1}]},
        line("proc_exit", 85, "executor", 0, process="mlxe-exe-0", pid=7, epoch=1, expected=True, sentence="code 0"),
        run_end(90),
    ]


def numbered(lines):
    """The lines, each with its number."""
    return [{**one, "seq": number} for number, one in enumerate(lines)]


def exported(files, lines, died=""):
    """An exporter that was fed all lines and is closed."""
    for one in numbered(lines):
        files.feed(one)
    files.close(died)
    return files


def text_of(lines):
    """The lines as they stand in a log."""
    return "".join(json.dumps(one) + "\n" for one in numbered(lines))


def folder_of(base, lines, *, torn=""):
    """A run folder with this log, of a run that no process holds any more."""
    with RunFolder.create(base, "x") as folder:
        folder.log_path.write_text(text_of(lines) + torn)
    return folder.path
