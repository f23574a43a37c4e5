"""A supervisor that runs no processes, and ways to call the command."""

import asyncio
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace

from mlxe_async.logs.events import EpisodeEnd, PhaseEvent, Warning, Weights  # noqa: A004 - the event
from mlxe_async.logs.journal import Journal

GOOD = '[task]\nenv = "CartPole-v1"\n'


def result(**fields):
    values = {"reason": "episodes", "solved": False, "steps": 1234, "episodes": 5, "updates": 6, "seconds": 7.0}
    return SimpleNamespace(**{**values, "run_dir": Path("runs/x"), "exit_code": 0, "weights_hash": "ab"} | fields)


@dataclass
class FakeSupervisor:
    """Tells a short story through a real journal, then ends as `ends` says; with `waits`, after a request to stop."""

    settings: object = None
    ends: object = None
    waits: bool = False
    log: Path | None = None
    stopped: list = field(default_factory=list)
    subscribers: list = field(default_factory=list)
    cancelled: bool = False

    def __post_init__(self):
        self.asked = asyncio.Event()

    def subscribe(self, callback):
        self.subscribers.append(callback)

    def request_stop(self, reason="requested"):
        self.stopped.append(reason)
        self.asked.set()

    async def run(self):
        if isinstance(self.ends, BaseException):
            raise self.ends
        with Journal(self.log or "/dev/null", "a-run") as journal:
            for subscriber in self.subscribers:
                journal.subscribe(subscriber)
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
            "spaces": {"observation_shape": [4], "observation_dtype": "<f4", "actions": 2},
            "task": {"max_episode_steps": 500, "notes": ["odd\x1b"]},
            "parameters": [["w", [3, 4]], ["b", [4]]],
        }
        return SimpleNamespace(plan=["lane-0  1.0 MiB", "total  1.0 MiB"], facts=facts)


def install(monkeypatch, **how):
    """Put the fake in the supervisor's place; returns the list of those made."""
    made = []

    def make(settings):
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
module.Supervisor = lambda settings: FakeSupervisor(settings, {how})
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
