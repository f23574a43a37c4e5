"""The few values an executor is made with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExecutorPlan:
    """The few values an executor is made with.

    Args:
        index: number of the executor.
        seed: the run's seed.
        life: enters all seeds; the epoch where rollouts must never repeat, 0 where they are to be redone alike.
        sync: `"episode"` (a rollout is one episode of one environment) or `"rollout"` (a fixed number of steps).
        rollout_steps: steps of each environment in a rollout, for `sync = "rollout"`.
        block_rows: most rows in one block of the lane.
        step_timeout_s: limit of one step of all environments, in seconds.
        reset_timeout_s: limit of one reset, and of the first step after it.
        fault_limit: faults of one environment forgiven within `fault_window_s`; 10 good steps make up for one.
        fault_window_s: see `fault_limit`.
        nonfinite: what a NaN or an infinity from an environment leads to: `"abort_episode"` as any other fault;
            `"reset_env"`: the environment is not made anew, only reset; `"stop"`: it is not forgiven at all.
        records: remember the actions of each environment's present or last episode, so that `state` can tell them.
        tells_memory: say after each rollout how much memory the process has.
        executors: how many executors there are.
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
