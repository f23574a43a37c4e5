"""The handle of an executor: a rollout whose process died before delivering it is begun again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mlxe_async.errors import NumericError, ProcessDied, RunFailed
from mlxe_async.ipc.messages.remote_error import RemoteError
from mlxe_async.ipc.processes.process import Process
from mlxe_async.logs import events
from mlxe_async.roles.places import Place
from mlxe_async.rows import Array
from mlxe_async.supervisor.checkpointing.solved import LongEpisode
from mlxe_async.supervisor.handles import answers
from mlxe_async.supervisor.handles.answers import SHELVED
from mlxe_async.supervisor.handles.context import ExecutorWords, HandleContext, RolloutRules
from mlxe_async.supervisor.handles.memorizer import MemorizerHandle
from mlxe_async.supervisor.recording.steps import Ended, Rollout

POISON_DEATHS = 3
PATIENT_ROLLOUTS = 16


class ExecutorHandle:
    """One executor.

    Args:
        index: its number.
        process: where it lives, perhaps as one of several threads.
        context: what is shared.
        memorizer: asked whether there is room for another rollout.
        envs: environments it steps.
        rules: when its rollouts end.
        words: what passes between it and the supervisor in shared memory.
        long_episode: told when episodes began and were through; None: none can be long.
        others: rollouts so far of those that are learned from, where this one only exploits: what it does counts
            nowhere, and where none waits for all it keeps the pace of the fastest. None: it is learned from.
    """

    def __init__(
        self,
        index: int,
        process: Process,
        context: HandleContext,
        memorizer: MemorizerHandle,
        envs: int,
        *,
        rules: RolloutRules | None = None,
        words: ExecutorWords | None = None,
        long_episode: LongEpisode | None = None,
        others: Callable[[], Sequence[int]] | None = None,
    ) -> None:
        rules, words = rules or RolloutRules(), words or ExecutorWords()
        self.index = index
        self.process = process
        self.lost: str | None = None
        self.envs = envs
        self.rows = 0
        self.pace = 0.0
        "Steps a second in its last rollout, all its environments together counted once."
        self._context, self._memorizer = context, memorizer
        self._others, self._is_greedy = others, others is not None
        self._unfinished, self._ask, self._most_rollouts = rules.unfinished, words.ask, rules.most_rollouts
        self._stand([0] * envs, [False] * envs)
        self._reads, self._most_rows, self._least_rows = rules.reads, rules.most_rows, rules.least_rows
        self._busy = self._interruptible = self._interrupted = False
        self.rollouts = self._in_a_row = self._deaths = self._died_with = 0
        self._max_rss_mb, self._delayed = rules.max_rss_mb, words.delayed
        self._heavy_rollouts = 0
        self._lesson: dict[str, Any] = {}  # what this rollout is told of stages and items, however often it is begun
        self._died_at: list[Place | None] = []  # in the rollout that is under way
        self._taken, self._long_episode = words.taken, long_episode
        self._settled = 0  # of those taken: the rows that are delivered, or lost
        self._asked_at: dict[str, Any] | None = None
        self._began_at: dict[int, dict[str, Any] | None] = {}  # of episodes under way, by environment

    @property
    def undelivered(self) -> int:
        """Rows of the rollout that is under way, so far."""
        return self._taken() - self._settled if self._busy else 0

    @property
    def episodes_started(self) -> int:
        """Episodes begun so far, those that came to nothing and those under way included."""
        if self._is_greedy:
            return 0
        under_way = self.envs if self._busy else self._under_way
        return self._begun_in_all + under_way + (0 if self._context.deterministic else self._died_with)

    def _stand(self, begun: list[int], running: list[bool]) -> None:
        """Number of the present or next episode of each environment (B,), and whether it is under way (B,)."""
        self.begun, self._running = begun, running
        # Asked for at each publication, by all executors.
        self._begun_in_all, self._under_way = sum(begun), sum(running)

    def _move(self, moved: list[int], begun: list[int], running: list[bool]) -> None:
        """Some environments stand elsewhere now."""
        for env, number, is_running in zip(moved, begun, running, strict=True):
            self._begun_in_all += number - self.begun[env]
            self._under_way += is_running - self._running[env]
            self.begun[env], self._running[env] = number, is_running

    @property
    def next_episodes(self) -> list[int]:
        """Number of the next episode of each environment for a new life that cannot live what was under way again."""
        return [number + running for number, running in zip(self.begun, self._running, strict=True)]

    async def generate(self, version: int | None = None, *, interruptible: bool = False) -> dict[str, Any] | None:
        """One rollout; see `schedules.verbs`.

        None when the budget ran out, when this executor is lost for good, or when it was interrupted before it began.
        """
        context = self._context
        if self.index in context.excused:
            context.excused.discard(self.index)
            context.delivered.add(self.index)
            return {}
        self._interruptible, self._interrupted = interruptible, False
        self._in_a_row = self._in_a_row + 1 if interruptible else 1
        if self.lost and not context.free_running:
            return None
        held_back = None if self._memorizer.has_room else time.monotonic()
        # A round is finished by all who can: what it leads to must not depend on when the run was asked to stop.
        go_on = await context.wait_until(self._may_begin) or (context.deterministic and not self.lost)
        if held_back is not None:
            context.log.throttled_s += time.monotonic() - held_back
        if not go_on or self._interrupted:
            self._interruptible = False
            return None
        if not self._is_greedy:
            self._memorizer.expect()
        self._busy = True
        self._lesson = {} if context.lessons is None else context.lessons.asked(self.index)
        report = await self._until_delivered(version if self._delayed is None else self._delayed.version)
        self._busy = self._interruptible = False
        if not self._is_greedy:
            self._memorizer.delivered()
        if report is None:
            return None
        self.rollouts += 1
        self._deaths = 0
        self._died_at.clear()
        context.delivered.add(self.index)
        if self._is_greedy:
            self._move(report["moved"], report["begun"], report["running"])
            context.log.played_greedily(self.index, report)
        else:
            self._count(report)
        self.rows += report["rows"]
        self.pace = report["rows"] / self.envs / max(1e-6, report["seconds"] - report["lane_wait_s"])
        self.process.note_progress()
        self._look_at_memory(report["rss_mb"])
        context.bell.ring()
        if context.promoter is not None and not self._is_greedy:
            await context.promoter.delivered(self, report)
        return report

    def _count(self, report: dict[str, Any]) -> None:
        """Count and tell what is to be learned from."""
        context = self._context
        if context.lessons is not None:
            context.lessons.delivered(self.index, report)
        # Numbers were passed over where an episode went down with a former life of the executor.
        before = self._begun_in_all
        self._move(report["moved"], report["begun"], report["running"])
        ended = self._begun_in_all - before
        finished = len(report["episodes"]["return"])
        context.counters.episodes_aborted += ended - finished
        context.counters.env_steps += report["rows"]
        context.counters.out_of_bounds += report["out_of_bounds"]
        context.counters.episodes += finished
        longest = max(report["episodes"]["steps"], default=0)
        context.counters.episode_steps = max(context.counters.episode_steps, longest)
        results = report["episodes"]["steps" if context.promote_by == "steps" else "return"]
        if context.promotes:
            context.returns.setdefault(report["version"], []).extend(results)
        context.log.generated(self.index, report)
        if self._long_episode is not None:
            self._look_at_lengths(self._long_episode, report)

    async def shelve(self, result: float) -> bool:
        """Have the weights of its last rollout put on the shelf of the best version, with their training result.

        Whether they lie there: not where it has died since.
        """
        if not self.process.alive:
            return False
        role = f"executor-{self.index}"
        try:
            said = await self.process.call("shelve", role=role, check=SHELVED.require, result=result)
        except ProcessDied:
            return False
        return bool(said["shelved"])

    def _look_at_lengths(self, long_episode: LongEpisode, report: Mapping[str, Any]) -> None:
        """An episode began with the rollout that was asked for when it was not yet under way."""
        ended = report["episodes"]
        began = [self._began_at.pop(env, self._asked_at) for env in ended["env"]]
        long_episode.ended(self.index, ended["steps"], report["version"], began)
        for env in np.flatnonzero(self._running).tolist():
            self._began_at.setdefault(env, self._asked_at)

    def _look_at_memory(self, rss_mb: float | None) -> None:
        if rss_mb is None or self._max_rss_mb is None or rss_mb <= self._max_rss_mb:
            self._heavy_rollouts = 0
            return
        self._heavy_rollouts += 1
        # Episodes under way would be lost; with many environments there may never be a moment without any.
        if not self._under_way or self._heavy_rollouts >= PATIENT_ROLLOUTS:
            self._heavy_rollouts = 0
            limit = f"supervision.max_executor_rss_mb = {self._max_rss_mb}"
            self._context.recorder.note(Ended("", f"executor {self.index} was replaced"))
            self.process.recycle(f"{rss_mb:.0f} MiB in RAM, more than {limit}")

    @property
    def at_work(self) -> tuple[int, int] | None:
        """The life and the rollout it is at work in; None while it is not, or is being started again."""
        return (self.process.epoch, self.rollouts) if self._busy and self.process.alive else None

    @property
    def busy(self) -> bool:
        """True if a rollout is under way, or was when its schedule was given up."""
        return self._busy

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Facts and arrays to be kept, as of now."""
        facts = {
            "rollouts": self.rollouts,
            "rows": self.rows,
            "deaths": self._deaths,
            "died_with": self._died_with,
            "busy": self._busy,
            "epoch": self.process.epoch,
            "lost": self.lost,
        }
        return facts, {"begun": np.array(self.begun), "running": np.array(self._running)}

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Go on from there; under `oa`, a rollout that was under way is one that died."""
        self.rollouts, self.rows = facts["rollouts"], facts["rows"]
        self._deaths, self._died_with = facts["deaths"], facts["died_with"]
        self._stand(arrays["begun"].tolist(), arrays["running"].tolist())
        self._began_at = dict.fromkeys(np.flatnonzero(self._running).tolist())
        if self._context.free_running:
            self.process.epoch = facts["epoch"]
            if facts["busy"]:
                self._lose_episodes()

    def interrupt(self) -> None:
        """End an interruptible rollout that is under way at the next step; see `schedules.verbs`."""
        if self._interruptible and not self._interrupted:
            self._interrupted = True
            self._ask(self.rollouts + 1)
            self._context.bell.ring()

    def _may_begin(self) -> bool:
        if self._interrupted:
            return True
        few_enough = self._most_rollouts is None or self._in_a_row <= self._most_rollouts
        if self._others is not None and self._context.free_running:
            few_enough &= self.rollouts <= max(self._others())
        return not self.lost and few_enough and self._memorizer.has_room

    async def _until_delivered(self, version: int | None) -> dict[str, Any] | None:
        context = self._context
        while True:
            try:
                finished = context.finished_episodes
                if self._long_episode is not None and not self._is_greedy:
                    self._settled = self._taken()
                    self._asked_at = self._long_episode.now()
                report: dict[str, Any] = await self.process.call(
                    "generate",
                    role=f"executor-{self.index}",
                    check=partial(answers.is_rollout, envs=self.envs),
                    rollout=self.rollouts,
                    version=version,
                    finished_episodes=finished,
                    # The same rollout again, alike; what killed three times gets other seeds.
                    attempt=self._deaths // POISON_DEATHS,
                    steps=self.rows,
                    unfinished=self._unfinished if self._interruptible else None,
                    **self._more(),
                    **self._lesson,
                )
                if self._reads:
                    self._memorizer.took_in(report["ingested"])
                numbers = {"finished_episodes": finished, "steps": self.rows, "rows": report["rows"]}
                context.recorder.note(
                    Rollout(self.index, report["version"], self.rollouts, **numbers, blocks=report["blocks"])
                )
                return report  # noqa: TRY300 - an else branch would only hide where the report comes from
            except (ProcessDied, RemoteError) as error:
                if isinstance(error, ProcessDied) or error.fatal:
                    if self._has_died():
                        return None
                    continue
                if error.kind == "NumericError":
                    raise NumericError(error.message) from error
                if error.kind != "TooManyFaults":
                    raise RunFailed(f"executor {self.index} generating: {error}") from error
                self.lost = error.message
                context.log.executor_lost(self.index, error.message)
                if context.crashes is not None:
                    context.crashes.given_up(self.index, self.process, error.message)
                context.bell.ring()
                return None

    def _has_died(self) -> bool:
        """Count the death of its process; whether the rollout is given up with it."""
        context = self._context
        self._deaths += 1
        self._began_at.clear()
        self._note_place()
        self._lose_episodes()
        return (context.ending and not context.deterministic) or self._interrupted

    def _lose_episodes(self) -> None:
        """Count those begun in a rollout that died; those that were under way before are counted when passed over."""
        if not self._is_greedy:
            fresh = self.envs - self._under_way
            self._died_with += fresh
            self._context.counters.episodes_aborted += fresh

    def _more(self) -> dict[str, Any]:
        """Return what only some rollouts are asked for with."""
        settle = {"settle": self._memorizer.to_settle} if self._reads else {}
        bounds = {"most_rows": self._most_rows(), "least_rows": self._least_rows()}
        return settle | {name: rows for name, rows in bounds.items() if rows}

    def _note_place(self) -> None:
        """After a death: was it the same episode again and again? Then it is passed over."""
        context = self._context
        self._died_at.append(context.crashes.stood(self.index) if context.crashes else None)
        last = self._died_at[-POISON_DEATHS:]
        if self._deaths % POISON_DEATHS or len(last) < POISON_DEATHS:
            return
        place = last[-1]
        if place is None or {(at.env, at.seed) for at in last if at} != {(place.env, place.seed)} or None in last:
            return
        context.counters.poisoned += 1
        where = {"env": place.env, "episode": place.episode, "seed": place.seed}
        told = events.Poison(**where, deaths=POISON_DEATHS, sentence=self.process.death)
        context.log.emit(told, "executor", self.index)
