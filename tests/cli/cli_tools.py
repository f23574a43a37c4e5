"""A supervisor that runs no processes, ways to call the command, terminals to show it on, and events to show."""

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import tty
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace

from mlxe_async.logs.events import EpisodeEnd, PhaseEvent, Warning, Weights  # noqa: A004 - the event
from mlxe_async.logs.journal import Journal
from mlxe_async.rows import Spaces
from mlxe_async.supervisor.plan.results import Result

GOOD = '[task]\nenv = "CartPole-v1"\n'


def result(**fields):
    values = {"reason": "episodes", "solved": False, "steps": 1234, "episodes": 5, "updates": 6, "seconds": 7.0}
    return Result(**{**values, "run_dir": Path("runs/x"), "exit_code": 0, "weights_hash": "ab"} | fields)


@dataclass
class FakeSupervisor:
    """Tells a short story through a real journal, then ends as `ends` says; with `waits`, after a request to stop."""

    settings: object = None
    ends: object = None
    waits: bool = False
    log: Path | None = None
    stopped: list = field(default_factory=list)
    subscribers: list = field(default_factory=list)
    wanted: list = field(default_factory=list)
    cancelled: bool = False

    def __post_init__(self):
        self.asked = asyncio.Event()

    def subscribe(self, callback, events=None, columns=None):
        self.subscribers.append(callback)
        self.wanted.append(events)

    def request_stop(self, reason="requested"):
        self.stopped.append(reason)
        self.asked.set()

    async def run(self):
        if isinstance(self.ends, BaseException):
            raise self.ends
        with TemporaryDirectory() as folder, Journal(self.log or Path(folder) / "log.jsonl", "a-run") as journal:
            for subscriber, events in zip(self.subscribers, self.wanted, strict=True):
                journal.subscribe(subscriber, events)
            journal.emit(PhaseEvent("generate", 1, 0.5, 1, rows=1234), "executor", 0)
            journal.emit(EpisodeEnd(0, 0, 200.0, 200, True, 1, 5, 1234), "executor", 0)
            journal.emit(Weights(1, 6, 1234, 5), "learner")
            journal.emit(Warning("a\nb\x1b[31m"))
        try:
            if self.waits:
                print("running", flush=True)
                await self.asked.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return self.ends or result()

    async def check(self):
        facts = {
            "spaces": Spaces((4,), actions=2).to_json(),
            "task": {"max_episode_steps": 500, "notes": ["odd\x1b"]},
            "parameters": [["w", [3, 4]], ["b", [4]]],
        }
        plan, cautions = ["lane-0  1.0 MiB", "total  1.0 MiB"], ["episodes may never end"]
        return SimpleNamespace(start=["lost nothing"], plan=plan, facts=facts, cautions=cautions, survey=[])


def install(monkeypatch, **how):
    """Put the fake in the supervisor's place; returns the list of those made."""
    made = []

    def make(settings, *, resume=None):
        made.append(FakeSupervisor(settings, **how))
        return made[-1]

    module = ModuleType("mlxe_async.supervisor")
    module.Supervisor = make
    monkeypatch.setitem(sys.modules, "mlxe_async.supervisor", module)
    return made


def command(*arguments, folder, **options):
    """Run the command in a process of its own, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "mlxe_async", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


FAKED = """
import sys
from types import ModuleType
sys.path.insert(0, {folder!r})
from cli_tools import FakeSupervisor
module = ModuleType("mlxe_async.supervisor")
module.Supervisor = lambda settings, resume=None: FakeSupervisor(settings, {how})
sys.modules["mlxe_async.supervisor"] = module
from mlxe_async.cli import main
sys.exit(main(sys.argv[1:]))
"""


def start(*arguments, folder, how="waits=True", **options):
    """Start the command with the fake supervisor in a process of its own, and wait until it says that it runs."""
    code = FAKED.format(folder=str(Path(__file__).parent), how=how)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=folder, text=True, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    return process


class Screen:
    """What a terminal shows of what is written to it: the few movements that are used, and no others."""

    def __init__(self, columns=80):
        self.columns = columns
        self.lines = [""]
        self.row = self.column = 0

    def write(self, text):
        position = 0
        while position < len(text):
            match = re.compile(r"\x1b\[(\d*(?:;\d+)*)([A-Za-z])").match(text, position)
            if match:
                self._move(int(match[1]) if match[1].isdigit() else 1, match[2])
                position = match.end()
            else:
                self._put(text[position])
                position += 1

    def _put(self, character):
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row, self.column = self.row + 1, 0  # as terminals do for programs that are not raw
        else:
            assert character.isprintable(), repr(character)
            if self.column == self.columns:
                self.row, self.column = self.row + 1, 0
            self._reach()
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1
        self._reach()

    def _reach(self):
        self.lines += [""] * (self.row + 1 - len(self.lines))

    def _move(self, count, letter):
        match letter:
            case "A":
                assert count <= self.row, "above the top"
                self.row -= count
            case "B":
                self.row = min(self.row + count, len(self.lines) - 1)
            case "K":
                self.lines[self.row] = self.lines[self.row][: self.column]
            case "J":
                self.lines[self.row :] = [self.lines[self.row][: self.column]]
            case "m":
                pass
            case _:
                raise AssertionError(f"an escape sequence that is not expected: {letter}")

    def shown(self):
        lines = [line.rstrip() for line in self.lines]
        while lines and not lines[-1]:
            lines.pop()
        return lines


@contextlib.contextmanager
def terminal(columns=80, rows=24):
    """A stream that is a terminal, and a function that returns what was written to it since, or up to some text."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def written(until=""):
        if not until:
            os.write(theirs, b"<end>")  # a terminal hands on what it gets in pieces
        text = b""
        while not (until.encode() in text if until else text.endswith(b"<end>")):
            text += os.read(ours, 65536)
        return text.decode(errors="replace").removesuffix("<end>")

    try:
        with os.fdopen(theirs, "w") as stream:
            yield stream, written
    finally:
        os.close(ours)


def resize(stream, columns, rows=24):
    fcntl.ioctl(stream, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


SETTINGS = {
    "stop": {"env_steps": 10_000, "episodes": 500, "seconds": 60.0, "solved": True},
    "schedule": {"kind": "oa", "executors": 2, "max_policy_lag": 8},
    "evaluation": {"enabled": True, "passes": 3},
    "memory": {"capacity_rows": 2000},
}
SECOND = 10**9


def run_start(at=1.0, settings=SETTINGS, **fields):
    head = {"run": "20260101T000000Z-x", "algorithm": "mlxe", "env": "CartPole-v1", "schedule": "oa", "seed": 7}
    return {"event": "run_start", "mono_ns": round(at * SECOND), "settings": settings, **head, **fields}


def phase(name, role, at, seconds, idx=None, **fields):
    """A phase that ended at a second."""
    times = {"mono_ns": round(at * SECOND), "start_ns": round((at - seconds) * SECOND), "seconds": seconds}
    return {"event": "phase", "phase": name, "role": role, "idx": idx, **times, **fields}


def episode(at, episodes, env_steps, value):
    counts = {"episodes": episodes, "env_steps": env_steps}
    return {"event": "episode_end", "mono_ns": round(at * SECOND), "episode_return": value, **counts}


def story(seconds=20, executors=2):
    """A run in which executors, learner, memorizer and evaluator do the same every second."""
    yield run_start(settings={**SETTINGS, "schedule": {"kind": "oa", "executors": executors, "max_policy_lag": 8}})
    for index in range(executors):
        yield {"event": "proc_start", "process": f"mlxe-exe-{index}", "role": "executor", "idx": index}
    for process, role in (("mlxe-lrn", "learner"), ("mlxe-eval", "evaluator")):
        yield {"event": "proc_start", "process": process, "role": role, "idx": None}
    for second in range(2, seconds + 1):
        for index in range(executors):
            yield phase("generate", "executor", second, 0.5, index, rows=100)
            yield episode(second, executors * (second - 2) + index + 1, 0, 10.0 * second)
        yield phase("memorize", "memorizer", second, 0.1, rows=200)
        yield phase("learn", "learner", second, 0.9, updates=8, lag_mean=1.5, lag_max=4)
        yield phase("publish", "learner", second, 0.01)
        yield phase("evaluate", "evaluator", second, 0.25, rows=5000)
        yield {"event": "weights", "version": second - 1, "updates": 0, "env_steps": 0, "episodes": 0}
    ledger = {"committed": 1, "kept": 1000, "mono_ns": seconds * SECOND}
    yield {"event": "ledger", **ledger}
    yield {"event": "evaluation", "version": 9, "passed": True, "streak": 2, "return_mean": 50_000.0}
