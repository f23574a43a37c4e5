"""A process with one executor in it, in virtual time: it takes steps, dies now and then, and obeys its word."""

import asyncio
import random

from mlxe_async.errors import ProcessDied
from mlxe_async.ipc.messages.remote_error import RemoteError
from mlxe_async.supervisor.handles.context import ExecutorWords, HandleContext, RolloutRules
from mlxe_async.supervisor.handles.executor import ExecutorHandle
from mlxe_async.supervisor.plan.budget import Bell, Budget, Counters


class Nothing:
    """Takes any call."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


class Room:
    """A memorizer that always has room."""

    has_room = True
    expect = delivered = lambda self: None


class FakeProcess:
    """Episodes of random lengths; what its handle asks for is looked at between steps, as the real executor does."""

    def __init__(self, seed, deaths=0.0, gives_up_after=None):
        self.random = random.Random(seed)  # noqa: S311 - orders events, guards no secret
        self.deaths, self.gives_up_after = deaths, gives_up_after
        self.asked = 0
        self.handle = None
        self.calls = []
        self.begun_episodes = 0
        self._episode, self._step, self._running = 0, 0, False

    def note_progress(self):
        pass

    def die(self):
        """The next life begins after what was under way."""
        (self._episode,) = self.handle.next_episodes
        self._running = False

    async def call(self, verb, *, role, rollout, version, finished_episodes, attempt, unfinished, check, steps=0):
        assert verb == "generate"
        self.calls.append((rollout, version, attempt))
        if self.gives_up_after is not None and len(self.calls) > self.gives_up_after:
            raise RemoteError("TooManyFaults", "broken again and again")
        rows, episodes = 0, {"return": [], "steps": []}
        while True:
            if not self._running:
                self._running, self._step = True, 0
                self.begun_episodes += 1
            await asyncio.sleep(self.random.random())
            if self.random.random() < self.deaths:
                self.die()
                raise ProcessDied("killed")
            rows += 1
            self._step += 1
            if self.random.random() < 0.1:
                episodes["return"].append(float(self._step))
                episodes["steps"].append(self._step)
                self._running = False
                self._episode += 1
                break
            if unfinished is not None and self.asked > rollout:
                if unfinished == "drop":
                    self._running = False
                    self._episode += 1
                break
        if self.random.random() < self.deaths:
            self.die()
            raise ProcessDied("killed with its answer on the lips")
        return {
            "rows": rows,
            "blocks": 1,
            "version": version,
            "episodes": episodes,
            "moved": [0],
            "begun": [self._episode],
            "running": [self._running],
            "out_of_bounds": 0,
            "rss_mb": None,
            "seconds": 1.0,
            "lane_wait_s": 0.0,
            "ingested": [],
            "action_changes": None,
        }


def context_of(stop, *, free_running=False, deterministic=False):
    counters, bell = Counters(), Bell()
    budget = Budget(stop, counters, bell)
    return HandleContext(budget, counters, bell, Nothing(), free_running=free_running, deterministic=deterministic)


def executor_of(context, index, *, seed=0, deaths=0.0, gives_up_after=None, **more):
    process = FakeProcess(100 * seed + index, deaths, gives_up_after)
    words = ExecutorWords(lambda rollouts: setattr(process, "asked", rollouts))
    process.handle = ExecutorHandle(index, process, context, Room(), 1, rules=RolloutRules(**more), words=words)
    return process.handle
