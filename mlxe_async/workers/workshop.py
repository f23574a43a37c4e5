"""Builds the roles of a process on the shared memory that its specification names."""

from __future__ import annotations

import contextlib
import functools
import random
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlxe_async.cores import threads_of_each, usable_cores
from mlxe_async.errors import MlxeError
from mlxe_async.gpu import PinnedMemory, gauge_of, refusals, use_graphs
from mlxe_async.ipc.messages.channel import ChildChannel, ControlLost
from mlxe_async.ipc.processes.breakpoints import on_terminal
from mlxe_async.ipc.processes.linux import keep_freed_memory
from mlxe_async.ipc.shared.kept import KeptState
from mlxe_async.ipc.shared.lanes import LaneReader, LaneWriter
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.ipc.shared.weights import WeightsReader, WeightsWriter
from mlxe_async.ipc.shared.words import PAGE_BYTES, ProgressPage, Words
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.rollouts import RolloutMemory, RolloutShape
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.rows import Array, RowLayout, Spaces
from mlxe_async.seeds import derive_seed
from mlxe_async.settings.model import Settings
from mlxe_async.storage.run_folder import CRASH, VIDEOS
from mlxe_async.tasks import given
from mlxe_async.tasks.given import HANDED
from mlxe_async.workers.code import code_of, code_told_by_a_fork
from mlxe_async.workers.examiner import Examiner
from mlxe_async.workers.kernels import choose_kernels

WAIT_S = 0.1
"""The longest that a process waits without saying that it lives."""
REMEMBERED = 64
"""Versions that delay compensation remembers where there is no bound on policy lag."""


class Workshop:
    """Maps the shared memory that a specification names and builds roles on it.

    Args:
        spec: settings, typed, and facts, as `supervisor.plan.blueprint` writes them.
        channel: the pipe to the supervisor.
        fds: descriptors of the segments, by name.
    """

    def __init__(self, spec: Mapping[str, Any], channel: ChildChannel, fds: Mapping[str, int]) -> None:
        self.spec = spec
        self.channel = channel
        self.settings: Settings = spec["settings"]
        self.spaces = Spaces.from_json(spec["spaces"])
        self.layout = RowLayout.from_json(spec["columns"])
        self.parameters = int(spec["parameters"])
        self._segments = {name: Segment.attach(name, fd) for name, fd in fds.items()}
        if HANDED in self._segments:
            given.take(self._segments[HANDED].buffer)
        self.page = self._page(0)
        threads = {name: self._page(1 + n) for n, name in enumerate(dict.fromkeys(spec["threaded"].values()))}
        self.pages = {"": self.page, **threads}
        'The progress page of the main thread, by the name "", and those of the others, by their roles.'
        if self.settings.schedule.kind == "serial":
            sys.breakpointhook = on_terminal([*self.pages.values()])
        self._shared: dict[str, Any] = {}
        self._keeper: Any = None
        self._learners_state: KeptState | None = None
        self.code: dict[str, Any] = {}
        "Which code this process has of its algorithm; see `workers.code`."
        self.pinned: PinnedMemory | None = None
        "The memory that a GPU copies rollouts out of; to be closed before the segments are."

    def build(self, name: str) -> Any:
        """The role called `name`, such as `"executor-3"` or `"learner"`."""
        role, _, index = name.partition("-")
        if role == "executor":
            self._shared[name] = self._executor(int(index))
            return self._shared[name]
        if role == "worker":
            page = self._page_of(name)
            if self.spec["pushes"]:
                return self._pusher(int(index), page)
            return self._worker(self._meeting(int(index), page), page)
        builders = {"memorizer": self._memorizer, "learner": self._learner, "evaluator": self._evaluator}
        built = builders[role]()
        if role == "memorizer":
            self._keeper = built
        return built

    def close(self) -> None:
        """Let go of the shared memory, once the roles are closed; a process that ends need not."""
        for segment in self._segments.values():
            segment.close()

    def _page(self, number: int) -> ProgressPage:
        """The process's own progress page, number 0, or that of one of its threads."""
        return ProgressPage(self._segments["control"].buffer, (self.spec["page"] + number) * PAGE_BYTES)

    def _page_of(self, role: str) -> ProgressPage:
        """That of the thread which serves a role."""
        return self.pages[self.spec["threaded"].get(role, "")]

    def _algorithm(self, *, learns: bool, seed: int) -> Any:
        from mlxe_async.algorithms import load_algorithm

        algorithm = load_algorithm(self.settings.algorithm.name)
        if not self.code:  # after an executor's task was imported, and before anything is made of the class
            self.code = code_of(algorithm) if learns else code_told_by_a_fork(algorithm)
        known = algorithm.Settings.model_fields
        fields = {key: value for key, value in self.settings.algorithm.table.items() if key != "name" or key in known}
        return algorithm(
            algorithm.Settings.model_validate(fields),
            self.spaces,
            seed=seed,
            learns=learns,
            threads=self.spec["threads"],
            device=self.settings.learner.device,
        )

    @property
    def _task(self) -> dict[str, Any]:
        """The `[task]` table, as environments are made from it."""
        return self.settings.task.model_dump(mode="json")

    def _memory(self) -> Any:
        if "memory" not in self._shared:
            self._shared["memory"] = self._new_memory()
        return self._shared["memory"]

    def _new_memory(self) -> Any:
        buffer, shape = self._segments["memory"].buffer, self.spec["memory_shape"]
        if self.spec["memory_kind"] == "rollouts":
            return RolloutMemory(RolloutShape(**shape), buffer, formatted=True)
        return ReplayMemory(ReplayShape(**shape), buffer, formatted=True)

    def _executor(self, index: int) -> Any:
        from mlxe_async.roles.executor import Executor
        from mlxe_async.roles.executor_plan import ExecutorLink, ExecutorMemory, ExecutorPlan
        from mlxe_async.roles.places import Places
        from mlxe_async.tasks.training import training_task

        schedule, supervision = self.settings.schedule, self.settings.supervision
        plan = ExecutorPlan(
            index=index,
            seed=self.settings.run.seed,
            life=0 if self.spec["redo"] else self.spec["epoch"],
            sync=schedule.sync,
            rollout_steps=schedule.rollout_steps,
            block_rows=self.spec["block_rows"],
            step_timeout_s=schedule.step_timeout_s,
            reset_timeout_s=schedule.reset_timeout_s,
            fault_limit=supervision.env_fault_limit,
            fault_window_s=supervision.env_fault_window_s,
            nonfinite=supervision.nonfinite,
            records=self.spec["redo"],
            tells_memory=supervision.max_executor_rss_mb is not None,
            executors=self.spec["learned_from"],
            temperature=_of_executor(schedule.temperature_by_executor, index) or 1.0,
            epsilon=_of_executor(schedule.epsilon_by_executor, index),
            is_greedy=index >= self.spec["learned_from"],
            stages=len(self.settings.task.stages),
            shuffles=self.settings.task.shuffle_options,
            keeps_state=self.spec["keeps_state"],
        )
        name = f"executor-{index}"
        page = self._page_of(name)
        offset, names = self.spec["asked_offset"], [f"executor-{i}" for i in range(self.spec["executors"])]
        asked = Words(self._segments["control"].buffer, offset, names)
        # Forked from one process, all would share the state of the global generators some environments use. Executors
        # that live in one process do share it: such environments repeat themselves exactly only under `is`.
        seed = derive_seed(self.settings.run.seed, "executor.globals", index, plan.life)
        random.seed(seed)
        np.random.seed(seed)
        envs, action = schedule.envs_per_executor, self.layout.columns[1]
        begin = self.spec["places_offset"] + index * self.spec["places_bytes"]
        places = Places(envs, action.dtype, action.shape, self._segments["control"].buffer, begin)
        places.clear()
        page.enter(schedule.reset_timeout_s, "make")
        threads_each = threads_of_each(self.spec["executors"], usable_cores())
        task = training_task(self._task, envs, cursor=places.cursor, threads=threads_each)
        page.leave()
        return Executor(
            plan,
            task=task,
            algorithm=self._algorithm(learns=False, seed=0),
            layout=self.layout,
            memory=ExecutorMemory(
                LaneWriter(self._segments[f"lane-{index}"], self.layout.schema_hash),
                WeightsReader(self._segments["delayed" if "delayed" in self._segments else "weights"]),
                page,
                places,
                self._legacy(index),
            ),
            link=ExecutorLink(
                notify=lambda message: self.channel.send({"notice": message}),
                wait=_waiter(self.channel, page),
                asked=lambda: asked.get(name),
                read=self._read if "memorizer" in self.spec["roles"] and not self.spec["threaded"] else None,
                shelf=self._put_on_shelf if "best" in self._segments else None,
            ),
            episodes=self.spec["episodes"].get(str(index)),
        )

    def _read(self, settle: dict[str, Any] | None) -> dict[str, Any]:
        """Have the memorizer of this very thread take in what is committed: no other can, and a lane is full."""
        with self.page.spending("taking_in"):
            ingested: dict[str, Any] = self._keeper.ingest(settle=settle)
        return ingested

    def _legacy(self, index: int) -> Any:
        """Where an executor finds and leaves what is for its successor; None where episodes are not lived again."""
        from mlxe_async.roles.legacy import Legacy, LegacyShape

        if self.spec["legacy_shape"] is None:
            return None
        shape, control = LegacyShape(**self.spec["legacy_shape"]), self._segments["control"].buffer
        store = KeptState(self._segments[f"executor-{index}"])
        return Legacy(shape, store, control, self.spec["legacy_offset"] + index * shape.nbytes)

    def _memorizer(self) -> Any:
        from mlxe_async.roles.memorizer import Memorizer, MemorizerPlan

        memory = self._memory()
        if memory.kind == "rollouts":
            memory.return_taken()
        plan = MemorizerPlan(
            seed=self.settings.run.seed,
            block_rows=self.spec["block_rows"],
            redo=self.spec["redo"],
            rollouts_per_update=self.spec["rollouts_per_update"],
            plan_updates=self.spec["plan_updates"],
            alike=self.spec["alike"],
            is_local=getattr(self.settings.schedule, "replay", "global") == "local",
        )
        hash_ = self.layout.schema_hash
        lanes = [LaneReader(self._segments[f"lane-{i}"], hash_) for i in range(self.spec["executors"])]
        algorithm = self._shared.get("algorithm") or self._algorithm(learns=False, seed=0)
        weights = WeightsReader(self._segments["weights"])
        return Memorizer(
            plan,
            algorithm=algorithm,
            memory=memory,
            layout=self.layout,
            lanes=lanes,
            weights=weights,
            store=KeptState(self._segments["memorizer"]),
        )

    def _learner(self) -> Any:
        from mlxe_async.roles.best_score import BestScore
        from mlxe_async.roles.in_turn import InTurn, Turn
        from mlxe_async.roles.learner import Learner
        from mlxe_async.roles.parameter_server import ParameterServer
        from mlxe_async.roles.promotion import Score

        weights = WeightsWriter(self._segments["weights"])
        last_good: Array | None = None
        if weights.version:
            last_good = np.zeros(self.parameters, dtype=np.float32)
            if WeightsReader(self._segments["weights"]).read(last_good) is None:
                raise MlxeError(f"learner starting: expected to read its predecessor's weights {weights.version} whole")
        learner = self.settings.learner
        seed, memory = derive_seed(self.settings.run.seed, "learner", weights.version), self._memory()
        choose_kernels(self.settings)
        if memory.kind == "rollouts" and learner.device != "cpu":
            self.pinned = PinnedMemory(self._segments["memory"].buffer)
        use_graphs(learner.graphs)
        keep_freed_memory()
        group = self._group()
        kind: Callable[..., Learner] = functools.partial(Learner, promotion=self._promotion())
        keep_every = self.spec["keep_state_every"]
        if self.spec["pushes"]:
            places = [self._places(i) for i in range(self.spec["learned_from"])]
            kind = functools.partial(ParameterServer, places, compensation=self._compensation())
            if self._is_by_score:
                kind, keep_every = functools.partial(BestScore, places, score=Score()), 1
        built = kind(
            algorithm=self._algorithm(learns=True, seed=seed),
            memory=memory,
            weights=weights,
            page=self.page,
            update_timeout_s=self.settings.schedule.update_timeout_s,
            max_policy_lag=self.settings.schedule.traits(memory.kind).max_policy_lag,
            last_good=last_good,
            store=KeptState(self._segments["learner"]),
            keep_every=keep_every,
            fast=self._may_be_fast,
            audit_every=learner.audit_every,
            products=learner.products,
            temperatures=self.settings.schedule.temperatures,
            notify=lambda message: self.channel.send({"notice": message}),
            remarks=refusals,
            keep_batch=self._keep_batch,
            make=lambda: self._algorithm(learns=False, seed=0),
            team=None if group is None else self._team(group),
            quantiles_every=self.settings.logs.quantiles_every,
            gauge=gauge_of(learner.device),
        )
        if not isinstance(group, Turn):
            return built
        others = [self._worker(Turn(group.turns, index), self.page) for index in range(1, group.workers)]
        return InTurn(group.turns, built, others)

    @property
    def _may_be_fast(self) -> bool:
        """Twins have gradients in an order of their own, which delay compensation does not know."""
        compensates = getattr(self.settings.schedule, "combine", "fifo") == "delay_compensated"
        return self.settings.may_be_fast and not compensates

    @property
    def _is_by_score(self) -> bool:
        return getattr(self.settings.schedule, "combine", "fifo") == "best_score"

    def _group(self) -> Any:
        """Return those that the learner is worker 0 of, in other processes or in this one; None: it learns alone."""
        from mlxe_async.roles.in_turn import Turn, Turns

        if not self.spec["exchanges"] or self.spec["pushes"]:
            return None
        serial = self.settings.schedule.kind == "serial"
        return Turn(Turns(self.spec["learned_from"]), 0) if serial else self._meeting(0, self.page)

    def _team(self, group: Any) -> Any:
        from mlxe_async.roles.team import Team

        return Team(group, self.settings.run.seed)

    def _meeting(self, index: int, page: ProgressPage) -> Any:
        from mlxe_async.ipc.shared.meeting import Meeting
        from mlxe_async.maths.together import KINDS, PIECE_BYTES

        return Meeting(
            self._segments["exchange"],
            index,
            self.spec["learned_from"],
            kinds=KINDS,
            slot_bytes=PIECE_BYTES,
            waiting=lambda: self._no_hang(page),
        )

    @contextlib.contextmanager
    def _no_hang(self, page: ProgressPage) -> Iterator[None]:
        """A wait for another worker is no hang: that one is judged."""
        is_within = page.pulse()[1] != 0  # an update; at its end they meet once more
        page.leave()
        with page.spending("exchanging"):
            yield
        if is_within:
            page.enter(self.settings.schedule.update_timeout_s, "update")

    def _worker(self, group: Any, page: ProgressPage) -> Any:
        from mlxe_async.roles.worker import Worker

        return self._beside(Worker, self._team(group), page)

    def _pusher(self, index: int, page: ProgressPage) -> Any:
        from mlxe_async.roles.best_score import Contender
        from mlxe_async.roles.pushing import Pusher, Pushing

        kind = self.spec["memory_kind"]
        replays = kind == "replay"
        how = {
            "acted": None if replays else self._shared[f"executor-{index}"].acted,
            "places": self._places(index),
            "max_policy_lag": self.settings.schedule.traits(kind).max_policy_lag if replays else 0,
        }
        pushing = Pushing(index, self.settings.run.seed, replays=replays)
        made: Callable[..., Pusher] = functools.partial(Pusher, **how)
        if self._is_by_score:
            made = functools.partial(Contender, adopt=self._shared[f"executor-{index}"].adopt, **how)
        return self._beside(made, pushing, page)

    def _compensation(self) -> Any:
        from mlxe_async.maths.delay_compensation import DelayCompensation

        schedule = self.settings.schedule
        assert schedule.kind == "oa"  # noqa: S101 - nowhere else are gradients pushed
        if schedule.combine != "delay_compensated":
            return None
        most = schedule.traits(self.spec["memory_kind"]).max_policy_lag
        versions = REMEMBERED if most is None else most
        return DelayCompensation(versions, kind=schedule.compensation, strength=schedule.compensation_strength)

    def _places(self, index: int) -> Any:
        from mlxe_async.ipc.shared.pushes import PushPlaces

        return PushPlaces(self._segments[f"push-{index}"])

    def _beside(self, kind: Callable[..., Any], team: Any, page: ProgressPage) -> Any:
        """A learning object beside the learner, which publishes nothing."""
        from mlxe_async.roles.worker import Followed, KeptElsewhere

        memory, learner = self._new_memory(), self.settings.learner
        choose_kernels(self.settings)
        keep_freed_memory()
        return kind(
            WeightsReader(self._segments["weights"]),
            self.parameters,
            algorithm=self._algorithm(learns=True, seed=derive_seed(self.settings.run.seed, "learner", 0)),
            memory=memory,
            weights=Followed(),
            page=page,
            update_timeout_s=self.settings.schedule.update_timeout_s,
            store=KeptElsewhere(self._kept_by_the_learner),
            fast=self._may_be_fast,
            audit_every=learner.audit_every,
            products=learner.products,
            temperatures=self.settings.schedule.temperatures,
            notify=lambda _message: None,  # the learner tells how updates are done
            keep_batch=self._keep_batch,
            team=team,
        )

    def _kept_by_the_learner(self, version: int) -> tuple[int, dict[str, Array]] | None:
        if self._learners_state is None or not self._learners_state.is_laid_out:
            self._segments["learner"].grow(0, sealed=False)  # the learner makes it larger, once
            self._learners_state = KeptState(self._segments["learner"])
        return self._learners_state.find_certified(version)

    def _keep_batch(self, batch: Mapping[str, Array]) -> str | None:
        from mlxe_async.storage.array_files import write_arrays
        from mlxe_async.storage.files import make_folder

        if self.spec.get("folder") is None:
            return None
        path = Path(self.spec["folder"]) / CRASH / f"batch.{self.spec['epoch']}.safetensors"
        try:
            make_folder(path.parent)
            write_arrays(path, {name: np.asarray(column) for name, column in batch.items()})
        except (OSError, ValueError):
            return None  # a full disk must not hide what is wrong with the numbers
        return str(path)

    def _promotion(self) -> Any:
        from mlxe_async.roles.promotion import OnlinePromotion, Promotion

        patience = self.settings.learner.promote_best
        if not patience:
            return None
        if self.settings.schedule.kind == "oa":
            return OnlinePromotion(self._put_on_shelf, self._on_shelf)
        return Promotion(patience, WeightsWriter(self._segments["best"]), self._on_shelf())

    def _on_shelf(self) -> Array | None:
        """A copy of the best version and what is known of it."""
        from mlxe_async.roles.promotion import REMARKS

        kept, reader = np.zeros(self.parameters + REMARKS, dtype=np.float32), WeightsReader(self._segments["best"])
        found = reader.read(kept)
        reader.release()
        return kept if found else None

    def _put_on_shelf(self, vector: Array) -> None:
        """Several processes do, one at a time: each begins where the last one stopped."""
        writer = WeightsWriter(self._segments["best"])
        writer.publish(vector)
        writer.release()

    def _evaluator(self) -> Any:
        from mlxe_async.roles.evaluator import Evaluator, Rules

        evaluation = self.settings.evaluation.model_dump(mode="json")
        algorithm, videos = self._algorithm(learns=False, seed=0), None
        if self.settings.evaluation.video:
            from mlxe_async.roles.videos import Videos

            folder = Path(self.spec["folder"]) / VIDEOS
            videos = Videos(algorithm, self._task, Rules.from_mapping(evaluation), folder)
        evaluator = Evaluator(algorithm, self._task, evaluation, None if videos is None else videos.judged)
        return Examiner(evaluator, WeightsReader(self._segments["tested"]), self.parameters, self.page, videos)


def _of_executor(numbers: Sequence[float] | None, index: int) -> float | None:
    """The number of an executor; None where there is none."""
    return None if numbers is None or index >= len(numbers) else float(numbers[index])


def _waiter(channel: ChildChannel, page: ProgressPage) -> Callable[[float], None]:
    """A bounded wait that ends early, with ControlLost, when the supervisor is gone. Waiting is no hanging."""
    poll = select.poll()
    poll.register(channel.fileno(), 0)

    def wait(seconds: float) -> None:
        ends = time.monotonic() + seconds
        while True:
            with page.spending("room"):
                if poll.poll(1000 * max(0.0, min(ends - time.monotonic(), WAIT_S))):
                    raise ControlLost("the supervisor is gone")
            page.leave()
            if time.monotonic() >= ends:
                return

    return wait
