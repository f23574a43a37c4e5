"""One test of one version: its rules, how far it is, and what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from mlxe_async.algorithms.interface import Acting
from mlxe_async.rows import Array
from mlxe_async.seeds import derive_seed, generator
from mlxe_async.settings.model import UNLIMITED_TEST_STEPS, Evaluation

Floats = NDArray[np.float32]
Starts = Literal["standard", "adverse"]
_LEFT_OUT = Evaluation()


class GreedyPolicy(Protocol):
    """All that testing needs of an algorithm."""

    def greedy_many(self, flats: Floats, obs: Array) -> Array:
        """Best actions (V, B, ...) of V versions (V, P) on their observations (V, B, O); `flats` is never changed."""
        ...


class BehavingPolicy(Protocol):
    """All that testing with sampled actions needs of an algorithm."""

    def load(self, flat: Floats) -> None:
        """Act with these weights (P,) from now on."""
        ...

    def act(self, obs: Array, rng: np.random.Generator, acting: Acting) -> Mapping[str, Array]:
        """`action` (B, ...) for observations (B, O), among others."""
        ...


class Sampled:
    """A behaviour in the place of a greedy policy: actions are drawn, as in training, by a generator of its own.

    It tests one version at a time, so that the draws of one do not depend on the others.

    Args:
        algorithm: whose behaviour is tested; its weights are replaced.
        seed: of the draws.
        acting: how far the run was, for what is annealed by that.
    """

    def __init__(self, algorithm: BehavingPolicy, seed: int, acting: Acting | None = None) -> None:
        self._algorithm, self._acting = algorithm, replace(acting or Acting(), began=None, carry={})
        self.carry = getattr(algorithm, "carry", ())
        self._rng = generator(seed, "evaluation.actions")
        self._flats: Floats | None = None

    def greedy_many(self, flats: Floats, obs: Array) -> Array:
        """Actions (1, B, ...) drawn by the one version (1, P) for its observations (1, B, O).

        Raises:
            ValueError: there are several versions.
        """
        if len(flats) != 1:
            raise ValueError(f"a test with sampled actions: expected one version at a time, got {len(flats)}")
        if self._flats is not flats:
            self._flats = flats
            self.load(flats[0])
        actions = np.asarray(self._algorithm.act(obs[0], self._rng, self._acting)["action"])
        self._acting.steps += len(actions)  # by which noise in weights is drawn anew, as in training
        return actions[None]

    def load(self, flat: Floats) -> None:
        """Draw by these weights (P,) from now on."""
        self._algorithm.load(flat)

    def greedy(self, obs: Array, acting: Acting) -> Array:
        """Actions (B, ...) drawn for observations (B, O), with what is carried in `acting`."""
        now = replace(self._acting, began=acting.began, carry=acting.carry)
        actions = np.asarray(self._algorithm.act(obs, self._rng, now)["action"])
        self._acting.steps += len(actions)
        return actions


@dataclass(frozen=True)
class Rules:
    """The `[evaluation]` table as far as a test needs it, and `starts`, which only tests asked for by hand change.

    Without a rule nothing is judged: episodes run to their end, and their returns are told. `"adverse"` restarts are
    the standard ones moved to a hard place, a quarter of them in each of four ways. `first` is the number of the first
    restart. With `in_full` no failure ends the test early, and the verdict has the return of each episode.
    """

    rule: str | None = None
    episodes: int = _LEFT_OUT.episodes
    max_episode_steps: int = UNLIMITED_TEST_STEPS
    screen_steps: int = _LEFT_OUT.screen_steps
    in_flight: int = _LEFT_OUT.in_flight
    threshold: float = 0.0
    seed: int = _LEFT_OUT.seed
    starts: Starts = "standard"
    first: int = 0
    in_full: bool = False

    @classmethod
    def from_mapping(cls, evaluation: Mapping[str, Any]) -> Rules:
        """Read an `[evaluation]` table; keys that concern others, and those left empty, are passed over."""
        return cls(**{key: evaluation[key] for key in cls.__annotations__ if evaluation.get(key) is not None})

    def judge(self, mean: float, failed_at: int | None, fault: str) -> bool | None:
        """Return whether a test passed; None where there is no rule."""
        if self.rule is None:
            return None
        return (failed_at is None if self.rule == "cap" else mean >= self.threshold) and not fault

    @property
    def seeds(self) -> list[int]:
        """Seeds of the restarts, the same for every version and every run."""
        return [
            derive_seed(self.seed, "evaluation.restart", index)
            for index in range(self.first, self.first + self.episodes)
        ]

    def resets(self, *, of_test_set: bool) -> list[int]:
        """Return a seed for each restart; of a task with a test set, see `tasks.items`, the number of a test."""
        first = self.seed + self.first
        return list(range(first, first + self.episodes)) if of_test_set else self.seeds


@dataclass(frozen=True)
class Verdict:
    """What a test found.

    Args:
        version: the version that was tested.
        passed: whether it met the rule; None: there was none.
        episodes: restarts of the test.
        steps: environment steps spent, all restarts together.
        return_min: the smallest return, of the environment's own rewards, up to where the test stopped.
        return_mean: their mean.
        seconds: this version's share of the computing time.
        failed_at: the step of the first restart that ended too early; None for a pass and for `"mean_return"`.
        fault: what the environment did wrong, when that is why the test failed; else empty.
        returns: of each episode, for a test in full.
    """

    version: int
    passed: bool | None
    episodes: int
    steps: int
    return_min: float
    return_mean: float
    seconds: float
    failed_at: int | None = None
    fault: str = ""
    returns: tuple[float, ...] = ()


def joined(parts: Sequence[Verdict], rules: Rules) -> Verdict:
    """The verdict on all episodes of several tests of one version.

    Args:
        parts: the tests, each of other restarts.
        rules: what they were judged by.
    """
    episodes = sum(part.episodes for part in parts)
    mean = sum(part.return_mean * part.episodes for part in parts) / episodes
    failed_at = min((part.failed_at for part in parts if part.failed_at is not None), default=None)
    fault = next((part.fault for part in parts if part.fault), "")
    return Verdict(
        version=parts[0].version,
        passed=rules.judge(mean, failed_at, fault),
        episodes=episodes,
        steps=sum(part.steps for part in parts),
        return_min=min(part.return_min for part in parts),
        return_mean=mean,
        seconds=sum(part.seconds for part in parts),
        failed_at=failed_at,
        fault=fault,
        returns=tuple(value for part in parts for value in part.returns),
    )


@dataclass(eq=False)
class Trial:
    """One version on its way through its restarts.

    Args:
        version: its number.
        flat: its weights (P,).
        rules: what it has to do.
        state: what wrappers know at the beginning of each episode.

    Attributes:
        ticks: steps that the restarts still running have taken.
        seconds, steps: what the test cost so far.
        done: nothing more to find out.
        returns: sums of the environment's rewards so far (B,).
        finished: restarts whose episode has ended (B,).
        states, obs: where the episodes stand, between two blocks.
        acting: what acting carries from step to step, where it carries something.
    """

    version: int
    flat: Floats
    rules: Rules
    state: str | None = None
    ticks: int = 0
    seconds: float = 0.0
    steps: int = 0
    done: bool = False
    failed_at: int | None = None
    fault: str = ""
    faults: int = 0
    states: NDArray[np.float64] | None = None
    obs: Array | None = None
    acting: Acting | None = None
    returns: NDArray[np.float64] = field(init=False)
    finished: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.returns = np.zeros(self.rules.episodes)
        self.finished = np.zeros(self.rules.episodes, bool)

    def fail(self, step: int) -> None:
        """The rule is broken in this step: nothing more to find out, unless all episodes are to be told."""
        self.failed_at = self.failed_at or step
        self.done = self.done or not self.rules.in_full

    def verdict(self) -> Verdict:
        """Return what is known; final when `done`."""
        mean = float(self.returns.mean())
        return Verdict(
            version=self.version,
            passed=self.rules.judge(mean, self.failed_at, self.fault),
            episodes=self.rules.episodes,
            steps=self.steps,
            return_min=float(self.returns.min()),
            return_mean=mean,
            seconds=self.seconds,
            failed_at=self.failed_at,
            fault=self.fault,
            returns=tuple(self.returns.tolist()) if self.rules.in_full else (),
        )
