"""Real runs in this process: a supervisor in a loop, its log line by line, and a way to wait for what it tells."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import uvloop

from mlxe_async.settings import load_settings
from mlxe_async.supervisor import Supervisor

LIMIT_S = 120.0
HERE = Path(__file__).parent

QUICK = {
    "run": {"name": "test", "seed": 3, "python_path": [str(HERE)]},
    "stop": {"env_steps": 1500},
    "task": {"env": "CartPole-v1", "max_episode_steps": 200},
    "schedule": {"kind": "is", "executors": 2},
    "algorithm": {"name": "mlxe", "min_updates": 4, "batch": 64},
    "evaluation": {"enabled": False},
}
EVALUATED = {"enabled": True, "rule": "cap", "max_episode_steps": 300, "screen_steps": 50, "episodes": 3}
TESTED = {"evaluation": EVALUATED, "stop": {"env_steps": 800}}
"What the run `undisturbed` is, beside the quick settings."


def settings(overrides=None, **tables):
    """The quick settings with tables updated, and dotted overrides.

    Updates of `serial` are as fast as those of other kinds, unless told otherwise: all can be compared bit by bit.
    """
    if tables.get("schedule", {}).get("kind") == "serial":
        tables["learner"] = {"fast": True, **tables.get("learner", {})}
    merged = {name: {**QUICK.get(name, {}), **tables.get(name, {})} for name in {**QUICK, **tables}}
    if merged["algorithm"]["name"] != QUICK["algorithm"]["name"]:
        merged["algorithm"] = tables["algorithm"]  # the keys of another one are not its keys
    return load_settings(merged, overrides or {})


class LiveRun:
    """A run under way: `lines` so far, and `saw` to wait for more."""

    def __init__(self, chosen, folder, **more):
        self.supervisor = Supervisor(chosen, run_dir=folder, **more)
        self.lines = []
        self._news = asyncio.Event()
        self.supervisor.subscribe(self._hear)
        self.hooks = []

    def _hear(self, line):
        self.lines.append(line)
        for hook in self.hooks:
            hook(line)
        self._news.set()

    def all(self, event, **fields):
        return [
            line
            for line in self.lines
            if line["event"] == event and all(line.get(name) == value for name, value in fields.items())
        ]

    async def saw(self, event, times=1, after=0, **fields):
        """Wait until lines after the `after`-th have told of `event` so often; returns the last of them."""
        while True:
            found = [line for line in self.all(event, **fields) if line["seq"] >= after]
            if len(found) >= times:
                return found[times - 1]
            self._news.clear()
            await self._news.wait()

    async def enough(self, event, times):
        """Let the run go on until its lines have told of `event` so often, then have it stopped."""
        await self.saw(event, times)
        self.supervisor.request_stop("enough")

    def pid(self, process):
        return self.all("proc_start", process=process)[-1]["pid"]


def killing(*turns):
    """What kills processes of a live run: each `(number of publications, process)`, and waits for its successor."""

    async def kill(run):
        for published, process in turns:
            await run.saw("weights", times=published)
            started = len(run.all("proc_start", process=process))
            os.kill(run.pid(process), signal.SIGKILL)
            await run.saw("proc_start", times=started + 1, process=process)

    return kill


def killing_often(choose, kills, seed, most_s):
    """What kills a process so often, each at a moment drawn, and waits for its successor; `choose(draw)` names it."""
    draw = np.random.default_rng(seed)

    async def kill(run):
        await run.saw("weights", times=2)
        for _ in range(kills):
            process = choose(draw)
            started = len(run.all("proc_start", process=process))
            await asyncio.sleep(draw.uniform(0, most_s))
            if run.all("run_end"):
                return
            os.kill(run.pid(process), signal.SIGKILL)
            again = await run.saw("proc_start", times=started + 1, process=process)
            # Three deaths in one rollout would be taken for its environment's fault, and told.
            await run.saw("weights", after=again["seq"])

    return kill


def on_loop(main):
    """Run a coroutine function on uvloop, within a generous limit."""

    async def bounded():
        async with asyncio.timeout(LIMIT_S):
            return await main()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())
