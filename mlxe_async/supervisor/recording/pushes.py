"""Replays a recorded `oa` run whose executors make gradients: each is made from the same rows, weights and state.

A worker differentiates by the weights that its executor acted by, and from the learner's state as it found it. So its
executor plays no further until it has, and it begins when the learner has come to that state and its rollout was drawn.
The rest happens in the recorded order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxe_async.errors import RunFailed
from mlxe_async.ipc.processes.process import Process
from mlxe_async.roles.parameter_server import STEP
from mlxe_async.supervisor.plan.budget import Counters
from mlxe_async.supervisor.plan.event_log import EventLog
from mlxe_async.supervisor.recording.file import Recorded
from mlxe_async.supervisor.recording.replay import Replay
from mlxe_async.supervisor.recording.steps import (
    Applied,
    Ingested,
    Memorized,
    Pushed,
    Rollout,
    Step,
)


def replay_of(folder: Path) -> Replay:
    """Return the replay of a recorded run.

    Args:
        folder: of the run.

    Raises:
        SettingsError: it has no recording, or a damaged one.
    """
    recorded = Recorded.read(folder)
    pushes = any(isinstance(step, Pushed) for step in recorded.steps)
    return (PushedReplay if pushes else Replay)(folder, recorded)


class PushedReplay(Replay):
    """A recording with pushes, and how far it has been repeated."""

    def _sort(self) -> None:
        executors = range(int(self.recorded.facts["executors"]))
        self._to_play: list[deque[Rollout]] = [deque() for _ in executors]
        self._to_push: list[deque[Pushed]] = [deque() for _ in executors]
        self._plans: dict[int, dict[str, Any]] = {}
        self._used: dict[int, dict[str, Any]] = {}
        self._answers: dict[tuple[int, int], dict[str, Any]] = {}
        self._applied = Applied(())
        self._rests = [True for _ in executors]
        "By executor: its worker has nothing to push."
        self._learning = {step.lane for step in self.recorded.steps if isinstance(step, Memorized)}
        "Executors whose rollouts are learned from; others act greedily."
        for step in self.recorded.steps:
            if isinstance(step, Rollout):
                self._to_play[step.executor].append(step)
            elif isinstance(step, Pushed):
                self._to_push[step.worker].append(step)

    async def _repeat(self, step: Step, by_role: Mapping[str, Process], log: EventLog, now: Counters) -> None:
        match step:
            case Pushed():  # it was made as soon as it could be; the learner publishes before it says so
                if step.state <= self._version:
                    self._expect(step, True, (step.worker, step.number) in self._answers)
            case Applied():
                self._applied = step
            case Memorized(lane=int(lane)):
                self._plans[lane] = await self._drawn(step, by_role, log, settle=self._used.pop(lane, None))
                self._rests[lane] = not self._plans[lane]["updates"]
                await self._further(lane, by_role, log, now)
            case Ingested(lane=int(lane)):
                await self._taken_in(step, by_role, settle=self._used.pop(lane, None))
            case _:
                await super()._repeat(step, by_role, log, now)

    def _to_learn(self) -> dict[str, Any]:
        pushes = [self._answers.pop(push) for push in self._applied.pushes]
        return {"plan": STEP, "pushes": pushes}

    async def _go_on(self, by_role: Mapping[str, Process], log: EventLog, now: Counters) -> None:
        """Each executor plays by itself, when its worker has pushed."""
        for lane in range(len(self._to_play)):
            await self._further(lane, by_role, log, now)

    async def _further(self, lane: int, by_role: Mapping[str, Process], log: EventLog, now: Counters) -> None:
        """Push and play what an executor can by what is published now."""
        if lane in self._plans and not self._rests[lane]:
            pushes = self._to_push[lane]
            if not pushes or pushes[0].state != self._version:
                return
            await self._differentiate(pushes.popleft(), by_role)
            self._rests[lane] = True
        rollouts = self._to_play[lane]
        while lane not in self._learning and rollouts and rollouts[0].version == self._version:
            await self._play([rollouts.popleft()], by_role, log, now)
        if self._rests[lane] and rollouts and rollouts[0].version < self._version:
            # Workers once took up what the learner had kept and not yet published.
            raise RunFailed(
                f"{self._at(rollouts[0])}: executor {lane} played by weights {rollouts[0].version} after its worker "
                f"had met the learner's state {self._version}, published a moment later: this cannot be repeated"
            )
        if self._rests[lane] and rollouts and rollouts[0].version == self._version:
            self._rests[lane] = False
            self._plans.pop(lane, None)
            await self._play([rollouts.popleft()], by_role, log, now)

    async def _differentiate(self, step: Pushed, by_role: Mapping[str, Process]) -> None:
        role, plan = f"worker-{step.worker}", self._plans[step.worker]
        about = await by_role[role].call(
            "differentiate",
            role=role,
            plan=plan,
            number=step.number,
            place=step.place,
            env_steps=step.env_steps,
            episodes=step.episodes,
            updates=step.updates,
        )
        self._expect(step, (step.version, step.state), (about["version"], about["state"]))
        self._used[step.worker] = plan
        address = {"worker": step.worker, "number": step.number, "place": step.place}
        self._answers[step.worker, step.number] = {**address, **about}
