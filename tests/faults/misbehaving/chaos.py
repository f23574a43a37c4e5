"""An environment with one fault, which comes at a place that follows from its arguments alone."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from misbehaving import faults
from mlxe_async.testing.counting import CountingEnv
from mlxe_async.testing.whereabouts import whereabouts

FAULTS: dict[str, Callable[[Any, Any], Any]] = faults.FAULTS
"""Name -> what it does, as `fault(env, answer)`, which returns another answer, raises, or never comes back."""

WHERE = ("step", "reset", "make", "close")


@dataclass
class _Life:
    """Counts of this process, over all environments in it: a fault must not come anew with each rebuilt one."""

    steps: int = 0
    resets: int = 0
    makes: int = 0
    closes: int = 0
    fired: int = 0


LIFE = _Life()


class ChaosEnv(CountingEnv):
    """`CountingEnv` with one fault.

    Several faults in a list come one after the other, one at each time, or one in each life if it ends the life.

    When the fault comes: in the `executor` given, at the `step`-th call of `where` in this life of its process and, if
    `every` is set, at every so many-th after it; or with `probability` at each call, drawn from `seed`, the executor,
    its life and the number of the call. It comes at most `times` times a life, and only in the first `lives` lives. So
    the same arguments give the same faults, however often and on whatever machine.

    Args:
        fault: one of `FAULTS`, or a list of them; `"none"` never misbehaves.
        executor: which executor; -1: all of them.
        step: the first call at which it comes, counted from 1 over all environments of the process; 0: never by count.
        every: comes again after so many calls; 0: once.
        episode: comes in this episode of an environment only, counted from 0; -1: in any.
        probability: chance at each call, instead of `step`.
        seed: of that chance.
        times: most times in one life of the process; 0: any number; -1: as often as there are faults in the list.
        lives: only so many lives of the process misbehave; 0: all; -1: as many as there are faults in the list.
        where: `"step"`, `"reset"`, `"make"` or `"close"`.
        roles: processes in which it may come: of `"executor"`, `"serial"`, `"outside"`, `"evaluator"`, `"probe"`.
        seconds: what the fault does with time, where it does: how long it sleeps.
        amount: what the fault does with size, where it does: MB it prints, leaks or returns.
        space: shows another observation space: one of `faults.SPACES`.
        pause_s: every step takes so long; no fault, only slow.
        length: see `CountingEnv`.
        spread: see `CountingEnv`.
        ending: see `CountingEnv`.

    Raises:
        ValueError: a fault, place or space that does not exist.
    """

    def __init__(
        self,
        fault: str | list[str] = "none",
        executor: int = 0,
        step: int = 0,
        every: int = 0,
        episode: int = -1,
        probability: float = 0.0,
        seed: int = 0,
        times: int = -1,
        lives: int = -1,
        where: str = "step",
        roles: tuple[str, ...] | list[str] = ("executor", "serial", "outside"),
        seconds: float = 1e9,
        amount: int = 100,
        space: str = "",
        pause_s: float = 0.0,
        length: int = 20,
        spread: int = 0,
        ending: str = "terminated",
    ) -> None:
        super().__init__(length, spread, ending)
        self.reset_seed: int | None = None
        self._faults = [fault] if isinstance(fault, str) else list(fault)
        named = [("fault", name, FAULTS) for name in self._faults]
        for key, value, known in (*named, ("where", where, WHERE)):
            if value not in known:
                raise ValueError(f"{key}: expected one of {', '.join(known)}, got {value!r}")
        if space and space not in faults.SPACES:
            raise ValueError(f"space: expected one of {', '.join(faults.SPACES)}, got {space!r}")
        self.seconds, self.amount = seconds, amount
        self._executor, self._step, self._every, self._episode = executor, step, every, episode
        self._probability, self._seed, self._where, self._pause_s = probability, seed, where, pause_s
        self._times, lives = (len(self._faults) if limit < 0 else limit for limit in (times, lives))
        self._here = whereabouts()
        self._here_at_all = (
            self._here.role in roles
            and (executor in (-1, self._here.index) or self._here.role in ("evaluator", "probe"))
            and (lives == 0 or self._here.epoch <= lives)
        )
        self._present = "none"
        self._say: Callable[[Any], Any] | None = None
        if space:
            shown, self._say = faults.SPACES[space]
            if space.startswith("action "):
                self.action_space = shown()
            else:
                self.observation_space = shown()
        LIFE.makes += 1
        if where == "make" and self._is_time(LIFE.makes):
            self._misbehave(None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin the next episode, perhaps wrongly."""
        LIFE.resets += 1
        self.reset_seed = seed
        obs, info = super().reset(seed=seed, options=options)
        answer = (self._shown(obs), info)
        if self._where == "reset" and self._is_time(LIFE.resets):
            return self._misbehave(answer)
        return answer

    def step(self, action: Any) -> Any:
        """One step further, perhaps wrongly; a step that is not answered as it should be does not count."""
        LIFE.steps += 1
        before = self.place
        if self._pause_s:
            time.sleep(self._pause_s)
        obs, *rest = super().step(action)
        answer = (self._shown(obs), *rest)
        if self._where == "step" and self._is_time(LIFE.steps):
            self.place = before
            answer = self._misbehave(answer)
            if self._present in faults.HARMLESS:
                self.place = before.after_one_step()
        return answer

    def close(self) -> None:
        """Close, perhaps wrongly."""
        LIFE.closes += 1
        if self._where == "close" and self._is_time(LIFE.closes):
            self._misbehave(None)
        super().close()

    def _shown(self, obs: Any) -> Any:
        return obs if self._say is None else self._say(int(self.place.step))

    def _is_time(self, count: int) -> bool:
        if not self._here_at_all or (self._times and self._times <= LIFE.fired):
            return False
        if self._episode not in (-1, self.place.episode):
            return False
        if self._probability:
            draw = f"{self._seed}/{self._here.index}/{self._here.epoch}/{self._where}/{count}"
            return random.Random(draw).random() < self._probability  # noqa: S311 - chooses faults, guards no secret
        late = count - self._step
        return self._step > 0 and (late == 0 or (late > 0 and self._every > 0 and late % self._every == 0))

    def _misbehave(self, answer: Any) -> Any:
        self._present = self._faults[(max(0, self._here.epoch - 1) + LIFE.fired) % len(self._faults)]
        LIFE.fired += 1
        return FAULTS[self._present](self, answer)
