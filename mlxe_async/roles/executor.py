"""The executor: steps its environments with a copy of the behaviour policy and writes the rows into its own lane.

A plain object. What it needs from the world (weights, lane, progress page, a way to speak and to wait) is handed to it,
so that the very same object runs in a process of its own, beside the other roles in one process, or in a test.
"""

from __future__ import annotations

import functools
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import numpy as np

from mlxe_async.algorithms.interface import Acting
from mlxe_async.algorithms.state.namespaces import own_modules
from mlxe_async.errors import EnvironmentFault, ExecutorBroken, MlxeError, NumericError, raised_at
from mlxe_async.roles.dealing import Hand, Order
from mlxe_async.roles.discounted import NAME as DISCOUNTED
from mlxe_async.roles.discounted import Discounted
from mlxe_async.roles.executor_plan import ExecutorLink, ExecutorMemory, ExecutorPlan
from mlxe_async.roles.fault_budget import FaultBudget, TooManyFaults
from mlxe_async.roles.history import MOST_PROVEN, History
from mlxe_async.roles.legacy import AFTER_RESUMING
from mlxe_async.roles.places import Places
from mlxe_async.roles.promotion import remarked
from mlxe_async.roles.row_writer import RowWriter, Unwritten
from mlxe_async.roles.states import expect_counts, expect_like
from mlxe_async.roles.wrapper_states import EpisodeStates
from mlxe_async.rows import Array, RowLayout
from mlxe_async.seeds import derive_seed, generator


def resident_mb() -> float:
    """Memory of this process that is in RAM, pages it shares included, in MiB."""
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


EPISODE = ("env", "episode", "steps", "return", "terminated", "seed")
"What is told of each episode that ended."


METRICS_S = 0.5
"""Seconds between two accounts of what environments tell of themselves, at least."""

_Arguments = ParamSpec("_Arguments")
_Verb = Callable[Concatenate["Executor", _Arguments], dict[str, Any]]


def _told_as_broken(verb: _Verb[_Arguments]) -> _Verb[_Arguments]:
    """Tell errors of foreign code that is not the algorithm's as an executor that is broken."""

    @functools.wraps(verb)
    def told(self: Executor, /, *given: _Arguments.args, **named: _Arguments.kwargs) -> dict[str, Any]:
        try:
            return verb(self, *given, **named)
        except MlxeError:
            raise
        except Exception as error:
            place = raised_at(error)
            if not place or _is_of(type(self.algorithm), error):
                raise
            raise ExecutorBroken(f"{type(error).__name__}: {error} ({place})") from error

    return told


def _is_of(algorithm: type, error: Exception) -> bool:
    """Return whether an error was raised in a module of the algorithm's author, or in what that called."""
    files = {getattr(module, "__file__", None) for module in own_modules(algorithm)}
    return any(frame.f_code.co_filename in files for frame, _ in traceback.walk_tb(error.__traceback__))


class Executor:
    """Generates rollouts.

    Args:
        plan: sizes, seeds and limits.
        task: the environments, a `tasks.vector.VectorTask`.
        algorithm: gives the behaviour policy (`load`, `act`) and its extra columns.
        layout: columns of a row.
        memory: what it shares with others, its lane and the weights among them.
        link: how it speaks to others and hears of them.
        episodes: number of the next episode of each environment.
    """

    def __init__(
        self,
        plan: ExecutorPlan,
        *,
        task: Any,
        algorithm: Any,
        layout: RowLayout,
        memory: ExecutorMemory,
        link: ExecutorLink,
        episodes: list[int] | None = None,
    ) -> None:
        self.plan = plan
        self.task = task
        self.algorithm = algorithm
        self.version = 0
        self._weights, self._page = memory.weights, memory.page
        self._notify, self._wait, self._asked, self._shelf = link.notify, link.wait, link.asked, link.shelf
        self._read = link.read
        self._settle: dict[str, Any] | None = None
        self._ingested: list[dict[str, Any]] = []
        self._legacy, self._is_heir = memory.legacy, memory.legacy is not None
        self._begins_anew = False  # its next rollout is not the one that a predecessor had begun
        self._held = False  # whether `_flat` is what it plays with
        self._envs = task.count
        spaces = task.spaces
        self._obs = np.zeros((self._envs, *spaces.observation_shape), dtype=spaces.observation_dtype)
        self._flat = np.zeros(sum(int(np.prod(shape)) for _, shape in algorithm.parameters), dtype=np.float32)
        action = next(column for column in layout.columns if column.name == "action")
        places = memory.places or Places(self._envs, action.dtype, action.shape)
        places.clear()
        self._places = places
        self._episode, self._step, self._episode_seed = places.episode, places.step, places.seed
        self._running = places.running
        self._episode[:] = episodes or 0
        self._return = np.zeros(self._envs)
        self._discounted = Discounted.of(algorithm, self._envs)
        self._told_out_of_bounds = self._told_changes = 0
        self._told_metrics = 0.0
        self._stood: tuple[Array, Array] | None = None
        # In which stage each environment's episode began, and which item it has; only where a task has such.
        self._stage, self._stage_of = 0, np.zeros(self._envs, np.int64)
        self._hand: Iterator[int] = iter(())
        self._item, self._taken = np.full(self._envs, -1, np.int64), 0
        episodes_of = getattr(task, "episodes", None)
        self._levels = None if episodes_of is None else episodes_of.seeds
        self._items = items = None if episodes_of is None else episodes_of.items
        self._order = None if items is None else Order(len(items), plan.seed if plan.shuffles else None)
        further = {"stage": plan.stages, DISCOUNTED: self._discounted is not None}
        self._told_of_episodes = (*EPISODE, *(name for name, is_told in further.items() if is_told))
        self._states = EpisodeStates(task, self._envs, is_source=plan.index == 0) if plan.keeps_state else None
        self._faults = FaultBudget(self._envs, plan.fault_window_s)
        self._carried = tuple(getattr(algorithm, "carry", ()))
        self._stops = tuple(getattr(algorithm, "stop_columns", ()))
        self._begin_rollout = getattr(algorithm, "begin_rollout", None)
        self._after_step = getattr(algorithm, "after_step", None)
        self._acting = Acting(
            executor=plan.index, executors=plan.executors, temperature=plan.temperature, epsilon=plan.epsilon
        ).start(self._carried, self._envs)
        self._writer = (Unwritten if plan.is_greedy else RowWriter)(
            memory.lane,
            layout,
            block_rows=plan.block_rows,
            envs=self._envs,
            extra=[column.name for column in (*algorithm.extra_columns, *self._stops, *self._carried)],
            committed=self._tell_commit,
            wait=link.wait,
            make_room=None if link.read is None else self._have_it_read,
        )
        self._history = History(self._envs, places.finished, MOST_PROVEN if plan.sync == "episode" else None)
        # Environments that are one object begin together and then reset themselves, see `tasks.native`.
        self._as_one, self._begun = bool(getattr(task, "resets_itself", False)), False

    @_told_as_broken
    def generate(
        self,
        *,
        rollout: int,
        version: int | None = None,
        finished_episodes: int = 0,
        attempt: int = 0,
        steps: int = 0,
        unfinished: str | None = None,
        settle: dict[str, Any] | None = None,
        most_rows: int | None = None,
        least_rows: int = 0,
        stage: int = 0,
        hand: Mapping[str, Any] | None = None,
        wrappers: str | None = None,
    ) -> dict[str, Any]:
        """Generate one rollout under the newest weights and commit its rows.

        Where a predecessor delivered this rollout and died before it was heard, its answer is given again.

        Args:
            rollout: number of the rollout, counted per executor; seeds the behaviour policy.
            version: wait rule of the synchronous schedules: the newest version must be this one.
            finished_episodes: finished episodes of the whole run, as tasks may read it; frozen for the rollout.
            attempt: how often this rollout was begun before and brought its executor down.
            steps: environment steps that this executor has delivered in its whole life, for what is annealed by them.
            unfinished: what becomes of episodes under way when the rollout is asked to end early: `"keep"` ends their
                rows with a cut and goes on with them in the next rollout, `"drop"` throws them away, rows and all.
                None: it cannot be asked.
            settle: the plan that the learner has just used, where the memorizer is in the same thread: its priorities
                come before any row that is read while the rollout is under way.
            most_rows: number of rows at which it ends by a cut, and goes on with its episodes in the next rollout;
                None: they may be as long as they like.
            least_rows: a rollout by `"episode"` is of as many whole episodes as have this number of rows together.
            stage: of the curriculum, in which episodes begin now; those under way stay in theirs.
            hand: numbers of the items that episodes take now, see `roles.dealing.Hand`, and how many were `taken`
                before.
            wrappers: the state that wrappers begin episodes with, see `roles.wrapper_states`; None: as they are made.

        Returns:
            `wrappers` (their state, where they keep one and it is published), `taken` (numbers of the hand, where there
            are items), `rows`, `blocks` (of the lane), `out_of_bounds`
            (observations outside their bounds, of those looked at), `rss_mb` (resident memory, None if it is not asked
            for), `action_changes` (for which the task took its cost, None where they cost nothing), `version`,
            `episodes` (a list for each name of `EPISODE`, for `stage` where there are stages, for `discounted` where
            the algorithm has a discount, with an entry for each episode that ended), `moved` (environments that stand
            elsewhere than by the last report, at first all), `begun` (number of the present or next episode of each of
            these), `running` (whether that one is under way),
            `cut` (it ended early), `start_ns`, `seconds`, `lane_wait_s`, `ingested` (what was read meanwhile, in this
            thread, as of `Memorizer.ingest`, a dictionary each time).

        Raises:
            TooManyFaults: the environments used up their budget.
            NumericError: an environment gave a NaN or an infinity, and that is not to be forgiven.
            ExecutorBroken: what an environment did has broken something else.
        """
        start_ns = time.monotonic_ns()
        self._settle, self._ingested = settle, []
        self._stage, self._taken = stage, 0
        self._hand = iter(()) if hand is None else Hand.from_json(hand).numbers(hand["taken"])
        if self._states is not None:
            self._states.published = wrappers
        if self._is_heir and (heard := self._take_over(rollout, attempt)) is not None:
            return heard
        self._take_weights(version)
        if self._begins_anew:
            self._begins_anew = False
            self._writer.begin_anew()
        self._writer.begin()
        acting = self._acting
        acting.steps, acting.episodes, acting.rollouts = steps, finished_episodes, rollout
        rng = generator(self.plan.seed, "executor.act", self.plan.index, self.plan.life, attempt, rollout)
        if self._begin_rollout is not None:
            self._begin_rollout(rng)
        episodes: dict[str, list[Any]] = {name: [] for name in self._told_of_episodes}
        rows = taken = 0
        cut, keep = False, True
        recording = self.plan.records and not self._as_one
        if self._as_one:
            self.task.finished_episodes = finished_episodes
        while True:
            if not self._as_one:
                for env in np.flatnonzero(~self._running):
                    self._begin_episode(int(env), finished_episodes, attempt)
            elif not self._begun:
                self._begin_all(attempt)
            taken += 1
            last_step = self.plan.sync != "episode" and taken >= self.plan.rollout_steps
            ended = len(episodes["env"])
            written = self._one_step(rng, episodes, last_step=last_step, recording=recording)
            rows += written
            is_over = self.plan.sync != "rollout" and len(episodes["env"]) > ended and rows >= least_rows
            if last_step or is_over:
                break
            is_full = most_rows is not None and rows >= most_rows
            if cut := is_full or (unfinished is not None and self._asked() > rollout):
                keep = is_full or unfinished == "keep"
                self._break_off(written, keep=keep)
                break
        noted = self._history.noted() if recording and self.plan.sync != "episode" else None
        outside, self._told_out_of_bounds = self.task.out_of_bounds - self._told_out_of_bounds, self.task.out_of_bounds
        answer = {
            **({"taken": self._taken} if self._order is not None else {}),
            "rows": rows,
            "blocks": self._writer.blocks + self._writer.open_blocks,
            "out_of_bounds": outside,
            "rss_mb": resident_mb() if self.plan.tells_memory else None,
            "action_changes": self._new_changes(),
            "version": self.version,
            "episodes": episodes,
            **self._moved(),
            "cut": cut,
            "start_ns": start_ns,
            "seconds": (time.monotonic_ns() - start_ns) / 1e9,
            "lane_wait_s": self._writer.waited_s,
            "ingested": self._ingested,
        }
        if self._states is not None:
            self._states.leave()
        self._leave(rollout, answer, noted)
        self._writer.commit(last=not cut or keep)
        if cut and not keep:
            self._writer.renew()
        self._history.forget_all_but(self._running, noted)
        self._tell_notes()
        return self._with_state(answer)

    def _with_state(self, answer: dict[str, Any]) -> dict[str, Any]:
        """An answer, with the state of the wrappers as the rollout left it, where that is published."""
        left = None if self._states is None else self._states.left
        return answer if left is None else {**answer, "wrappers": left}

    def _have_it_read(self) -> None:
        """Have the memorizer beside us read our lane, which is full."""
        assert self._read is not None  # noqa: S101 - other executors are not told to call this
        settle, self._settle = self._settle, None
        self._ingested.append(self._read(settle))

    def _new_changes(self) -> int | None:
        """Changes of action that the task charged since they were last told; None where they cost nothing."""
        changes = getattr(self.task, "changes", None)
        if changes is None:
            return None
        new, self._told_changes = changes.charged - self._told_changes, changes.charged
        return int(new)

    def _moved(self) -> dict[str, list[Any]]:
        """Of hundreds of environments few end an episode in one rollout; only of those there is something to tell."""
        moved = np.arange(self._envs)
        if self._stood is not None:
            episode, running = self._stood
            moved = np.flatnonzero((episode != self._episode) | (running != self._running))
        self._stood = self._episode.copy(), self._running.copy()
        return {
            "moved": moved.tolist(),
            "begun": self._episode[moved].tolist(),
            "running": self._running[moved].tolist(),
        }

    def shelve(self, *, result: float) -> dict[str, bool]:
        """Put the weights of the last rollout on the shelf of the best version, with its training result.

        Returns:
            `shelved`: whether they lie there; not where they could not be read whole, or this life has none yet.
        """
        if self._shelf is None or not self._held or not self.version:
            return {"shelved": False}
        self._shelf(remarked(self._flat, result, self.version))
        return {"shelved": True}

    def close(self) -> None:
        """Close the environments."""
        self.task.close()

    # -- state, between two rollouts ----------------------------------------------------------------------------------

    def state(self) -> dict[str, Array]:
        """Return what the next rollout depends on, by name: where each environment stands, and how it came there.

        For each environment: its episode's number, seed, steps and return, whether that is under way, how many
        episodes were finished when it began, the last observation, and all actions of the episode. Of an environment
        whose episode ended by itself seed, steps, observation and actions are of that last episode. And what acting
        carries from step to step.
        """
        known = {name: column.copy() for name, column in self._heads().items()}
        for env in () if self._as_one else range(self._envs):
            actions = self._history.actions_of(env)
            if self._running[env] or (len(actions) and len(actions) == self._step[env]):
                known[f"actions.{env}"] = actions
        return known

    def _heads(self) -> dict[str, Array]:
        """Of the state all but the actions, as views."""
        return {
            "episode": self._episode,
            "running": self._running,
            "step": self._step,
            "return": self._return,
            "seed": self._episode_seed,
            "finished": self._history.finished,
            "obs": self._obs,
            **({} if self._discounted is None else {DISCOUNTED: self._discounted.values}),
            **({"stage": self._stage_of} if self.plan.stages else {}),
            **({"item": self._item} if self._items is not None else {}),
            **(self._states.heads() if self._states is not None else {}),
            **{f"carry.{name}": column for name, column in self._acting.carry.items()},
        }

    def _leave(self, rollout: int, answer: Mapping[str, Any], actions: Array | None) -> None:
        """Write down where everything stands, before the rollout that led there can be read."""
        if self._legacy is None:
            return
        writer = self._writer
        self._legacy.keep(
            writer.committed + writer.open_blocks,
            writer.committed,
            self._heads(),
            rollout=rollout,
            answer=answer,
            actions=actions,
            over=self._history.over(),
        )

    def _take_over(self, rollout: int, attempt: int) -> dict[str, Any] | None:
        """Once, before the first rollout: go on where a predecessor stood. The answer that was not heard, or None."""
        assert self._legacy is not None  # noqa: S101 - asked for heirs alone
        self._is_heir, found = False, self._legacy.find(self._writer.committed, self._heads())
        if found is None:
            self._begins_anew = bool(rollout or attempt)
            return None
        if found.rollout == rollout and found.answer is not None:
            self._tell_relived(self.restore(found.state), "")
            return self._with_state(found.answer)
        why = ""
        if attempt:
            why = "it brought its executor down again and again"
        elif found.rollout not in (rollout - 1, AFTER_RESUMING):
            why = f"what is known is of rollout {found.rollout}, expected {rollout - 1}"
        running = np.flatnonzero(found.state["running"]).tolist()
        how = {"begun_anew": running, "unlike": []} if why else self.restore(found.state)
        self._begins_anew = bool(why) or any(how.values())
        self._tell_relived(how, why)
        return None

    def _tell_relived(self, how: Mapping[str, list[int]], why: str) -> None:
        """Say which environments could not be brought back; that all could needs no word."""
        if any(how.values()):
            self._notify({"kind": "relived", "executor": self.plan.index, "detail": why, **how})

    def restore(self, state: Mapping[str, Array]) -> dict[str, Any]:
        """Go on from there: episodes under way are begun again alike, and their actions taken again.

        Where no episode is under way the last one is lived again, only to see whether that leads to where it did: an
        environment that keeps something from one episode to the next cannot be brought back by a seed.

        Returns:
            `begun_anew`: the environments that did not come to the same observation by that, or whose actions were not
            all known; their episodes are passed over. `unlike`: those whose last episode did not end alike.
        """
        who, now = f"executor {self.plan.index}", self.state()
        may_lack = () if DISCOUNTED in state else (DISCOUNTED,)  # as states before it was told
        expect_like(who, state, {k: v for k, v in now.items() if not k.startswith("actions.") and k not in may_lack})
        expect_counts(who, state, ["episode", "step", "finished"])
        for mine, name in ((self._episode, "episode"), (self._step, "step"), (self._return, "return")):
            mine[...] = state[name]
        self._episode_seed[:] = state["seed"]
        if self._discounted is not None:
            self._discounted.go_on(state.get(DISCOUNTED), self._step)
        for own, name in ((self._stage_of, "stage"), (self._item, "item")):
            own[:] = state.get(name, own)
        if self._states is not None:
            self._states.restore(state)
        for name, column in self._acting.carry.items():
            column[...] = state[f"carry.{name}"]
        self._running[:] = self._begun = False
        begun_anew, unlike = [], []
        for env, running in enumerate(state["running"].tolist()):
            known = not self._as_one and f"actions.{env}" in state
            if known and self._relive(env, state, over=not running):
                self._running[env] = running
            elif running:
                self._episode[env] += 1
                begun_anew.append(env)
            elif known:
                unlike.append(env)
        if self._states is not None:
            self._states.relived(running=bool(self._running[0]))
        self._told_out_of_bounds = self.task.out_of_bounds
        self._new_changes()
        if self._is_heir and self._legacy is not None:  # a run is resumed: there was no predecessor
            self._is_heir, self._begins_anew = False, bool(begun_anew or unlike)
            self._legacy.put(state)
            self._leave(AFTER_RESUMING, {}, np.zeros((0, *self._places.action.shape), self._places.action.dtype))
        return {"begun_anew": begun_anew, "unlike": unlike}

    def _relive(self, env: int, state: Mapping[str, Array], *, over: bool) -> bool:
        """Begin an episode again and take its actions; whether it is now where it was, or over just then."""
        actions, finished = state[f"actions.{env}"], int(state["finished"][env])
        if len(actions) != int(state["step"][env]):
            return False
        self._page.enter(self.plan.reset_timeout_s, "reset")
        try:
            if self._states is not None:
                self._states.begin_again(env)
            obs = self._reset(env, finished)
            self._history.begin(env, finished)
            everyone = np.zeros((self._envs, *actions.shape[1:]), actions.dtype)
            for place, action in enumerate(actions, 1):
                everyone[env] = action
                self._page.enter(self.plan.reset_timeout_s, "step")
                step = self.task.step(everyone, [env])
                ends = bool(step.terminated[env] or step.truncated[env])
                if not step.ok[env] or ends != (over and place == len(actions)):
                    return False
                obs = step.next_obs[env]
        except EnvironmentFault:
            return False
        finally:
            self._page.leave()
        self._history.relived(env, actions)
        self._obs[env] = obs
        return bool(obs.tobytes() == state["obs"][env].tobytes())

    def acted(self) -> tuple[int, Array]:
        """Version and weights (P,) of the last rollout; 0 before the first, and where they could not be read whole."""
        return (self.version if self._held else 0), self._flat

    # -- parts of a rollout ---------------------------------------------------------------------------------------

    def adopt(self, flat: Array) -> None:
        """Act by these weights (P,) from the next rollout on, until newer ones are published; copied."""
        self._flat[...] = flat
        self.algorithm.load(self._flat)

    def _take_weights(self, version: int | None) -> None:
        if self._weights.latest() != self.version:
            read = self._weights.read(self._flat)
            self._held = read is not None
            if read is not None:
                self.algorithm.load(self._flat)
                self.version = read
        if version is not None and self.version != version:
            raise MlxeError(
                f"executor {self.plan.index} generating: expected weights {version}, "
                f"the newest that could be had are {self.version}"
            )
        if self.version == 0:
            raise MlxeError(f"executor {self.plan.index} generating: expected published weights, none exist yet")

    def _begin_episode(self, env: int, finished_episodes: int, attempt: int) -> None:
        while True:
            number = int(self._episode[env])
            seed = derive_seed(self.plan.seed, "executor.reset", self.plan.index, self.plan.life, attempt, env, number)
            if self._levels is not None:
                seed = self._levels[seed % len(self._levels)]
            # Before the call, for it may be the last one of this life.
            self._step[env], self._return[env], self._episode_seed[env] = 0, 0.0, seed
            if self._discounted is not None:
                self._discounted.begin(env)
            self._history.begin(env, finished_episodes)
            self._stage_of[env] = self._stage
            if self._order is not None:
                self._item[env], self._taken = next(self._hand), self._taken + 1
            if self._states is not None:
                self._states.begin(env)
            self._page.enter(self.plan.reset_timeout_s, "reset")
            try:
                self._obs[env] = self._reset(env, finished_episodes)
            except EnvironmentFault as fault:
                self._page.leave()
                self._episode[env] += 1
                self._forgive(fault, seed, number)
                continue
            self._page.leave()
            self._running[env] = True
            return

    def _reset(self, env: int, finished_episodes: int) -> Array:
        """Begin the episode whose seed, stage and item were noted."""
        if self.plan.stages:
            self.task.enter(env, int(self._stage_of[env]))
        seed = int(self._episode_seed[env])
        if self._order is None or self._items is None:
            first: Array = self.task.reset(env, seed, finished_episodes)
            return first
        item = self._items[self._order.place(int(self._item[env]))]
        with_item: Array = self.task.reset(env, seed, finished_episodes, item)
        return with_item

    def _begin_all(self, attempt: int) -> None:
        """Begin an episode of all environments, where they are one object."""
        while True:
            number = int(self._episode.sum())
            seed = derive_seed(self.plan.seed, "executor.vector", self.plan.index, self.plan.life, attempt, number)
            self._page.enter(self.plan.reset_timeout_s, "reset")
            try:
                self._obs[...] = self.task.begin(seed)
            except EnvironmentFault as fault:
                self._page.leave()
                self._episode += 1
                self._forgive(fault, seed, number)
                continue
            self._page.leave()
            self._step[:], self._return[:], self._running[:], self._begun = 0, 0.0, True, True
            if self._discounted is not None:
                self._discounted.begin(slice(None))
            self._episode_seed[:] = seed
            return

    def _one_step(
        self, rng: np.random.Generator, episodes: dict[str, list[Any]], *, last_step: bool, recording: bool
    ) -> int:
        """Step all environments once, write the rows, note the episodes that ended. Returns the rows written."""
        self._page.note("act")
        first = self._step == 0
        chosen = self._chosen(rng, first)
        if recording:
            self._history.note(chosen["action"])
        self._places.action[...] = chosen["action"]
        limit = self.plan.reset_timeout_s if first.any() else self.plan.step_timeout_s
        self._page.enter(limit, "step")
        step = self.task.step(chosen["action"])
        self._page.leave()
        ended = step.terminated | step.truncated
        if self._stops and not self.plan.is_greedy:
            chosen = {**chosen, **self._at_stops(step, last_step=last_step)}
        written = self._writer.write(
            self._obs,
            chosen,
            step,
            version=self.version,
            episode=self._episode,
            number=self._step,
            last_step=last_step,
        )
        if self._after_step is not None:
            self._after_step(self._acting, step.reward)
        self._acting.steps += written
        if not self.plan.is_greedy:
            self._places.taken[0] += written
        self._step += 1
        self._faults.stepped(step.ok)
        self._return += step.raw_reward
        if self._discounted is not None:
            self._discounted.add(step.raw_reward)
        self._obs[...] = step.start if self._as_one else step.next_obs
        over = np.flatnonzero(ended & step.ok)
        if len(over):
            self._tell_ended(episodes, over, step.terminated)
            self._episode[over] += 1
            self._running[over] = False
            for env in over.tolist() if recording else ():
                self._history.end(env)
        if self._as_one:
            self._step[step.began], self._return[step.began], self._running[step.began] = 0, 0.0, True
            if self._discounted is not None:
                self._discounted.begin(step.began)
        for fault in step.faults:
            env = fault.env_index
            number = int(self._episode[env])
            whom: Any = self._running.copy() if self._as_one else env
            self._episode[whom] += 1
            self._running[whom] = self._begun = False
            self._forgive(fault, int(self._episode_seed[env]), number)
        return written

    def _tell_ended(self, episodes: dict[str, list[Any]], over: Array, terminated: Array) -> None:
        """Note what is told of episodes that have just ended in some environments (K,)."""
        episodes["env"] += over.tolist()
        about = {"episode": self._episode, "steps": self._step, "return": self._return, "terminated": terminated}
        about |= {"seed": self._episode_seed, "stage": self._stage_of}
        if self._discounted is not None:
            episodes[DISCOUNTED] += self._discounted.told(over)
        for name in about.keys() & set(self._told_of_episodes):
            episodes[name] += about[name][over].tolist()

    def _chosen(self, rng: np.random.Generator, first: Array) -> Mapping[str, Array]:
        """Return what the behaviour policy chose, and what it found to be carried; of a greedy one the action alone."""
        acting = self._acting
        acting.began = first
        if self.plan.is_greedy:
            acting.begin(first)
            best = np.asarray(self.algorithm.greedy(self._obs, acting))
            return {"action": best.astype(self._places.action.dtype).reshape(self._places.action.shape)}
        if not self._carried:
            chosen: Mapping[str, Array] = self.algorithm.act(self._obs, rng, acting)
            return chosen
        acting.begin(first)
        found = {name: column.copy() for name, column in acting.carry.items()}
        return {**self.algorithm.act(self._obs, rng, acting), **found}

    def _at_stops(self, step: Any, *, last_step: bool) -> dict[str, Array]:
        """The stop columns (B, ...) of a step: what the algorithm says where it leads to no further row."""
        found = {column.name: np.zeros((self._envs, *column.shape), column.dtype) for column in self._stops}
        where = np.flatnonzero(step.ok & ~step.terminated & (step.truncated | last_step))
        if len(where):
            said = self.algorithm.at_stop(step.next_obs[where])
            for name, column in found.items():
                column[where] = said[name]
        return found

    def _break_off(self, written: int, *, keep: bool) -> None:
        """End the rollout between two steps; `written` rows of the last one are still in the block that is open."""
        if not keep:
            self._episode[self._running] += 1
            self._running[:] = self._begun = False
        else:
            self._writer.cut(written, self._running, self.algorithm.at_stop if self._stops else None)

    def _tell_commit(self) -> None:
        self._notify({"kind": "commit"})
        self._tell_notes()

    def _tell_notes(self) -> None:
        for kind, sentence in self.task.take_notes():
            self._notify({"kind": "note", "executor": self.plan.index, "about": kind, "detail": sentence})
        metrics = getattr(self.task, "metrics", None)
        if metrics is not None and time.monotonic() - self._told_metrics >= METRICS_S and (values := metrics.take()):
            self._told_metrics = time.monotonic()
            self._notify({"kind": "metrics", "executor": self.plan.index, "values": values})

    def _forgive(self, fault: EnvironmentFault, seed: int, episode: int) -> None:
        """Report a fault and make the environment anew, within the budget; that it cannot be made is one fault more."""
        again: EnvironmentFault | None = fault
        if self._states is not None:
            self._states.failed(fault.env_index)
        while again is not None:
            faults = self._spend(again, seed, episode)
            if again.nonfinite and self.plan.nonfinite == "reset_env":
                return
            again = self._made_anew(again.env_index)
            # The first failures are met at once, repeated ones with growing patience.
            self._wait(min(5.0, 0.05 * 2.0 ** (faults - 1)))

    def _spend(self, fault: EnvironmentFault, seed: int, episode: int) -> int:
        """Report a fault. Returns how many count now, which is within the budget."""
        faults = self._faults.failed(fault.env_index)
        self._notify(
            {
                "kind": "env_error",
                "executor": self.plan.index,
                "faults": faults,
                "env": fault.env_index,
                "phase": fault.phase,
                "episode": episode,
                "step": fault.step,
                "seed": seed,
                "detail": fault.detail,
                "trace": fault.trace,
            }
        )
        if fault.nonfinite and self.plan.nonfinite == "stop":
            raise NumericError(f"executor {self.plan.index}: {fault.detail}")
        if faults > self.plan.fault_limit:
            raise TooManyFaults(
                f"executor {self.plan.index}: expected at most {self.plan.fault_limit} environment faults in "
                f"{self.plan.fault_window_s:g} s, got {faults}; the last: {fault.detail}"
            )
        return faults

    def _made_anew(self, env: int) -> EnvironmentFault | None:
        """Make an environment anew; None, or why it could not be made."""
        self._page.enter(self.plan.reset_timeout_s, "make")
        try:
            self.task.rebuild(env)
        except EnvironmentFault as fault:
            return fault
        finally:
            self._page.leave()
        return None
