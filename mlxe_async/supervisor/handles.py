"""The collaborators a schedule talks to: each verb is a call into a process that may die, hang or be restarted.

What happens then is decided here, once, so that the schedules need not know: an executor's rollout is begun again, a
plan whose learner died is given up (its rows stay in the memory), a test is repeated or dropped.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlxe_async.errors import NumericError, ProcessDied, RunFailed
from mlxe_async.ipc.process import Process
from mlxe_async.ipc.remote_error import RemoteError
from mlxe_async.ipc.weights import WeightsReader, WeightsWriter
from mlxe_async.logs import events
from mlxe_async.roles.places import Place
from mlxe_async.rows import Array
from mlxe_async.supervisor.budget import Bell, Budget, Counters
from mlxe_async.supervisor.crashes import Crashes
from mlxe_async.supervisor.judge import SolvedJudge
from mlxe_async.supervisor.recording import (
    Ended,
    Ingested,
    Learned,
    Memorized,
    NoRecorder,
    Published,
    Recorder,
    Rollout,
)
from mlxe_async.supervisor.story import Story

TEST_SLICE_S = 0.05
UPDATE_FAILURES_ALIKE = 3
POISON_DEATHS = 3
PATIENT_ROLLOUTS = 16
_PUBLICATIONS_KEPT = 4096


@dataclass
class Crew:
    """What the handles of one run share.

    Args:
        budget: counts and says when to stop.
        counters: the run's counters.
        bell: rung whenever something changed that somebody may be waiting for.
        story: tells the log.
        free_running: nobody waits for a phase to end (`oa`).
        alike: what a dead executor left unfinished is generated again, alike (all but `ia` and `oa`).
        recorder: hears all that a replay would have to do alike.
        crashes: knows where dead executors were; None: nobody asks.
    """

    budget: Budget
    counters: Counters
    bell: Bell
    story: Story
    free_running: bool
    alike: bool
    recorder: Recorder = field(default_factory=NoRecorder)
    crashes: Crashes | None = None
    returns: dict[int, list[float]] = field(default_factory=dict)
    """Returns of the episodes finished lately, by the version they were played under."""
    delivered: set[int] = field(default_factory=set)
    """Executors that have delivered in the round that is under way."""
    excused: set[int] = field(default_factory=set)
    """Executors that had delivered already in the round in which the run was interrupted."""

    async def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition; False when the run is ending.

        Only the schedules look at the budget itself: where they wait for each other, a round that was begun is finished
        by all.
        """
        await self.bell.wait_until(lambda: condition() or self.ending)
        return not self.ending

    @property
    def ending(self) -> bool:
        """Whether the budget has run out."""
        return self.budget.reason is not None

    def training_result(self, version: int) -> float | None:
        """Mean return of the episodes finished under a version since this was last asked; all others are forgotten."""
        returns = self.returns.get(version)
        self.returns.clear()
        # Sorted, because the sum must not depend on who was faster.
        return float(np.mean(sorted(returns))) if returns else None


class ExecutorHandle:
    """One executor.

    Args:
        index: its number.
        process: where it lives, perhaps as one of several threads.
        crew: what is shared.
        memorizer: asked whether there is room for another rollout.
        envs: environments it steps.
        unfinished: what becomes of the episodes of a rollout that is interrupted, see `roles.executor`.
        ask: tells the executor how many of its rollouts it is not to go on with; never waits.
        most_rollouts: rollouts between two that cannot be interrupted, the first included; None: any number.
        max_rss_mb: more memory than this, and its process is replaced between two episodes.
    """

    def __init__(
        self,
        index: int,
        process: Process,
        crew: Crew,
        memorizer: MemorizerHandle,
        envs: int,
        *,
        unfinished: str = "keep",
        ask: Callable[[int], None] = lambda _rollouts: None,
        most_rollouts: int | None = None,
        max_rss_mb: int | None = None,
    ) -> None:
        self.index = index
        self.process = process
        self.lost: str | None = None
        self.begun = [0] * envs
        self.rows = 0
        self.pace = 0.0
        "Steps a second in its last rollout, all its environments together counted once."
        self._crew, self._memorizer = crew, memorizer
        self._unfinished, self._ask, self._most_rollouts = unfinished, ask, most_rollouts
        self._running = [False] * envs
        self._busy = self._interruptible = self._interrupted = False
        self._rollouts = self._in_a_row = self._deaths = self._died_with = 0
        self._max_rss_mb = max_rss_mb
        self._heavy_rollouts = 0
        self._died_at: list[Place | None] = []  # in the rollout that is under way

    @property
    def episodes_started(self) -> int:
        """Episodes begun so far, those that came to nothing and those under way included."""
        under_way = len(self.begun) if self._busy else sum(self._running)
        return sum(self.begun) + under_way + (0 if self._crew.alike else self._died_with)

    @property
    def next_episodes(self) -> list[int]:
        """Number of the next episode of each environment for a new life: what was under way died with the old one."""
        return [number + running for number, running in zip(self.begun, self._running, strict=True)]

    async def generate(self, version: int | None = None, *, interruptible: bool = False) -> dict[str, Any] | None:
        """One rollout; see `schedules.verbs`.

        None when the budget ran out, when this executor is lost for good, or when it was interrupted before it began.
        """
        crew = self._crew
        if self.index in crew.excused:
            crew.excused.discard(self.index)
            crew.delivered.add(self.index)
            return {}
        self._interruptible, self._interrupted = interruptible, False
        self._in_a_row = self._in_a_row + 1 if interruptible else 1
        if self.lost and not crew.free_running:
            return None
        held_back = None if self._memorizer.has_room else time.monotonic()
        # A round is finished by all who can: what it leads to must not depend on when the run was asked to stop.
        go_on = await crew.wait_until(self._may_begin) or (crew.alike and not self.lost)
        if held_back is not None:
            crew.story.throttled_s += time.monotonic() - held_back
        if not go_on or self._interrupted:
            self._interruptible = False
            return None
        self._memorizer.expect()
        self._busy = True
        report = await self._until_delivered(version)
        self._busy = self._interruptible = False
        self._memorizer.delivered()
        if report is None:
            return None
        self._rollouts += 1
        self._deaths = 0
        self._died_at.clear()
        crew.delivered.add(self.index)
        # Numbers were passed over where an episode went down with a former life of the executor.
        ended = sum(report["begun"]) - sum(self.begun)
        self.begun, self._running = report["begun"], report["running"]
        finished = len(report["episodes"])
        crew.counters.episodes_aborted += ended - finished
        crew.counters.env_steps += report["rows"]
        crew.counters.out_of_bounds += report["out_of_bounds"]
        crew.counters.episodes += finished
        longest = max((episode["steps"] for episode in report["episodes"]), default=0)
        crew.counters.episode_steps = max(crew.counters.episode_steps, longest)
        crew.returns.setdefault(report["version"], []).extend(episode["return"] for episode in report["episodes"])
        self.rows += report["rows"]
        self.pace = report["rows"] / len(self.begun) / max(1e-6, report["seconds"] - report["lane_wait_s"])
        self.process.note_progress()
        crew.story.generated(self.index, report)
        self._look_at_memory(report["rss_mb"])
        crew.bell.ring()
        return report

    def _look_at_memory(self, rss_mb: float | None) -> None:
        if rss_mb is None or self._max_rss_mb is None or rss_mb <= self._max_rss_mb:
            self._heavy_rollouts = 0
            return
        self._heavy_rollouts += 1
        # Episodes under way would be lost; with many environments there may never be a moment without any.
        if not any(self._running) or self._heavy_rollouts >= PATIENT_ROLLOUTS:
            self._heavy_rollouts = 0
            limit = f"supervision.max_executor_rss_mb = {self._max_rss_mb}"
            self._crew.recorder.note(Ended("", f"executor {self.index} was replaced"))
            self.process.recycle(f"{rss_mb:.0f} MiB in RAM, more than {limit}")

    @property
    def at_work(self) -> tuple[int, int] | None:
        """The life and the rollout it is at work in; None while it is not, or is being started again."""
        return (self.process.epoch, self._rollouts) if self._busy and self.process.alive else None

    @property
    def busy(self) -> bool:
        """Whether a rollout is under way, or was when its schedule was given up."""
        return self._busy

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Facts and arrays to be kept, as of now."""
        facts = {
            "rollouts": self._rollouts,
            "rows": self.rows,
            "deaths": self._deaths,
            "died_with": self._died_with,
            "busy": self._busy,
            "epoch": self.process.epoch,
        }
        return facts, {"begun": np.array(self.begun), "running": np.array(self._running)}

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Go on from there; where nobody waits, a rollout that was under way is one that died."""
        self._rollouts, self.rows = facts["rollouts"], facts["rows"]
        self._deaths, self._died_with = facts["deaths"], facts["died_with"]
        self.begun, self._running = arrays["begun"].tolist(), arrays["running"].tolist()
        if self._crew.free_running:
            self.process.epoch = facts["epoch"]
            if facts["busy"]:
                fresh = len(self.begun) - sum(self._running)
                self._died_with += fresh
                self._crew.counters.episodes_aborted += fresh

    def interrupt(self) -> None:
        """End an interruptible rollout that is under way at the next step; see `schedules.verbs`."""
        if self._interruptible and not self._interrupted:
            self._interrupted = True
            self._ask(self._rollouts + 1)
            self._crew.bell.ring()

    def _may_begin(self) -> bool:
        if self._interrupted:
            return True
        few_enough = self._most_rollouts is None or self._in_a_row <= self._most_rollouts
        return not self.lost and few_enough and self._memorizer.has_room

    async def _until_delivered(self, version: int | None) -> dict[str, Any] | None:
        crew = self._crew
        while True:
            try:
                finished = crew.counters.episodes
                report: dict[str, Any] = await self.process.call(
                    "generate",
                    role=f"executor-{self.index}",
                    rollout=self._rollouts,
                    version=version,
                    finished_episodes=finished,
                    # The same rollout again, alike; what killed three times gets other seeds.
                    attempt=self._deaths // POISON_DEATHS,
                    steps=self.rows,
                    unfinished=self._unfinished if self._interruptible else None,
                )
                crew.recorder.note(
                    Rollout(
                        executor=self.index,
                        version=report["version"],
                        rollout=self._rollouts,
                        finished_episodes=finished,
                        steps=self.rows,
                        rows=report["rows"],
                        blocks=report["blocks"],
                    )
                )
                return report  # noqa: TRY300 - an else branch would only hide where the report comes from
            except ProcessDied:
                crew.recorder.note(Ended("", f"executor {self.index} died"))
                self._deaths += 1
                self._note_place()
                # Those that the last rollout left under way are passed over by their number, and counted then.
                fresh = len(self.begun) - sum(self._running)
                self._died_with += fresh
                crew.counters.episodes_aborted += fresh
                if (crew.ending and not crew.alike) or self._interrupted:
                    return None
            except RemoteError as error:
                if error.kind == "NumericError":
                    raise NumericError(error.message) from error
                if error.kind != "TooManyFaults":
                    raise RunFailed(f"executor {self.index} generating: {error.kind}: {error.message}") from error
                self.lost = error.message
                crew.story.executor_lost(self.index, error.message)
                if crew.crashes is not None:
                    crew.crashes.given_up(self.index, self.process, error.message)
                crew.bell.ring()
                return None

    def _note_place(self) -> None:
        """After a death: was it the same episode again and again? Then it is passed over."""
        crew = self._crew
        self._died_at.append(crew.crashes.stood(self.index) if crew.crashes else None)
        last = self._died_at[-POISON_DEATHS:]
        if self._deaths % POISON_DEATHS or len(last) < POISON_DEATHS:
            return
        place = last[-1]
        if place is None or {(at.env, at.seed) for at in last if at} != {(place.env, place.seed)} or None in last:
            return
        crew.counters.poisoned += 1
        crew.story.emit(
            events.Poison(
                env=place.env,
                episode=place.episode,
                seed=place.seed,
                deaths=POISON_DEATHS,
                sentence=self.process.death,
            ),
            "executor",
            self.index,
        )


class MemorizerHandle:
    """The memorizer.

    Args:
        process: where it lives, perhaps together with the learner.
        crew: what is shared.
        updates_per_plan: minibatches drawn at a time; None: all that are owed.
        most_owed: owing more than this many, the executors wait; None: they never do.
        executors: number of executors.
    """

    def __init__(
        self, process: Process, crew: Crew, *, updates_per_plan: int | None, most_owed: int | None, executors: int
    ) -> None:
        self.process = process
        self.owed = self.held = 0
        self.rows_ingested = self._rows_since = self._mended = 0
        self._crew = crew
        self._updates_per_plan, self._most_owed, self._executors = updates_per_plan, most_owed, executors
        self._under_way = 0
        self._unseen = 0
        self._used: dict[str, Any] | None = None
        self.busy = False

    def state(self) -> dict[str, Any]:
        """Facts to be kept, as of now."""
        return {
            "owed": self.owed,
            "held": self.held,
            "unseen": self._unseen,
            "rows_since": self._rows_since,
            "used": self._used,
        }

    def restore(self, facts: Mapping[str, Any], rows_ingested: int) -> None:
        """Go on from there."""
        self.owed, self.held, self._unseen = facts["owed"], facts["held"], facts["unseen"]
        self._rows_since, self._used = facts["rows_since"], facts["used"]
        self.rows_ingested = rows_ingested

    async def keep(self, path: str) -> dict[str, Any]:
        """Have the memory written to a file, all that is committed included; see `workers.StateFiles.save`.

        Raises:
            ProcessDied: the memorizer died meanwhile.
            RemoteError: it could not be written.
        """
        kept: dict[str, Any] = await self.process.call("save", role="keeper", name="memorizer", path=path)
        self._take_note(kept["facts"]["ingested"])
        self._crew.recorder.note(Ingested(tuple(kept["facts"]["ingested"]["positions"])))
        return kept

    @property
    def has_room(self) -> bool:
        """Whether another rollout may begin. A learner that lags behind is not to be buried in old experience."""
        if not self._crew.free_running or self._most_owed is None:
            return True
        return self.owed < self._most_owed and self._unseen < self._executors

    def expect(self) -> None:
        """A rollout begins."""
        self._under_way += 1

    def delivered(self) -> None:
        """A rollout is committed (or came to nothing) and not yet memorized."""
        self._under_way -= 1
        self._unseen += 1

    def used(self, plan: dict[str, Any]) -> None:
        """The learner has learned from this plan."""
        self._used = plan

    async def memorize(self) -> dict[str, Any]:
        """Take in and draw; see `schedules.verbs`."""
        if self._crew.free_running and not await self._crew.wait_until(self._is_wanted):
            return {"updates": 0}
        if self._crew.free_running and not self._has_work:
            return {"updates": 0}  # it is time to save, and nothing is learned from meanwhile
        self.busy = True
        while True:
            self._unseen = 0
            try:
                plan: dict[str, Any] = await self.process.call(
                    "memorize", role="memorizer", most_updates=self._updates_per_plan, settle=self._used
                )
                break
            except ProcessDied:
                self._crew.recorder.note(Ended("", "the memorizer died"))
                self._unseen = 1
                if self._crew.ending:
                    return {"updates": 0}  # and `busy` for good: what it did is not known
        self.busy = False
        positions = tuple(plan["ingested"]["positions"])
        settled = self._used is not None
        self._crew.recorder.note(Memorized(self._updates_per_plan, settled, plan["updates"], positions))
        self._used = None
        self.owed, self.held = plan["owed"], plan["held"]
        self._take_note(plan["ingested"])
        if plan["mended_priorities"] > self._mended:
            self._crew.story.warn(
                "priorities were found that are negative or no numbers; their rows are drawn as new ones are",
                "memorizer",
            )
        self._mended = plan["mended_priorities"]
        # Together with what was taken in between: how much that is depends on the moment, the sum does not.
        self._crew.story.memorized(plan, self._rows_since)
        self._rows_since = 0
        self._crew.bell.ring()
        return plan

    @property
    def _has_work(self) -> bool:
        return self._unseen > 0 or self.owed > 0

    def _is_wanted(self) -> bool:
        return self._has_work or self._crew.budget.is_boundary_due()

    async def ingest(self) -> None:
        """Only take in, to give the lanes their room back in the middle of long rollouts."""
        try:
            ingested = await self.process.call("ingest", role="memorizer")
            self._crew.recorder.note(Ingested(tuple(ingested["positions"])))
            self._take_note(ingested)
        except ProcessDied:
            self._crew.recorder.note(Ended("", "the memorizer died"))
            # Nothing is lost: what was committed stays in the lanes, and the next call takes it in.
            self._unseen += 1

    def _take_note(self, ingested: dict[str, Any]) -> None:
        self.rows_ingested += ingested["rows"]
        self._rows_since += ingested["rows"]
        if ingested["rows"]:
            self.process.note_progress()
        for block in ingested["corrupt"]:
            self._crew.recorder.note(Ended("", "a block was damaged"))
            self._crew.story.corrupt(block)


class LearnerHandle:
    """The learner.

    Args:
        process: where it lives.
        crew: what is shared.
        memorizer: told which plans are used.
        started: episodes begun so far, for the record of each publication.
        cpu_seconds: used so far by all processes but the evaluator, for the same record.
    """

    def __init__(
        self,
        process: Process,
        crew: Crew,
        memorizer: MemorizerHandle,
        *,
        started: Callable[[], int],
        cpu_seconds: Callable[[], float],
    ) -> None:
        self.process = process
        self.publications: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._crew, self._memorizer = crew, memorizer
        self._started, self._cpu_seconds = started, cpu_seconds
        self._failures, self._failure = 0, ""
        self.busy = False
        self.is_published = False
        "The present weights are out already: those of a run that goes on."

    async def publish(self) -> int:
        """Publish the present weights, unless they are."""
        if self.is_published:
            self.is_published = False
            return self._crew.counters.version
        while True:
            try:
                done = await self.process.call("publish", role="learner")
            except ProcessDied:
                if self._crew.ending:
                    return self._crew.counters.version
            else:
                self._crew.recorder.note(Published(done["version"], done["norm"]))
                self._published(done["version"], done["start_ns"], done["seconds"], done["norm"])
                return int(done["version"])

    async def learn(self, plan: dict[str, Any]) -> int:
        """Learn from a plan and publish; see `schedules.verbs`."""
        counters = self._crew.counters
        if not plan["updates"]:
            self._crew.delivered.clear()
            return counters.version
        self.busy = True
        moment: dict[str, Any] = {
            "env_steps": counters.env_steps,
            "episodes": counters.episodes,
            "updates": counters.updates,
            "progress": self._crew.training_result(counters.version),
        }
        try:
            done = await self.process.call("learn", role="learner", plan=plan, **moment)
        except ProcessDied:
            self._crew.recorder.note(Ended("", "the learner died"))
            return self._give_up(plan)
        except RemoteError as error:
            if error.kind == "NumericError":
                raise NumericError(error.message) from error
            if error.kind != "UpdateFailed":
                raise RunFailed(f"learner learning: {error.kind}: {error.message}") from error
            self._crew.recorder.note(Ended("", "an update raised"))
            self._note_failure(error)
            return self._give_up(plan)
        self._crew.recorder.note(Learned(**moment, version=done["version"], norm=done["norm"]))
        self._failures = 0
        self.busy = False
        self._crew.delivered.clear()
        counters.updates += done["updates"]
        self._memorizer.used(plan)
        self._crew.story.learned(done)
        if done["version"] > counters.version:
            end_ns = done["start_ns"] + round(done["seconds"] * 1e9)
            publish_ns = round(done["publish_seconds"] * 1e9)
            self._published(done["version"], end_ns - publish_ns, done["publish_seconds"], done["norm"])
        return counters.version

    def _give_up(self, plan: dict[str, Any]) -> int:
        """Nothing comes of a plan; returns the version that stays."""
        if "slots" in plan and self.process is not self._memorizer.process:
            # A memorizer that lives on would keep its rollouts' room for it.
            self._memorizer.used(plan)
        self.busy = False
        self._crew.delivered.clear()
        return self._crew.counters.version

    def _note_failure(self, error: RemoteError) -> None:
        """An update raised: once may be the device's fault, again and again in the same way is the algorithm's."""
        self._crew.story.warn(f"learner: update raised {error.message}\n{error.trace}", "learner")
        self._failures = self._failures + 1 if error.message == self._failure else 1
        self._failure = error.message
        if self._failures >= UPDATE_FAILURES_ALIKE:
            raise RunFailed(f"learner: update raised {self._failures} times in a row: {error.message}") from error

    def _published(self, version: int, start_ns: int, seconds: float, norm: float | None) -> None:
        crew = self._crew
        crew.counters.version = version
        crew.counters.episodes_started = self._started()
        self.process.note_progress()
        crew.story.published(version, start_ns, seconds, norm)
        self.publications[version] = {
            "episodes_started": crew.counters.episodes_started,
            "env_steps": crew.counters.env_steps,
            "updates": crew.counters.updates,
            "seconds": crew.budget.seconds,
            "cpu_seconds": self._cpu_seconds(),
            "published_ns": start_ns + round(seconds * 1e9),
        }
        while len(self.publications) > _PUBLICATIONS_KEPT:
            self.publications.popitem(last=False)
        crew.bell.ring()


class EvaluatorHandle:
    """The evaluator. The versions under test are kept here too, so that the one that passes can be saved.

    Args:
        process: where it lives; None: evaluation is off, and every verb returns at once.
        crew: what is shared.
        weights: where versions are published.
        tested: where the version to be tested is laid down for the evaluator.
        parameters: number of weights P.
        judge: decides what counts as solved.
        in_flight: most versions under test at once.
        interval_steps: environment steps of training between two versions that are taken up, at least.
        judged: called with each version that was tested, its weights (P,) and its mean return; not after a fault.
        solved: called once with the version and weights that count as solved.
    """

    def __init__(
        self,
        process: Process | None,
        crew: Crew,
        *,
        weights: WeightsReader,
        tested: WeightsWriter,
        parameters: int,
        judge: SolvedJudge,
        in_flight: int,
        interval_steps: int = 0,
        judged: Callable[[int, Array, float], None],
        solved: Callable[[int, Array], None],
    ) -> None:
        self.process = process
        self.tests = 0
        self._crew, self._weights, self._tested = crew, weights, tested
        self._parameters, self._judge, self._most, self._solved = parameters, judge, in_flight, solved
        self._judged = judged
        self._under_test: dict[int, Array] = {}
        self._in_flight = 0
        self._interval_steps = interval_steps
        self._last_episode = self._last_version = self._last_steps = 0
        self._is_solved = False
        self._before: dict[
            int, tuple[int, int, int]
        ] = {}  # versions under test -> the clocks before they were taken up

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Facts, and weights that may still turn out to have solved the task, as of before the tests under way."""
        now = (self._last_episode, self._last_version, self._last_steps)
        last_episode, last_version, last_steps = next(iter(self._before.values()), now)
        facts = {
            "tests": self.tests,
            "last_episode": last_episode,
            "last_version": last_version,
            "last_steps": last_steps,
            "is_solved": self._is_solved,
            "streak": self._judge.streak,
        }
        return facts, {str(version): self._under_test[version] for version in self._keep}

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Go on from there; what was being tested is tested again, or a later version is."""
        self.tests, self._is_solved = facts["tests"], facts["is_solved"]
        self._last_episode, self._last_version = facts["last_episode"], facts["last_version"]
        self._last_steps = facts.get("last_steps", 0)
        self._judge.go_on(facts["streak"])
        self._under_test = {int(version): flat for version, flat in arrays.items()}

    @property
    def _keep(self) -> list[int]:
        """Versions that passed and may turn out to be the first of enough of them."""
        return [] if self._is_solved else [version for version in self._judge.streak if version in self._under_test]

    async def evaluate(self, version: int | None = None) -> None:
        """Test; see `schedules.verbs`. At most one version is taken up for each finished training episode."""
        crew = self._crew
        if self.process is None:
            if version is None:
                await crew.wait_until(lambda: False)
            return
        if version is None:
            if not await crew.wait_until(lambda: self._in_flight > 0 or self._is_due):
                return
            await self._advance(self.process, TEST_SLICE_S)
        elif self._is_due:
            await self._advance(self.process, None)

    @property
    def _is_due(self) -> bool:
        """A training episode has finished since a version was last taken up, there is a new one and room for it."""
        newest = self._weights.latest()
        return (
            self._crew.counters.episodes > self._last_episode
            and self._crew.counters.env_steps >= self._last_steps + self._interval_steps
            and newest > self._last_version
            and self._in_flight < self._most
        )

    async def _advance(self, process: Process, seconds: float | None) -> None:
        add = self._take_up() if self._is_due else None
        while True:
            try:
                done = await process.call("evaluate", role="evaluator", add=add, seconds=seconds)
                break
            except ProcessDied:
                if self._crew.ending:
                    return
                if seconds is not None:
                    # The tests under way went down with their process; later versions are tested instead.
                    self._under_test = {version: self._under_test[version] for version in self._keep}
                    self._before.clear()
                    self._in_flight = 0
                    return
        self._in_flight = done["in_flight"]
        process.note_progress()
        for verdict in done["verdicts"]:
            self._hear(verdict)
        self._crew.bell.ring()

    def _take_up(self) -> int | None:
        flat = np.empty(self._parameters, dtype=np.float32)
        version = self._weights.read(flat)
        if version is None or version <= self._last_version:
            return None
        self._tested.publish(flat)
        self._before[version] = (self._last_episode, self._last_version, self._last_steps)
        self._under_test[version] = flat
        self._last_episode, self._last_version = self._crew.counters.episodes, version
        self._last_steps = self._crew.counters.env_steps
        return version

    def _hear(self, verdict: dict[str, Any]) -> None:
        self.tests += 1
        self._before.pop(verdict["version"], None)
        first = self._judge.feed(verdict["version"], passed=verdict["passed"])
        self._crew.story.evaluated(verdict, len(self._judge.streak))
        if not verdict["fault"] and verdict["version"] in self._under_test:
            self._judged(verdict["version"], self._under_test[verdict["version"]], verdict["return_mean"])
        if first is not None and not self._is_solved:
            self._is_solved = True
            self._solved(first, self._under_test[first])
        # Weights of versions that may still turn out to be the first of the passing ones are kept.
        keep = self._keep
        self._under_test = {v: flat for v, flat in self._under_test.items() if v in keep or v > verdict["version"]}
