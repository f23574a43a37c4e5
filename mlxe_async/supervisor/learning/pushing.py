"""The handle of a learner that steps by what executors push: A3C, Mnih et al. 2016.

Each push is made of one rollout, by the weights that it was played by, and is applied once, or given up and counted: by
a learner that died over it and could not be asked again, because it is older than the bound on policy lag, because its
losses are not finite, or with its worker. A successor of the learner is asked again with the same number.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from mlxe_async.errors import NumericError, ProcessDied
from mlxe_async.ipc.messages.answers import require
from mlxe_async.ipc.messages.remote_error import RemoteError
from mlxe_async.ipc.processes.process import Process
from mlxe_async.roles.learner import ROLL_BACKS_FORGIVEN
from mlxe_async.supervisor.handles.answers import DIFFERENTIATED
from mlxe_async.supervisor.learning.learner import LearnerHandle, Pushes
from mlxe_async.supervisor.learning.team import workers_of


class Numbered(Protocol):
    """An executor's handle."""

    index: int


def pushed_by(by_role: Mapping[str, Process], most_lag: int | None) -> Callable[..., LearnerHandle]:
    """Return what makes the handle of a learner that steps by the pushes of all workers among the roles."""
    return partial(PushedLearnerHandle, workers_of(by_role), most_lag=most_lag)


class PushedLearnerHandle(LearnerHandle):
    """A learner, and the workers that make its gradients.

    Args:
        workers: role and process of each, in their order.
        most_lag: versions by which a push may be older than the newest; None: any number.
        how: as for `LearnerHandle`.
    """

    def __init__(self, workers: Sequence[tuple[str, Process]], *args: Any, most_lag: int | None, **how: Any) -> None:
        super().__init__(*args, **how)
        self._workers, self._most_lag = workers, most_lag
        self.pushes: Pushes = Pushes()
        self._numbers, self._odd_in_a_row = [0] * len(workers), 0
        self._drawing, self._stepping, self._saving = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self._none_under_way = asyncio.Event()
        self._none_under_way.set()

    @contextlib.asynccontextmanager
    async def resting(self) -> AsyncIterator[None]:
        """Wait until no push is under way, and begin none inside."""
        async with self._saving:
            await self._none_under_way.wait()
            yield

    async def step_by(self, executor: Numbered) -> None:
        """Have the newest rollout of an executor differentiated, and step by that; see `schedules.verbs.Server`."""
        async with self._saving:  # held for no longer than this: it only keeps out who begins while a run is saved
            self.under_way += 1
            self._none_under_way.clear()
        await self._step_by(executor.index)
        self.under_way -= 1
        if not self.under_way:
            self._none_under_way.set()

    async def _step_by(self, lane: int) -> None:
        async with self._drawing:
            plan = await self._memorizer.memorize_of(lane)
        if not plan["updates"]:
            return
        self.pushes.made += 1
        push = await self._differentiated(plan, lane)
        if push is None:
            return
        done = push["done"]
        async with self._stepping:
            lag = self._context.counters.version - push["version"]
            if not done["updates"] or (self._most_lag is not None and lag > self._most_lag):
                self.pushes.too_old += 1
                self._give_up(plan, f"it was {lag} versions old, schedule.max_policy_lag is {self._most_lag}", lane)
                return
            if not done["finite"]:
                self.pushes.odd += 1
                self._give_up(plan, "its losses were not finite", lane)
                self._note_not_finite()
                return
            self._odd_in_a_row = 0
            outcome = await self._learn(plan, lane, push=push)
            setattr(self.pushes, outcome, getattr(self.pushes, outcome) + 1)

    def _note_not_finite(self) -> None:
        """End the run if nothing but such pushes comes any more.

        Raises:
            NumericError: so it is.
        """
        self._odd_in_a_row += 1
        if self._odd_in_a_row > ROLL_BACKS_FORGIVEN:
            raise NumericError(
                f"learner: expected pushes of finite losses, got NaN or infinity {self._odd_in_a_row} times in a row "
                f"after version {self._context.counters.version}; try a smaller learning rate"
            )

    async def _differentiated(self, plan: dict[str, Any], lane: int) -> dict[str, Any] | None:
        """Have a worker push; its answer, or None if nothing came of it."""
        counters, (role, process) = self._context.counters, self._workers[lane]
        self._numbers[lane] += 1
        try:
            answer = await process.call(
                "differentiate",
                role=role,
                check=partial(require, kind=DIFFERENTIATED, what="differentiated"),
                plan=plan,
                number=self._numbers[lane],
                env_steps=counters.env_steps,
                episodes=counters.episodes,
                updates=counters.updates,
            )
        except ProcessDied as error:
            self.pushes.lost += 1
            self._give_up(plan, str(error), lane)
        except RemoteError as error:
            self._raise_unless_forgiven(error)
            self.pushes.odd += 1
            self._give_up(plan, f"update raised {error.message}", lane)
        else:
            return {"worker": lane, "number": self._numbers[lane], **answer}
        return None
