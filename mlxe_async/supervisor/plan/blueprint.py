"""Decides how many bytes of shared memory the processes of a run need, and what each is told at its birth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from mlxe_async.cores import FEW, usable_cores
from mlxe_async.ipc.shared.kept import LEAST_BYTES, SLOTS
from mlxe_async.ipc.shared.lanes import format_lane, lane_bytes
from mlxe_async.ipc.shared.meeting import meeting_bytes
from mlxe_async.ipc.shared.pushes import least_bytes as push_bytes
from mlxe_async.ipc.shared.segments import BytePlan, Segment, available_memory
from mlxe_async.ipc.shared.weights import format_weights, weights_bytes
from mlxe_async.ipc.shared.words import PAGE_BYTES, WORD_STRIDE
from mlxe_async.maths.together import PIECE_BYTES
from mlxe_async.memory.committed import format_memory
from mlxe_async.memory.frames import MOST as MOST_FRAMES
from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.rollout_sizes import RolloutSizes
from mlxe_async.memory.rollouts import RolloutMemory, RolloutShape
from mlxe_async.memory.shape import PLAN_SLOTS, ReplayShape
from mlxe_async.roles.legacy import LegacyShape
from mlxe_async.roles.places import Places
from mlxe_async.roles.promotion import REMARKS
from mlxe_async.rows import RowLayout
from mlxe_async.settings import Settings
from mlxe_async.settings.combining import Combining
from mlxe_async.supervisor.plan.budget import Budget
from mlxe_async.supervisor.plan.processes import PlannedProcess, planned_processes, pushes_of

PLAN_UPDATES = 512
STATE_VECTORS = 5
"""Vectors as large as the weights in the state of the algorithms that come with this: what is planned for."""
KEPT = ("learner", "memorizer")


class Blueprint:
    """All sizes of one run.

    Args:
        settings: the run's settings.
        facts: what the probe reported: spaces, columns, numbers of parameters.
    """

    def __init__(self, settings: Settings, facts: Mapping[str, Any]) -> None:
        self.settings = settings
        self.facts = facts
        schedule, memory = settings.schedule, settings.memory
        self.traits = traits = schedule.traits(facts["memory_kind"])
        self.executors, self.learned_from = schedule.executors, schedule.learned_from
        self.envs = schedule.envs_per_executor
        self.parameters = sum(math.prod(shape) for _, shape in facts["parameters"])
        self.layout = RowLayout.from_json(facts["columns"])
        self.block_rows = max(memory.block_rows, self.envs)
        self.cores = usable_cores()
        self.joined = (
            schedule.kind in ("serial", "istb")
            or settings.run.record  # who overwrites what while the learner reads could not be told
            or schedule.memorizer == "learner"
            or (schedule.memorizer == "auto" and self.cores <= FEW and not self.combining.gives_way)
        )
        self._rollouts = RolloutSizes(
            executors=self.executors,
            envs=self.envs,
            columns=facts["columns"],
            sync=schedule.sync,
            rollout_steps=schedule.most_steps,
            episode_steps=facts["task"]["max_episode_steps"],
            rows_per_update=int(facts.get("rows_per_update", 0)) if facts["memory_kind"] == "rollouts" else 0,
            pushes=self.pushes,
        )
        self.memory_shape: ReplayShape | RolloutShape
        if facts["memory_kind"] == "rollouts":
            self.memory_shape = self._rollouts.memory_shape(settings.capacity_rows, traits.max_rollouts)
        else:
            stream_rows = max(1, settings.capacity_rows // (self.learned_from * self.envs))
            self.memory_shape = ReplayShape(
                lanes=self.executors,
                envs=self.envs,
                stream_rows=stream_rows,
                keep_rows=min(memory.keep_rows or self._rollouts.rows_of_a_segment(stream_rows), stream_rows),
                block_rows=self.block_rows,
                batch_rows=facts["batch_rows"],
                plan_updates=PLAN_UPDATES,
                columns=facts["columns"],
                derived=facts["derived"],
                prioritised=facts["prioritised"],
                largest_decay=facts.get("largest_decay", 1.0),
                frames=stored_frames(facts),
                moments=facts.get("moments", 0),
                plan_slots=max(PLAN_SLOTS, self.learned_from if self.pushes else 0),
            )
        self.promotes = settings.learner.promote_best > 0
        self.processes = planned_processes(
            settings, traits, joined=self.joined, kept=self.kept, meets=self.meets, pushes=self.pushes
        )

    @property
    def kept(self) -> tuple[str, ...]:
        """Roles that keep something for their successor, each in a segment of its own by that name."""
        return (*KEPT, *(f"executor-{i}" for i in range(self.executors if self.traits.deterministic else 0)))

    @property
    def exchanges(self) -> bool:
        """True if executors make gradients, each from a share of the rows; one alone does so where it pushes them."""
        schedule = self.settings.schedule
        return schedule.gradients == "executors" and (self.learned_from > 1 or schedule.kind == "oa")

    @property
    def meets(self) -> bool:
        """True if these are several processes, which make each update together."""
        return self.exchanges and self.settings.schedule.kind == "is"

    @property
    def pushes(self) -> bool:
        """True if each makes its gradients alone, and the learner steps by them."""
        return self.exchanges and self.settings.schedule.kind == "oa"

    @property
    def combining(self) -> Combining:
        """The way in which what executors push is put together."""
        schedule = self.settings.schedule
        return schedule.combining if schedule.kind == "oa" else Combining()

    @property
    def least_executors(self) -> int:
        """The run fails when fewer than this are left: where they make each update together, all are needed."""
        needs_all = self.exchanges and not self.pushes
        return self.executors if needs_all else self.settings.schedule.min_executors

    def most_rows(self, budget: Budget) -> int | None:
        """Rows at which an episode is cut: an executor's share of the steps left, and what the memory can hold.

        It is for episodes that only the environment ends, so that a rollout of one is ever delivered. None: rollouts
        end by themselves, or the algorithm does not value what follows a cut.
        """
        is_whole = self.settings.schedule.sync == "episode" and not self.facts["task"]["max_episode_steps"]
        if not is_whole or not self.facts.get("bootstraps", True):
            return None
        shape = self.memory_shape
        bounds = [budget.share(self.learned_from), shape.slot_rows if isinstance(shape, RolloutShape) else None]
        return min((bound for bound in bounds if bound is not None), default=None)

    def least_rows(self, budget: Budget) -> int:
        """Rows of whole episodes that are delivered together, at most an executor's share of the steps left."""
        share, wanted = budget.share(self.learned_from), self._rollouts.least_rows
        return wanted if share is None else min(wanted, share)

    @property
    def round_rows(self) -> int | None:
        """Most rows that are counted between two boundaries of the schedule, None where that is not known before."""
        rows = self._rollouts.rows if self.traits.deterministic else None
        return None if rows is None else rows * self.learned_from

    @property
    def memory_to_keep(self) -> dict[str, Any]:
        """Return what must be the same for a run to go on with the memory of a checkpoint, as JSON."""
        shape = self.memory_shape
        frames = {"frame_rows": shape.frame_rows} if isinstance(shape, ReplayShape) and shape.frames else {}
        return {**shape.to_json(), **frames, "state_words": shape.state_words, "block_rows": self.block_rows}

    @property
    def asked_offset(self) -> int:
        """Offset behind the progress pages of a word for each executor: rollouts it is not to go on with."""
        return PAGE_BYTES * sum(len(planned.pages) for planned in self.processes)

    @property
    def places_offset(self) -> int:
        """Offset behind those words at which the executors count: see `places_bytes`."""
        return self.asked_offset + WORD_STRIDE * self.executors

    @property
    def places_bytes(self) -> int:
        """Bytes of one executor's `roles.places.Places`, which follow on each other."""
        return Places.nbytes(self.envs, *self._action)

    @property
    def legacy_shape(self) -> LegacyShape:
        """Sizes of what an executor leaves to its successor."""
        schedule, steps = self.settings.schedule, self.facts["task"]["max_episode_steps"]
        ended = self.envs * (schedule.rollout_steps if schedule.sync == "rollout" else 1)
        return LegacyShape(self.envs, *self._action, steps, ended)

    @property
    def legacy_offset(self) -> int:
        """Offset behind the places at which the actions and answers of the first executor begin, a whole page."""
        return -(-(self.places_offset + self.places_bytes * self.executors) // PAGE_BYTES) * PAGE_BYTES

    @property
    def _action(self) -> tuple[str, tuple[int, ...]]:
        column = next(column for column in self.layout.columns if column.name == "action")
        return column.dtype, column.shape

    def memory_in(self, segments: Mapping[str, Segment]) -> ReplayMemory | RolloutMemory:
        """An onlooker's view on the rows that a run keeps."""
        shape, buffer = self.memory_shape, segments["memory"].buffer
        if isinstance(shape, ReplayShape):
            return ReplayMemory(shape, buffer, formatted=True)
        return RolloutMemory(shape, buffer, formatted=True)

    def places(self, control: Segment, index: int) -> Places:
        """Records of where the environments of an executor stand, or stood when it died."""
        return Places(self.envs, *self._action, control.buffer, self.places_offset + index * self.places_bytes)

    def page_of(self, role: str) -> int:
        """Number of the progress page on which a role is at work."""
        planned = next(planned for planned in self.processes if role in planned.roles)
        thread = planned.threaded.get(role)
        return planned.page + (0 if thread is None else 1 + planned.threads.index(thread))

    @property
    def learner_threads(self) -> int:
        """Threads of the learner: as asked, else what the executors leave of the cores."""
        alone = self.settings.learner.threads or max(1, self.cores - self.executors)
        return 1 if self.exchanges else alone

    @property
    def keep_state_every(self) -> int:
        """Publications from one write of the learner's state to the next; 0: as time allows.

        A deterministic or recorded run writes it with every publication.
        """
        always = self.traits.deterministic or self.settings.run.record or self.pushes
        return self.settings.learner.keep_state_every or int(always)

    def byte_plan(self) -> BytePlan:
        """Every shared segment with its size; the learner's own has it with its first publication."""
        plan = BytePlan()
        for name, size in self._sizes().items():
            plan.add(name, size)
        plan.add("learner, later", SLOTS * STATE_VECTORS * 4 * self.parameters)
        if self.traits.deterministic:
            plan.add("executors, later", SLOTS * self.layout.nbytes(self.envs) * self.executors)
        if self.pushes:  # of one gradient; an update of several steps pushes as many
            plan.add("pushes, later", 4 * self.parameters * self.combining.places * self.learned_from)
        if lag := self.traits.simulated_lag:
            plan.add("older weights, later", (lag + 1) * 4 * self.parameters)
        return plan

    def _sizes(self) -> dict[str, int]:
        lane = lane_bytes(self.settings.memory.lane_slots, self.layout.nbytes(self.block_rows))
        return {
            "control": self.legacy_offset
            + (self.legacy_shape.nbytes * self.executors if self.traits.deterministic else 0),
            "weights": weights_bytes(self.parameters),
            "tested": weights_bytes(self.parameters),
            "memory": self.memory_shape.nbytes,
            **dict.fromkeys(self.kept, LEAST_BYTES),
            **({"delayed": weights_bytes(self.parameters)} if self.traits.simulated_lag else {}),
            **({"best": weights_bytes(self.parameters + REMARKS)} if self.promotes else {}),
            **({"exchange": meeting_bytes(self.learned_from, PIECE_BYTES)} if self.meets else {}),
            **dict.fromkeys(pushes_of(self.learned_from) if self.pushes else [], push_bytes(self.combining.places)),
            **{f"lane-{i}": lane for i in range(self.executors)},
        }

    def create_segments(self) -> dict[str, Segment]:
        """Reserve all shared memory, or none of it.

        Raises:
            ResourceError: there is not enough; the message holds the whole plan.
        """
        self.byte_plan().check(available_memory())
        segments: dict[str, Segment] = {}
        try:
            for name, size in self._sizes().items():
                segments[name] = Segment.create(name, size, grows=name in self.kept or name.startswith("push-"))
        except BaseException:
            for segment in segments.values():
                segment.close()
            raise
        format_weights(segments["weights"], self.parameters)
        format_weights(segments["tested"], self.parameters)
        if self.traits.simulated_lag:
            format_weights(segments["delayed"], self.parameters)
        if self.promotes:
            format_weights(segments["best"], self.parameters + REMARKS)
        format_memory(segments["memory"].buffer, self.memory_shape.state_words)
        payload = self.layout.nbytes(self.block_rows)
        for i in range(self.executors):
            format_lane(segments[f"lane-{i}"], self.settings.memory.lane_slots, payload, self.layout.schema_hash)
        return segments

    def spec(self, planned: PlannedProcess, epoch: int, episodes: Mapping[str, list[int]]) -> dict[str, Any]:
        """Return what a planned process is told at birth, in plain JSON types."""
        return {
            "roles": list(planned.roles),
            "page": planned.page,
            "threaded": planned.threaded,
            "asked_offset": self.asked_offset,
            "places_offset": self.places_offset,
            "places_bytes": self.places_bytes,
            "legacy_offset": self.legacy_offset,
            "legacy_shape": asdict(self.legacy_shape) if self.traits.deterministic else None,
            "epoch": epoch,
            "episodes": dict(episodes),
            "settings": self.settings.model_dump(mode="json"),
            "spaces": self.facts["spaces"],
            "columns": self.facts["columns"],
            "keeps_state": self.facts["task"].get("keeps_state", False),
            "parameters": self.parameters,
            "memory_kind": self.facts["memory_kind"],
            "memory_shape": self.memory_shape.to_json(),
            "executors": self.executors,
            "learned_from": self.learned_from,
            "block_rows": self.block_rows,
            "plan_updates": PLAN_UPDATES,
            "rollouts_per_update": 1 if self.traits.free_running else None,
            "redo": not self.traits.free_running,
            "alike": self.traits.deterministic,
            "exchanges": self.exchanges,
            "pushes": self.pushes,
            "threads": self.learner_threads if "learner" in planned.roles else 1,
            "keep_state_every": self.keep_state_every,
        }


def stored_frames(facts: Mapping[str, Any]) -> int:
    """Frames of which an observation is made and which a replay memory stores one by one; 0: it stores them whole."""
    frames = int(facts["spaces"].get("frames", 0))
    return frames if frames <= MOST_FRAMES else 0
