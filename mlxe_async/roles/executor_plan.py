"""What an executor is made with: sizes and limits, the memory it shares, and how it speaks to others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from mlxe_async.roles.legacy import Legacy
from mlxe_async.roles.places import Places
from mlxe_async.roles.row_writer import Lane
from mlxe_async.rows import Array


@dataclass(frozen=True)
class ExecutorPlan:
    """The few values an executor is made with.

    Args:
        index: number of the executor.
        seed: the run's seed.
        life: enters all seeds; the epoch where rollouts must never repeat, 0 where they are to be redone alike.
        sync: `"episode"` (a rollout is one episode of one environment), `"rollout"` (a fixed number of steps), or
            `"either"` (it ends with an episode, or after that number).
        rollout_steps: steps of each environment in a rollout that is not an episode.
        block_rows: most rows in one block of the lane.
        step_timeout_s: limit of one step of all environments, in seconds.
        reset_timeout_s: limit of one reset, and of the first step after it.
        fault_limit: faults of one environment forgiven within `fault_window_s`; 10 good steps make up for one.
        fault_window_s: see `fault_limit`.
        nonfinite: what a NaN or an infinity from an environment leads to: `"abort_episode"` as any other fault;
            `"reset_env"`: the environment is not made anew, only reset; `"stop"`: it is not forgiven at all.
        records: remember the actions of each environment's present or last episode, so that `state` can tell them.
        tells_memory: say after each rollout how much memory the process has.
        executors: how many executors there are whose rows are learned from.
        stages: how many stages the task's curriculum has; 0: none.
        shuffles: each pass takes the items of a data set in an order of its own.
        keeps_state: wrappers, of whatever stage, tell what they keep from one episode to the next.
        temperature: of its policy, see `algorithms.interface.Acting`.
        epsilon: share of random actions; None: as the algorithm has it.
        is_greedy: it takes the best action, and nothing is to be learned from its rows.
    """

    index: int
    seed: int
    life: int
    sync: str
    rollout_steps: int
    block_rows: int
    step_timeout_s: float
    reset_timeout_s: float
    fault_limit: int
    fault_window_s: float
    nonfinite: str = "abort_episode"
    records: bool = False
    tells_memory: bool = False
    executors: int = 1
    stages: int = 0
    shuffles: bool = False
    keeps_state: bool = False
    temperature: float = 1.0
    epsilon: float | None = None
    is_greedy: bool = False


class Weights(Protocol):
    """The reading end of the published weights, `ipc.shared.weights.WeightsReader`."""

    def latest(self) -> int:
        """Newest version, 0 before the first."""

    def read(self, into: Array) -> int | None:
        """Copy the newest version; None when it could not be had whole."""


class Page(Protocol):
    """Progress words, `ipc.shared.words.ProgressPage`."""

    def enter(self, limit_s: float, call: str) -> None:
        """A call that may hang begins."""

    def leave(self) -> None:
        """It returned."""

    def note(self, call: str) -> None:
        """This is done now, without a limit of its own."""


@dataclass(frozen=True)
class ExecutorMemory:
    """The memory that an executor shares with others.

    Args:
        lane: where rows go.
        weights: where weights come from.
        page: progress words.
        places: where it counts its episodes and steps, for those who must know after its death.
        legacy: where it writes down after each rollout where it stands, and finds where a predecessor stood; None: a
            predecessor's episodes are passed over.
    """

    lane: Lane
    weights: Weights
    page: Page
    places: Places | None = None
    legacy: Legacy | None = None


@dataclass(frozen=True)
class ExecutorLink:
    """How an executor speaks to others, and hears of them.

    Args:
        notify: sends a small message upwards, between replies.
        wait: waits a bounded number of seconds.
        asked: how many of its rollouts it has been asked to end early, or not to begin any more: a counter that only
            grows, so that no request can be missed. It is looked at between two steps.
        read: takes what is committed into the memory, after the priorities of the plan it is given, where the memorizer
            is in the same thread; None: it is elsewhere, and reads when it likes.
        shelf: puts what it played with where the learner finds it, see `roles.promotion`; None: it is not asked for.
    """

    notify: Callable[[dict[str, Any]], None]
    wait: Callable[[float], None]
    asked: Callable[[], int] = lambda: 0
    read: Callable[[dict[str, Any] | None], dict[str, Any]] | None = None
    shelf: Callable[[Array], Any] | None = None
