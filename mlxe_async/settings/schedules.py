"""`[schedule]`: which process waits for which. One table per kind, and the traits that all of them share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema

from mlxe_async.settings.combining import HOGWILD_PLACES, Combining
from mlxe_async.settings.forms import ALLOWED, COSMETIC, FORBIDDEN, Limit, Table, key

DEFAULT_MAX_POLICY_LAG = 8
DEFAULT_MAX_ROLLOUTS = 4
MOST_EXECUTORS = 1024
AUTO = "auto"
Executors = Annotated[
    int,
    Field(ge=1, le=MOST_EXECUTORS),
    # A file may say "auto"; the tree holds the number that it was replaced by.
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": MOST_EXECUTORS}, {"const": AUTO}]}),
]

Temperature = Annotated[float, Field(gt=0, le=1e6)]
Share = Annotated[float, Field(ge=0, le=1)]


def left_to_defaults(defaults: Mapping[str, Any], table: Mapping[str, Any], said: Collection[str]) -> dict[str, Any]:
    """Return an algorithm's own defaults that count in a table, given as all its keys, of which users set some."""
    free = {key: value for key, value in defaults.items() if key in table and key not in said}
    if "sync" in said and table["sync"] != "rollout":
        free.pop("envs_per_executor", None)
    if table.get("kind") != "oa":  # where rollouts wait, their lag is asked for
        free.pop("max_policy_lag", None)
    if "keep_rows" in free and (capacity := {**table, **free}["capacity_rows"]):
        free["keep_rows"] = min(free["keep_rows"], capacity)
    return free


@dataclass(frozen=True)
class Traits:
    """The traits that all schedules have, each key decided: the defaults too, which depend on the memory.

    Args:
        free_running: no process waits for a phase to end.
        deterministic: what a dead executor left unfinished is generated again, to the same rows.
        flavour: how executors that are threads wait, or `"pushing"` where executors make gradients alone; else None.
        unfinished: what becomes of the episodes of an interrupted rollout; None where none is interrupted.
        max_rollouts: rollouts of one executor in an iteration; None: any number.
        max_policy_lag: age in versions beyond which rows are not learned from; None: all are.
        updates_per_plan: minibatches drawn at a time; None: all that are due.
        max_owed_updates: owing more than this many, the executors wait; None: they never do.
        simulated_lag: versions by which the weights that executors act with are older than the newest.
    """

    free_running: bool = False
    deterministic: bool = True
    flavour: str | None = None
    unfinished: str | None = None
    max_rollouts: int | None = None
    max_policy_lag: int | None = None
    updates_per_plan: int | None = None
    max_owed_updates: int | None = None
    simulated_lag: int = 0


class _AnySchedule(Table):
    """The keys that all schedules have."""

    reproducible: ClassVar[bool] = False
    """True if the same settings make the same run, whatever else the machine does."""

    executors: Executors = key(
        2,
        'Processes that step environments. "auto": as many as there are cores beside learner and memorizer.',
        ALLOWED,
    )
    envs_per_executor: int = key(
        1, "Environments side by side in one executor; more cost less each.", FORBIDDEN, ge=1, le=65_536
    )
    min_executors: int = key(
        1,
        "The run fails when fewer than this are left; higher stops sooner. With gradients of executors all are needed.",
        COSMETIC,
        ge=1,
        le=1024,
    )
    sync: Literal["episode", "rollout", "either"] = key(
        "episode",
        "An executor delivers, and takes new weights, after an episode, rollout_steps, or whichever is first; left "
        "out, episode with one environment and rollout with several.",
        ALLOWED,
    )
    rollout_steps: int = key(
        128, "Steps of each environment in a rollout, if not by episode; more wait longer.", ALLOWED, ge=1, le=10**7
    )
    memorizer: Literal["auto", "own", "learner"] = key(
        "auto", "Process of the memory: its own, the learner's, or what suits the cores.", COSMETIC
    )
    gradients: Literal["learner", "executors"] = key(
        "learner",
        "Which processes differentiate: the learner, or each executor its share. Under is and serial all step by the "
        "mean of their gradients, under oa the learner steps by each. executors is faster where the learner limits.",
        ALLOWED,
    )
    executors_as: Literal["processes", "threads"] = key(
        "processes",
        "threads of one process share one core's worth of Python, and die together; what they learn is the same.",
        ALLOWED,
    )
    temperature_by_executor: list[Temperature] | None = key(
        None, "By which each executor divides its policy's logits: above 1 it tries more. Left out, 1.", ALLOWED
    )
    epsilon_by_executor: list[Share] | None = key(
        None, "Share of random actions of each executor, instead of the algorithm's; higher tries more.", ALLOWED
    )
    exploit_only: int = key(
        0,
        "Executors, the last ones, that take the best action. They are not learned from and count nowhere.",
        ALLOWED,
        ge=0,
        lt=MOST_EXECUTORS,
    )
    step_timeout_s: Limit = key(5.0, "A step that takes longer is a hang: the executor is restarted.", COSMETIC)
    reset_timeout_s: Limit = key(
        60.0, "The same for making and resetting an environment, and for the first step of an episode.", COSMETIC
    )
    update_timeout_s: Limit = key(60.0, "The same for one update of the learner.", COSMETIC)

    @property
    def most_steps(self) -> int | None:
        """Steps of each environment in a rollout, at most; None: as many as an episode has."""
        return None if self.sync == "episode" else self.rollout_steps

    @property
    def learned_from(self) -> int:
        """Number of executors that are learned from, the first ones."""
        return self.executors - self.exploit_only

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The different temperatures that executors act by; none where each has an epsilon of its own."""
        return (
            () if self.epsilon_by_executor is not None else tuple(sorted({*(self.temperature_by_executor or (1.0,))}))
        )

    @property
    def explores_apart(self) -> str | None:
        """The key by which executors act by other policies than the one that learns; None: they do not."""
        if any(one != 1 for one in self.temperature_by_executor or ()):
            return "temperature_by_executor"
        return None if self.epsilon_by_executor is None else "epsilon_by_executor"

    def traits(self, memory: str) -> Traits:  # noqa: ARG002 - defaults of some kinds depend on it
        """Return what this schedule is like, in the terms of all of them; `memory`: `"replay"` or `"rollouts"`."""
        return Traits()


class _Exact(_AnySchedule):
    """The keys of schedules that repeat themselves bit for bit: they allow an exact policy lag on purpose."""

    reproducible: ClassVar[bool] = True

    simulated_lag: int = key(
        0,
        "Executors act with weights that are older by exactly this many versions; higher is harder.",
        ALLOWED,
        ge=0,
        le=4096,
    )
    max_policy_lag: int | None = key(
        None,
        "With simulated_lag: rows made with weights older than this many versions are not learned from; left out, all "
        "are.",
        ALLOWED,
        ge=0,
        le=10**9,
    )

    def traits(self, memory: str) -> Traits:  # noqa: ARG002 - see above
        """Without simulated lag no rollout is older than the newest weights, and nothing is bounded."""
        if not self.simulated_lag:
            return Traits()
        return Traits(simulated_lag=self.simulated_lag, max_policy_lag=self.max_policy_lag)


class SerialSchedule(_Exact):
    """`kind = "serial"`: everything in one process, in order; for debuggers and tests."""

    kind: Literal["serial"] = key(..., "All roles in one process, one after the other.", ALLOWED)


class IsSchedule(_Exact):
    """`kind = "is"`: every executor delivers once, all wait, then learn, then publish. Deterministic."""

    kind: Literal["is"] = key(..., "Iterative synchronous: all wait for each other.", ALLOWED)


class IstbSchedule(_AnySchedule):
    """`kind = "istb"`: as `is`, but executors are threads of one process; the baseline that processes are held against.

    Memorizer and learner live in that process too. One that dies takes all with it, and begins their rollouts again.
    """

    kind: Literal["istb"] = key(..., "Iterative synchronous, threaded baseline: one process, many threads.", ALLOWED)
    executors: Executors = key(
        2,
        'Threads that step environments; more share one core\'s worth of Python. "auto": as many as the other kinds '
        "would have.",
        ALLOWED,
    )
    flavour: Literal["fair", "as_published"] = key(
        "fair", "fair differs from is by its threads alone; as_published also waits by looking once a second.", ALLOWED
    )

    def traits(self, memory: str) -> Traits:  # noqa: ARG002 - see above
        """Its threads may wait in two ways."""
        return Traits(flavour=self.flavour)


class IaSchedule(_AnySchedule):
    """`kind = "ia"`: who has delivered goes again until the slowest has, then learn, then publish.

    Who is faster decides what is learned from: two runs with one seed differ.
    """

    kind: Literal["ia"] = key(..., "Iterative asynchronous: fast executors go again until all have delivered.", ALLOWED)
    unfinished: Literal["keep", "drop"] = key(
        "keep",
        "Episodes under way when all have delivered: keep learns from their rows and goes on with them under the next "
        "weights, drop throws them away, which favours short ones.",
        ALLOWED,
    )
    max_rollouts: int | None = key(
        None,
        "Rollouts of one executor in an iteration; more wait less. Left out, 4, and no bound for a replay memory.",
        ALLOWED,
        ge=1,
        le=10**6,
    )

    def traits(self, memory: str) -> Traits:
        """Rollouts are interrupted, and of an algorithm that learns from rollouts there is a bound on them."""
        most = self.max_rollouts or (DEFAULT_MAX_ROLLOUTS if memory == "rollouts" else None)
        return Traits(deterministic=False, unfinished=self.unfinished, max_rollouts=most)


class OaSchedule(_AnySchedule):
    """`kind = "oa"`: no process waits; generating, memorizing and learning overlap."""

    kind: Literal["oa"] = key(..., "Online asynchronous: no process waits.", ALLOWED)
    max_policy_lag: int | None = key(
        None,
        "Rows made with weights older than this many versions are not learned from; left out, 8 for rollouts, 4 if the "
        "policy has a cell, none for a replay memory; for pushes 2 for each executor, if that is more.",
        ALLOWED,
        ge=0,
        le=10**9,
    )
    updates_per_publish: int = key(
        1, "Updates between two publications; higher copies less and lags more.", ALLOWED, ge=1, le=10**6
    )
    combine: Literal["fifo", "mean", "delay_compensated", "best_score"] = key(
        "fifo",
        "With gradients of executors, what the learner steps by: each as it comes, the mean of several, or each moved "
        "to the newest weights (DC-ASGD) for long lags. best_score: all go on from the best episode's network.",
        ALLOWED,
    )
    simulated_lag: int = key(
        0,
        "With gradients of executors: each waits for this many younger ones; a higher lag is harder.",
        ALLOWED,
        ge=0,
        le=256,
    )
    mean_of: int | None = key(
        None,
        "With mean: gradients of one step; left out, one for each executor. More are smoother.",
        ALLOWED,
        ge=2,
        le=256,
    )
    hogwild: bool = key(
        False,
        "With gradients of executors: who has pushed plays on. Ten pushes of each may wait, then the oldest gives way.",
        ALLOWED,
    )
    replay: Literal["global", "local"] = key(
        "global",
        "With gradients of executors that replay: from the rows of all, or from each executor's own, as in RELAAX.",
        ALLOWED,
    )
    max_loss_deviations: float | None = key(
        None,
        "With gradients of executors: reject a push whose loss is off by more deviations (Gorila).",
        ALLOWED,
        gt=0,
        le=1e6,
    )
    compensation: Literal["adaptive", "constant"] = key(
        "adaptive",
        "With delay_compensated: divide the strength by the root mean square of gradients, or not.",
        ALLOWED,
    )
    compensation_strength: float | None = key(
        None, "The strength; left out, 2 if it is adaptive and 0.04 if it is constant.", ALLOWED, gt=0, le=1e6
    )
    max_owed_updates: int = key(
        128, "Executors wait when the learner owes this many updates; higher waits less.", ALLOWED, ge=1, le=10**9
    )

    def traits(self, memory: str) -> Traits:
        """Return the traits of `oa`: no process waits, so the lag of rollouts is bounded by default."""
        bound = self.max_policy_lag
        if bound is None and memory == "rollouts":
            of_pushes = 2 * self.learned_from * (self.gradients == "executors") + self.simulated_lag
            bound = max(DEFAULT_MAX_POLICY_LAG, of_pushes)
        return Traits(
            free_running=True,
            deterministic=False,
            flavour="pushing" if self.gradients == "executors" else None,
            max_policy_lag=bound,
            updates_per_plan=1 if self.gradients == "executors" else self.updates_per_publish,
            max_owed_updates=self.max_owed_updates,
        )

    @property
    def combining(self) -> Combining:
        """The way in which what executors push is put together; of replayed rows, too, a push may not be too old."""
        pushes = (self.mean_of or max(2, self.learned_from)) if self.combine == "mean" else 1
        lag, by_score = self.simulated_lag, self.combine == "best_score"
        places = pushes + lag + 1 if pushes + lag > 1 else 1
        return Combining(
            pushes=pushes,
            places=max(places, HOGWILD_PLACES) if self.hogwild else places,
            waits=pushes + lag == 1 and not self.hogwild,
            gives_way=self.hogwild,
            most_lag=None if by_score else self.traits("rollouts").max_policy_lag,
            most_deviations=self.max_loss_deviations,
            lag=lag,
            by_score=by_score,
        )


SCHEDULES = (SerialSchedule, IsSchedule, IstbSchedule, IaSchedule, OaSchedule)
