"""The handle of a learner that steps by what executors push: A3C, Mnih et al. 2016; Gorila, Nair et al. 2015.

Each push is applied once, or not at all and counted: its worker or the learner died over it, it is older than the bound
on policy lag, its losses are not finite or far off, or it gave way to newer ones. A successor of the learner is asked
again with the same number, and finds the pushes where they were.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from mlxe_async.errors import NumericError, ProcessDied
from mlxe_async.ipc.messages.remote_error import RemoteError
from mlxe_async.ipc.processes.process import Process
from mlxe_async.maths.outliers import Outliers
from mlxe_async.roles.learner import ROLL_BACKS_FORGIVEN
from mlxe_async.roles.parameter_server import STEP
from mlxe_async.settings.combining import Combining
from mlxe_async.supervisor.handles.answers import DIFFERENTIATED
from mlxe_async.supervisor.learning.learner import LearnerHandle, Pushes
from mlxe_async.supervisor.learning.team import workers_of
from mlxe_async.supervisor.plan.budget import Bell
from mlxe_async.supervisor.recording.steps import Applied, Pushed


class Numbered(Protocol):
    """An executor's handle."""

    index: int


@dataclass(eq=False)
class Push:
    """A push that lies in a place.

    Args:
        about: the `worker`, `number` and `place`, and what the worker answered.
        used: set when it is done with.
    """

    about: dict[str, Any]
    used: asyncio.Event = field(default_factory=asyncio.Event)


def pushed_by(by_role: Mapping[str, Process], how: Combining) -> Callable[..., LearnerHandle]:
    """Return what makes the handle of a learner that steps by the pushes of all workers among the roles."""
    return partial(PushedLearnerHandle, workers_of(by_role), how)


class PushedLearnerHandle(LearnerHandle):
    """A learner, and the workers that make its gradients.

    Args:
        workers: role and process of each, in their order.
        combining: how pushes are put together.
        how: as for `LearnerHandle`.
    """

    def __init__(self, workers: Sequence[tuple[str, Process]], combining: Combining, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._workers, self._how = workers, combining
        self.pushes: Pushes = Pushes()
        self._numbers, self._odd_in_a_row = [0] * len(workers), 0
        self._free = [list(range(combining.places)) for _ in workers]
        self._waiting: deque[Push] = deque()
        most = combining.most_deviations
        self._outliers = None if most is None else Outliers(most)
        self._drawing, self._bell = asyncio.Lock(), Bell()
        self._is_resting = self._is_stepping = self._is_closed = False

    @contextlib.asynccontextmanager
    async def resting(self) -> AsyncIterator[None]:
        """Wait until none is pushed or stepped by, and begin nothing inside; pushes that wait for others stay."""
        await self._bell.wait_until(lambda: not self._is_resting)
        self._is_resting = True
        try:
            await self._bell.wait_until(lambda: not (self.under_way or self._is_stepping or self._is_enough))
            yield
        finally:
            self._is_resting = False
            self._bell.ring()

    @contextlib.asynccontextmanager
    async def stepping(self) -> AsyncIterator[None]:
        """See `schedules.verbs.Server`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._step_by_all())
            yield
            self._is_closed = True
            self._bell.ring()
        while self._waiting:
            self._end(self._waiting.popleft(), "given_up")

    # -- pushing ------------------------------------------------------------------------------------------------------

    async def push_of(self, executor: Numbered) -> None:
        """See `schedules.verbs.Server`."""
        if executor.index >= len(self._workers):  # its rows are not learned from
            return
        if self._is_resting:
            await self._bell.wait_until(lambda: not self._is_resting)
        self.under_way += 1
        try:
            await self._pushed(executor.index)
        finally:
            self.under_way -= 1
            if self._is_resting:  # `resting` alone waits for this
                self._bell.ring()

    async def _pushed(self, lane: int) -> None:
        """Push by a rollout, or by as many minibatches as are due."""
        while True:
            async with self._drawing:
                plan = await self._memorizer.memorize_of(lane)
            if not plan["updates"]:
                return
            is_left_over = await self._push(plan, lane)
            if ("slots" in plan and not is_left_over) or self._context.ending:
                return

    async def _push(self, plan: dict[str, Any], lane: int) -> bool:
        """Push by a plan; True if its rollout was played by older weights: that of the executor's is behind it."""
        self.pushes.made += 1
        place = await self._place(lane)
        push = await self._differentiated(plan, lane, place)
        if push is None:
            self._free[lane].append(place)
            return False
        self._memorizer.used(plan, lane)
        if (refused := self._refused(push.about)) is not None:
            self._end(push, refused)
            return refused == "too_old"
        self._waiting.append(push)
        self._note_waiting()
        if self._how.waits and self._may_step:
            await self._step()  # not by the task that waits for pushes: that would take turns of the loop
        else:
            self._bell.ring()
        if self._how.waits:
            await push.used.wait()
        return False

    async def _place(self, lane: int) -> int:
        """A free place of a worker; the oldest push that waits gives way, or it is waited for."""
        free = self._free[lane]
        if not free and self._how.gives_way:
            oldest = next((one for one in self._waiting if one.about["worker"] == lane), None)
            if oldest is not None:
                self._waiting.remove(oldest)
                self._end(oldest, "given_up")
        if not free:
            await self._bell.wait_until(lambda: bool(free))
        return free.pop(0)

    def _refused(self, about: Mapping[str, Any]) -> str | None:
        """Return the count that a push belongs to which is not to be applied.

        Raises:
            NumericError: nothing but such comes any more.
        """
        done = about["done"]
        if not done["updates"]:
            self._note_fruitless("its rows were played by other weights than its executor has")
            return "too_old"
        losses = [value for name, value in done["metrics"].items() if name.endswith("loss")]
        if not done["finite"] or None in losses:
            self._note_fruitless("its losses were not finite")
            self._odd_in_a_row += 1
            if self._odd_in_a_row > ROLL_BACKS_FORGIVEN:
                raise NumericError(
                    f"learner: expected pushes of finite losses, got NaN or infinity {self._odd_in_a_row} times in a "
                    f"row after version {self._context.counters.version}; try a smaller learning rate"
                )
            return "odd"
        self._odd_in_a_row = 0
        if self._outliers is not None and self._outliers.hears(sum(losses)):
            return "outliers"
        return None

    async def _differentiated(self, plan: dict[str, Any], lane: int, place: int) -> Push | None:
        """Have a worker push; None if nothing came of it."""
        counters, (role, process) = self._context.counters, self._workers[lane]
        self._numbers[lane] += 1
        asked = {
            "number": self._numbers[lane],
            "place": place,
            "env_steps": counters.env_steps,
            "episodes": counters.episodes,
            "updates": counters.updates,
        }
        try:
            answer = await process.call(
                "differentiate",
                role=role,
                check=DIFFERENTIATED.require,
                plan=plan,
                **asked,
            )
        except ProcessDied as error:
            self.pushes.lost += 1
            self._give_up(plan, str(error), lane)
        except RemoteError as error:
            self._raise_unless_forgiven(error)
            self.pushes.odd += 1
            self._give_up(plan, f"update raised {error.message}", lane)
        else:
            self._context.recorder.note(Pushed(worker=lane, version=answer["version"], state=answer["state"], **asked))
            return Push({"worker": lane, "number": asked["number"], "place": place, **answer})
        return None

    # -- stepping -----------------------------------------------------------------------------------------------------

    @property
    def _is_enough(self) -> bool:
        return len(self._waiting) >= self._how.pushes + self._how.lag

    @property
    def _may_step(self) -> bool:
        return not self._is_stepping and self._is_enough

    async def _step_by_all(self) -> None:
        while True:
            await self._bell.wait_until(lambda: self._may_step or self._is_closed)
            if not self._may_step:
                return
            await self._step()

    async def _step(self) -> None:
        self._is_stepping = True
        try:
            await self._step_by_oldest()
        finally:
            self._is_stepping = False
            self._bell.ring()

    async def _step_by_oldest(self) -> None:
        """Step by the oldest pushes that are young enough, if there are as many as are wanted."""
        chosen: list[Push] = []
        while self._waiting and len(chosen) < self._how.pushes:
            push = self._waiting.popleft()
            lag = self._context.counters.version - push.about["version"]
            if self._how.most_lag is not None and lag > self._how.most_lag:
                self._note_fruitless(f"it was {lag} versions old, schedule.max_policy_lag is {self._how.most_lag}")
                self._end(push, "too_old")
            else:
                chosen.append(push)
        if len(chosen) < self._how.pushes:
            self._waiting.extendleft(reversed(chosen))
            return
        self._note_waiting()
        about = [push.about for push in chosen]
        self._context.recorder.note(Applied(tuple((one["worker"], one["number"]) for one in about)))
        before = self._context.counters.version
        outcome = await self._learn(STEP, pushes=about)
        if self._how.by_score and outcome == "applied" and self._context.counters.version == before:
            outcome = "beaten"
        for push in chosen:
            self._end(push, outcome)

    def _used(self, plan: dict[str, Any]) -> None:
        """Nothing is left to do: its rows were given back when they had been differentiated."""

    def _end(self, push: Push, outcome: str) -> None:
        """A push is done with: count it, and free its place."""
        setattr(self.pushes, outcome, getattr(self.pushes, outcome) + 1)
        self._free[push.about["worker"]].append(push.about["place"])
        push.used.set()
        self._note_waiting()

    def _note_waiting(self) -> None:
        self.pushes.waiting = len(self._waiting)
