"""Decisions about supervised processes, without any process: when to start one again, when one counts as hung."""

from __future__ import annotations

import random
from dataclasses import dataclass

from mlxe_async.ipc.processes.linux import Scheduling

STARVED_SHARE = 0.2
FORGIVEN_LIMIT_S = 60.0
FORGIVEN_RUN_S = 2.0
FAIR_S = 1.0


@dataclass(frozen=True)
class RestartPolicy:
    """How often and how soon a process that died is started again.

    Args:
        limit: restarts allowed within `window_s` without progress in between; one death more is final. Also lives in
            a row that may hang, whatever they did before that; one more is final.
        window_s: deaths older than this many seconds are forgotten, and hangs before a life that went well so long.
        backoff_s: longest wait before the first restart; doubled for each further one.
        backoff_max_s: bound of the doubling.
        start_timeout_s: a new process must have shaken hands within this time.
        start_advice: what to do if a process needs longer to start, for the sentence on its end.
        call_limit_s: a request must be answered within this time unless the role sets limits of its own through the
            progress page; None for no limit.
        silence_s: a worker that owes an answer and neither moves its progress word nor is in a call for this long
            hangs, too; None for no limit.
        seed: of the random part of the waits, which keeps processes that died together from returning together.
    """

    limit: int = 5
    window_s: float = 60.0
    backoff_s: float = 0.1
    backoff_max_s: float = 5.0
    start_timeout_s: float = 60.0
    start_advice: str = ""
    call_limit_s: float | None = None
    silence_s: float | None = None
    seed: int = 0


class RestartBudget:
    """Counts deaths and tells the wait before each restart.

    Progress forgives deaths, but not hangs: each costs its whole limit, so that a process that hangs in each of its
    lives is of no use, whatever it does in between. What forgives them is a life that goes well for the window, or that
    makes progress and ends in another way.

    Args:
        policy: the numbers.
        name: whose deaths; goes into the random part of the waits.
    """

    def __init__(self, policy: RestartPolicy, name: str) -> None:
        self._policy = policy
        self._random = random.Random(f"{policy.seed}/{name}")  # noqa: S311 spreads restarts, guards no secret
        self._deaths: list[float] = []
        self._has_progressed = False
        self.hangs = 0
        "Lives in a row that hung."

    @property
    def attempt(self) -> int:
        """Deaths that count at present."""
        return len(self._deaths)

    def died(self, now_s: float, well_s: float | None = None) -> float | None:
        """Count a death.

        Args:
            now_s: when it died.
            well_s: seconds for which it went well, if it then hung; None: it did not hang.

        Returns:
            The seconds to wait before the restart, None when there shall be none.
        """
        policy = self._policy
        self._deaths = [*(t for t in self._deaths if t > now_s - policy.window_s), now_s]
        if well_s is not None:
            self.hangs = 1 if well_s >= policy.window_s else self.hangs + 1
        elif self._has_progressed:
            self.hangs = 0
        self._has_progressed = False
        if len(self._deaths) > policy.limit or self.hangs > policy.limit:
            return None
        longest = min(policy.backoff_max_s, policy.backoff_s * 2.0 ** (len(self._deaths) - 1))
        return longest * self._random.uniform(0.5, 1.0)

    def progressed(self) -> None:
        """Forget all deaths but hangs: the process has done what it is there for."""
        self._deaths.clear()
        self._has_progressed = True


def starved(before: Scheduling, now: Scheduling, passed_s: float) -> bool:
    """Return whether a process got less than a fifth of the time in which it wanted a core.

    The kernel counts a wait when it is over: who is ready now has waited for all of the time in which it did not run.

    Args:
        before: how it had been treated at the look before.
        now: how it has been treated.
        passed_s: between the two.
    """
    run_ns, wait_ns = now.run_ns - before.run_ns, now.wait_ns - before.wait_ns
    if now.ready:
        wait_ns = max(wait_ns, round(passed_s * 1e9) - run_ns)
    return wait_ns > 0 and run_ns < STARVED_SHARE * (run_ns + wait_ns)


def is_late(before: Scheduling | None, now: Scheduling | None, passed_s: float) -> bool:
    """Whether `passed_s` were enough for what takes no core for long, such as the answer of a process that starts.

    They were not where it was starved and has not even had a fifth of them on a core. Who slept for most of them
    was not kept from answering by a short wait.

    Args:
        before: how it had been treated when it was asked; None: it was gone.
        now: how it has been treated; None: it is gone.
        passed_s: what it was given.
    """
    if before is None or now is None:
        return True
    run_ns, wait_ns = now.run_ns - before.run_ns, now.wait_ns - before.wait_ns
    slept = not now.ready and run_ns + wait_ns < passed_s * 1e9 / 2
    return slept or run_ns >= STARVED_SHARE * passed_s * 1e9 or not starved(before, now, passed_s)


class HangJudge:
    """Decides from the progress page whether a worker hangs, without punishing it for what others did.

    Two things make time pass that the worker could not use. The judge itself may have stood still (a stopped or
    blocked supervisor; usually the whole machine was asleep): that gap is forgiven once. And the machine may be so
    full that the worker got less than a fifth of the time in which it wanted a core: then it is not judged until it has
    had a fair second, nor for ever: a minute of that and two seconds on a core in this call are enough.

    Args:
        interval_s: how often `judge` is meant to be called.
    """

    def __init__(self, interval_s: float) -> None:
        self._longest_s = interval_s + 0.5
        self._last_ns: int | None = None
        self._run_ns = 0
        self._scheduling: Scheduling | None = None
        self._gap_s = 0.0
        self._starved_s = 0.0
        self._fair_s = 0.0

    def judge(self, now_ns: int, overdue_s: float | None, scheduling: Scheduling | None) -> float | None:
        """Seconds by which the worker is really over its limit, None while it is not.

        Args:
            now_ns: `time.monotonic_ns()`.
            overdue_s: what the page says, None when no call is overdue.
            scheduling: how the kernel has treated the worker so far; only needed when overdue.
        """
        passed_s = 0.0 if self._last_ns is None else (now_ns - self._last_ns) / 1e9
        self._last_ns = now_ns
        if passed_s > self._longest_s:
            self._gap_s = passed_s
        elif overdue_s is None:
            # A call that was under way during the gap may still reach its limit, later and later less of it.
            self._gap_s = max(0.0, self._gap_s - passed_s)
        if overdue_s is None:
            self._starved_s = self._fair_s = 0.0
            self._scheduling = None
            return None
        before, self._scheduling = self._scheduling, scheduling
        if scheduling is not None:
            if before is None:
                # One more look is needed to know how it is treated.
                self._run_ns = scheduling.run_ns
                return None
            if starved(before, scheduling, passed_s):
                self._starved_s += passed_s
            else:
                self._fair_s += passed_s
            run_s = (scheduling.run_ns - self._run_ns) / 1e9
            enough = self._starved_s >= FORGIVEN_LIMIT_S and run_s >= FORGIVEN_RUN_S
            if self._starved_s > 0 and self._fair_s < FAIR_S and not enough:
                return None
        stuck_s = overdue_s - self._gap_s
        return stuck_s if stuck_s > 0 else None
