"""Run folders as finished runs leave them, written by hand: every number in them is known."""

import json
from pathlib import Path

SECOND = 10**9
ZERO_NS = 1000 * SECOND  # when the run's own clock begins; its log begins half a second later


class Log:
    """Lines of a log, at seconds since the run began."""

    def __init__(self):
        self.lines = []

    def add(self, at, event, role="supervisor", idx=None, **fields):
        head = {"ts": "", "mono_ns": ZERO_NS + round(at * SECOND), "seq": len(self.lines), "run": "x", "event": event}
        self.lines.append({**head, "role": role, "idx": idx, **fields})

    def phase(self, name, role, start, seconds, idx=None, **fields):
        start_ns = ZERO_NS + round(start * SECOND)
        values = {"version": 1, "rows": 0, "lag_mean": None, "waits": {}, **fields}
        self.add(start + seconds, "phase", role, idx, phase=name, start_ns=start_ns, seconds=seconds, **values)

    def episode(self, at, episodes, env_steps, value, length=10):
        self.add(
            at,
            "episode_end",
            "executor",
            0,
            episodes=episodes,
            env_steps=env_steps,
            episode_return=value,
            length=length,
        )


def settings_of(name, seed, *, tested=True, batch=64, stop=None):
    return {
        "stop": stop or {"solved": tested},
        "run": {"name": name, "seed": seed},
        "schedule": {"kind": "is"},
        "algorithm": {"name": "mlxe", "batch": batch},
        "evaluation": {"enabled": tested, "passes": 3, "rule": "cap"},
    }


def story(
    name="is",
    seed=1,
    *,
    solved_at=8,
    episodes=12,
    tested=True,
    ended=True,
    after=(),
    env="CartPole-v1",
    batch=64,
    stop=None,
):
    """A run of 2 executors: an iteration of two episodes a second, learning for 0.5 s of it, a test for 0.1 s.

    Args:
        name: of the settings.
        seed: of the run.
        solved_at: episodes started when the first passing version was published; None: never.
        episodes: when it ended.
        tested: whether versions are tested.
        ended: whether the log has an end.
        after: verdicts on versions tested after it was solved.
        env: the environment.
        batch: a key of the settings.
        stop: the stop conditions among the settings.
    """
    log = Log()
    host = {"system": "Linux", "machine": "x86_64", "cores": 2}
    log.add(
        0.5,
        "run_start",
        seed=seed,
        schedule="is",
        algorithm="mlxe",
        env=env,
        settings=settings_of(name, seed, tested=tested, batch=batch, stop=stop),
        versions={"torch": "2.0", "mlxe_async": "0.1.0"},
        host=host,
    )
    names = (("mlxe-exe-0", "executor", 0), ("mlxe-exe-1", "executor", 1), ("mlxe-lrn", "learner", None))
    for process, role, idx in names:
        log.add(1.0, "proc_start", role, idx, process=process, pid=1, epoch=1, seconds=0.0)
    rounds = episodes // 2
    for number in range(rounds):
        at = 1.0 + number
        for idx in (0, 1):
            log.phase("generate", "executor", at, 0.2 + 0.1 * idx, idx, rows=10, waits={"lane": 0.1 * idx})
            log.episode(at + 0.3, 2 * number + idx + 1, 20 * (number + 1), 10.0 * (number + 1))
        log.phase("memorize", "memorizer", at + 0.3, 0.1)
        log.phase("learn", "learner", at + 0.4, 0.5, updates=64, rows=100 * (number + 1), lag_mean=float(number))
        log.phase("publish", "learner", at + 0.9, 0.001)
        log.add(at + 0.901, "weights", "learner", version=number + 2, updates=64 * (number + 1))
        if tested:
            passed = solved_at is not None and 2 * number + 2 >= solved_at
            log.add(at + 0.99, "evaluation", "evaluator", version=number + 2, passed=passed)
    end = 1.0 + rounds
    if solved_at is not None:
        published = solved_at / 2 + 0.901
        counts = {"episodes_started": solved_at, "env_steps": 10 * solved_at, "updates": 32 * solved_at}
        log.add(
            end - 0.005,
            "solved",
            version=solved_at // 2 + 1,
            seconds=published - 1.0,
            cpu_seconds=published / 2,
            published_ns=ZERO_NS + round(published * SECOND),
            **counts,
        )
    for verdict in after:
        log.add(end - 0.004, "evaluation", "evaluator", version=99, passed=verdict)
    if ended:
        for process, role, idx in names:
            log.add(end, "proc_exit", role, idx, process=process, expected=True)
        log.add(
            end,
            "run_end",
            reason="solved" if solved_at else "episodes",
            solved=bool(solved_at),
            episodes=episodes,
            env_steps=10 * episodes,
            updates=32 * episodes,
            seconds=end,
            cpu_seconds=end / 2,
            exit_code=0,
        )
    return log.lines


def write_run(base, lines, *, folder="", cpu=None):
    """A run folder with these lines; returns its path."""
    seed, name = lines[0]["seed"], lines[0]["settings"]["run"]["name"]
    path = Path(base) / (folder or f"20260101T{seed:06d}Z-{name}")
    path.mkdir(parents=True)
    (path / "lock").touch()
    (path / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if cpu is not None:
        (path / "status.json").write_text(json.dumps({"cpu_seconds": cpu}))
    return path
