"""Decides what the next episodes are: which stage of a curriculum, which items of a data set, and wrappers' states.

All is decided in the supervisor and goes to executors with each rollout. Where they wait for each other, it changes
only between two rounds, by what all have delivered, in the order of their numbers: who was faster changes nothing, and
a rollout that is generated again has the same stage and items. Elsewhere it changes with each delivery. An episode that
is under way stays what it began as.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlxe_async.roles.dealing import Dealer
from mlxe_async.roles.wrapper_states import VersionStates
from mlxe_async.settings.task import Stage

Tell = Callable[[int, str], None]


class Curriculum:
    """Stages, one after the other.

    Args:
        stages: of the settings, two or more.
        tell: hears the number of each stage that begins, and why the one before it is over.
    """

    def __init__(self, stages: Sequence[Stage], tell: Tell) -> None:
        self._stages, self._tell = stages, tell
        self.stage = 0
        self._began = 0  # environment steps of the run
        self._returns: deque[float] = deque(maxlen=stages[0].over_episodes)

    def heard(self, stages: Sequence[int], returns: Sequence[float]) -> None:
        """Episodes ended; those that had begun in an earlier stage do not count."""
        self._returns.extend(value for stage, value in zip(stages, returns, strict=True) if stage == self.stage)

    def advance(self, env_steps: int) -> None:
        """Go on to the next stage if this one is over, the run being so far."""
        reason = self._why_over(env_steps)
        if reason:
            self.stage, self._began = self.stage + 1, env_steps
            self._returns = deque(maxlen=self._stages[self.stage].over_episodes)
            self._tell(self.stage, reason)

    def _why_over(self, env_steps: int) -> str:
        if self.stage == len(self._stages) - 1:
            return ""
        now, count = self._stages[self.stage], len(self._returns)
        if now.until_return is not None and count == now.over_episodes:
            mean = math.fsum(self._returns) / count
            if mean >= now.until_return:
                return f"mean return {mean:.6g} of its last {count} episodes, {now.until_return:g} was asked for"
        lasted = env_steps - self._began
        if now.until_steps is not None and lasted >= now.until_steps:
            return f"it has lasted for {lasted} steps, {now.until_steps} were asked for"
        return ""

    def state(self) -> dict[str, Any]:
        """All that the next decision depends on, as plain JSON types."""
        return {"stage": self.stage, "began": self._began, "returns": list(self._returns)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.stage, self._began = int(state["stage"]), int(state["began"])
        self._returns = deque(state["returns"], maxlen=self._stages[self.stage].over_episodes)


class Lessons:
    """Curriculum, items and wrappers' states of one run.

    Args:
        curriculum: None: there are no stages.
        dealer: None: episodes have no items.
        states: what wrappers keep; None: they keep nothing.
        in_rounds: decide between rounds alone.
        env_steps: how far the run is.
    """

    def __init__(
        self,
        curriculum: Curriculum | None,
        dealer: Dealer | None,
        *,
        in_rounds: bool,
        env_steps: Callable[[], int],
        states: VersionStates | None = None,
    ) -> None:
        self._curriculum, self._dealer, self._in_rounds = curriculum, dealer, in_rounds
        self.states = states
        self._env_steps = env_steps
        self._heard: dict[int, list[Mapping[str, Any]]] = {}

    @property
    def stage(self) -> int:
        """The stage that episodes begin in now."""
        return self._curriculum.stage if self._curriculum is not None else 0

    def begin_round(self) -> None:
        """A round begins; one that was interrupted goes on with what it was dealt."""
        if self._in_rounds and self._dealer is not None:
            self._dealer.deal()

    def asked(self, index: int) -> dict[str, Any]:
        """Return what executor `index` is to be told with its next rollout."""
        told: dict[str, Any] = {}
        if self._curriculum is not None:
            told["stage"] = self._curriculum.stage
        if self._dealer is not None:
            self._dealer.deal()
            taken = self._dealer.taken or []
            told["hand"] = {**self._dealer.hand(index).to_json(), "taken": taken[index]}
        if self.states is not None:
            told["wrappers"] = self.states.told
        return told

    def delivered(self, index: int, report: Mapping[str, Any]) -> None:
        """Hear of a rollout."""
        if self._dealer is not None:
            self._dealer.take(index, report.get("taken", 0))
        if self.states is not None and "wrappers" in report:
            self.states.heard(report["wrappers"])
        if self._curriculum is not None:
            ended = report["episodes"]
            self._heard.setdefault(index, []).append({"stage": ended["stage"], "return": ended["return"]})
        if not self._in_rounds:
            self._decide()

    def end_round(self) -> None:
        """All have delivered."""
        if self._in_rounds:
            self._decide()
            if self._dealer is not None:
                self._dealer.settle()
            if self.states is not None:
                self.states.end_round()

    def _decide(self) -> None:
        heard, self._heard = self._heard, {}
        if self._curriculum is None:
            return
        for index in sorted(heard):
            for ended in heard[index]:
                self._curriculum.heard(ended["stage"], ended["return"])
        self._curriculum.advance(self._env_steps())

    def state(self) -> dict[str, Any]:
        """All of it as plain JSON types."""
        return {
            "curriculum": None if self._curriculum is None else self._curriculum.state(),
            "dealer": None if self._dealer is None else self._dealer.state(),
            "heard": [[index, list(told)] for index, told in self._heard.items()],
            **({} if self.states is None else {"wrappers": self.states.state()}),
        }

    def restore(self, state: Mapping[str, Any], version: int = 0) -> None:
        """Go on from there, with the weights of this version.

        Rollouts that were under way are generated again, or, out of rounds, have taken nothing.
        """
        if self._curriculum is not None and state["curriculum"] is not None:
            self._curriculum.restore(state["curriculum"])
        if self._dealer is not None and state["dealer"] is not None:
            self._dealer.restore(state["dealer"], keeps_deal=self._in_rounds)
        if self.states is not None and "wrappers" in state:
            self.states.restore(state["wrappers"], version)
        self._heard = {int(index): list(told) for index, told in state["heard"]}
