"""The interface of an algorithm to the rest of the program: one object that acts, derives, and learns.

Executors, memorizer, learner and evaluator each make an object of the same class; the learner's has `learns=True`. What
an author writes, and who calls it, is told in the package's docstring; `Algorithm` has the verbs one by one, and
`optional_verbs` those that some settings ask of an algorithm besides.

Shapes: L rows of a segment, T time, B environments side by side, M samples of a batch, O an observation, A actions,
P weights, V versions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, JsonValue

from mlxe_async import denormals
from mlxe_async.algorithms.state import drawing
from mlxe_async.algorithms.state.modules import ModulesOf
from mlxe_async.maths import annealing
from mlxe_async.networks import Floats, Parameters
from mlxe_async.rows import Array, Column, Spaces

if TYPE_CHECKING:
    import torch
    from torch import nn

    from mlxe_async.algorithms.distributions import Distribution

Rows = dict[str, Array]
Metrics = dict[str, float]
Tensors = dict[str, "torch.Tensor"]
STAYS: dict[str, JsonValue] = {"on_resume": "forbidden"}
"""`json_schema_extra` of a field of `Settings` that must not change when a run goes on: it is part of the network."""


def needs(condition: str | Mapping[str, str]) -> dict[str, JsonValue]:
    """`json_schema_extra` of a field of `Settings` that has an effect only while a condition on others holds.

    A key that the user wrote is refused where it does not. Of a list, a table says what single entries need. For the
    form, such as `"noisy and discount > 0"`, see `settings.effects`.
    """
    return {"needs": condition if isinstance(condition, str) else {**condition}}


@dataclass(frozen=True)
class Clock:
    """The progress of the run; an algorithm anneals everything by this one clock.

    Args:
        env_steps: environment steps memorized so far, all executors together.
        episodes: episodes finished so far.
        updates: calls of `update` so far.
        version: weights published so far.
    """

    env_steps: int = 0
    episodes: int = 0
    updates: int = 0
    version: int = 0


@dataclass
class Acting:
    """The inputs of acting beside the observations: whose they are, and the progress of the run.

    An executor hands the same object to each call of `act` in one rollout. An evaluator, a loaded policy and a
    resumed run have one of their own, alike.

    Args:
        steps: environment steps of this executor so far, all its environments and all its lives together.
        episodes: finished episodes of the whole run when the rollout began.
        rollouts: rollouts of this executor before the present one.
        executor: number of the executor, from 0.
        executors: how many there are whose rows are learned from.
        began: whether each observation is the first of its episode (B,), truth values; None: not known.
        carry: what each environment carries from step to step, name -> (B, ...), as the algorithm's `carry` says.
            Where an episode began it is zero; `act` and `greedy` write what the next step is to find.
        temperature: of what this executor draws from, see `tempered`.
        epsilon: share of random actions of this executor, see `share`; None: as the algorithm has it.
        asked: what the algorithm has asked for of these, `"temperature"` or `"epsilon"`; and `"noise"`, of one that
            explores by noise in its weights alone.
    """

    steps: int = 0
    episodes: int = 0
    rollouts: int = 0
    executor: int = 0
    executors: int = 1
    began: Array | None = None
    carry: dict[str, Array] = field(default_factory=dict)
    temperature: float = 1.0
    epsilon: float | None = None
    asked: set[str] = field(default_factory=set, compare=False)

    def tempered(self, distribution: Distribution) -> Distribution:
        """The distribution that this executor draws from: in proportion to p^(1 / temperature).

        What is drawn from it comes with its own log-probability, by which corrections stay right.
        """
        self.asked.add("temperature")
        return distribution if self.temperature == 1.0 else distribution.tempered(self.temperature)

    def share(self, epsilon: float) -> float:
        """Share of random actions, in [0, 1]: the executor's own, or else the algorithm's `epsilon`."""
        self.asked.add("epsilon")
        return epsilon if self.epsilon is None else self.epsilon

    def start(self, columns: Sequence[Column], envs: int) -> Acting:
        """Make room for what `envs` environments carry; all begin. Returns this object."""
        self.began = np.ones(envs, bool)
        self.carry = {column.name: np.zeros((envs, *column.shape), column.dtype) for column in columns}
        return self

    def begin(self, which: Any) -> None:
        """Note that the episodes of these environments begin: indices or truth values (B,)."""
        for column in self.carry.values():
            column[which] = 0


@dataclass(frozen=True)
class Priorities:
    """The way in which a replay memory draws its samples.

    Args:
        kind: `"uniform"`; `"td"`: proportional to (the priority that `update` returned) ** exponent, stratified, where
            rows that no update has seen yet have what `derive` computed as `initial_priority`, if that is among the
            derived columns and not infinite, else the largest priority that any update returned, at least 1; or
            `"factors"`: at the start of each learning phase, which is the first draw after new rows came, all stored
            rows are appraised anew by the newest published weights (see `optional_verbs.Appraising`) and keep these
            probabilities until the next.
        factors: for `"factors"`, one or more of `"age"` (newest first), `"risk"` (lowest return first) and `"td"`
            (largest error first). Each is normalised to sum 1; their mean to the power of the exponent is normalised.
        exponent: 0 draws uniformly, 1 fully in proportion; for `"factors"` that of the first phase.
        exponent_growth: for `"factors"`, added for each executor with each further phase, until the exponent is 1.
        correction: exponent beta of the importance weights (N P)^-beta / max; 0 leaves all weights at 1.
        correction_last: what beta becomes in `correction_steps` environment steps, linearly; None: it stays.
        correction_steps: until then, and at `correction_last` from then on.
        largest_decay: factor of the largest priority, which new rows get, for each plan of updates; below 1 it can
            fall, down to the largest that the last update returned, and need not be 1.

    Raises:
        ValueError: `correction_last` without steps, or a decay outside of (0, 1].
    """

    kind: Literal["uniform", "td", "factors"] = "uniform"
    factors: tuple[Literal["age", "risk", "td"], ...] = ()
    exponent: float = 0.4
    exponent_growth: float = 0.0
    correction: float = 0.4
    correction_last: float | None = None
    correction_steps: int = 0
    largest_decay: float = 1.0

    def __post_init__(self) -> None:
        if self.correction_last is not None and self.correction_steps < 1:
            raise ValueError(f"priorities: expected correction_steps of at least 1, got {self.correction_steps}")
        if not 0 < self.largest_decay <= 1:
            raise ValueError(f"priorities: expected a largest_decay above 0 and at most 1, got {self.largest_decay}")

    def correction_at(self, env_steps: int) -> float:
        """Exponent beta of the importance weights after `env_steps` steps; 0 for uniform draws."""
        if self.kind == "uniform":
            return 0.0
        if self.correction_last is None:
            return self.correction
        return annealing.linear(self.correction, self.correction_last, self.correction_steps, env_steps)


class NoSettings(BaseModel):
    """`[algorithm]` of an algorithm that has no settings but its name."""

    model_config = ConfigDict(extra="forbid")


class Algorithm:
    """The base class of all algorithms. An author writes `build`, `build_learner`, `policy` and `update`.

    All else has defaults.

    Args:
        settings: of the class's `Settings`, validated.
        spaces: what the environments show and take.
        seed: of everything that is drawn here: fresh weights, minibatches, noise.
        learns: whether this is the learner's object, which alone calls `build_learner`.
        threads: of torch, in the learner.
        device: a torch device name, for the learner.

    Raises:
        ValueError: the settings do not fit these spaces; the message names the key.
    """

    Settings: ClassVar[type[BaseModel]] = NoSettings
    memory: ClassVar[Literal["replay", "rollouts"]] = "rollouts"
    """`"replay"`: samples are drawn again and again; `"rollouts"`: every row is learned from in one update only."""
    off_policy: Literal["learns", "corrects", "ignores"] = "ignores"
    """What rows made by an older policy are to it: what it learns from by design (Q-learning), something it corrects
    for (a ratio of probabilities), or something it ignores. Together with `memory` it decides under which schedules a
    run is refused, and which are told of in the log: see `schedules.soundness`."""
    takes_arrays: ClassVar[bool] = False
    """True if `policy` takes observations as arrays, too, and asks nothing but layers that do, such as those of
    `networks.bodies.dense`: on the CPU executors then act without torch, in a third of the time."""
    bootstraps: bool = True
    """True if `derive` or `update` value what follows the last row of a segment whose episode was truncated or goes on;
    without it, segments must end where episodes do."""
    has_gradients: ClassVar[bool] = True
    """False if `update` steps without `backward`, as one of a table does: executors cannot make its gradients."""
    near_behaviour: ClassVar[tuple[str, ...]] = ()
    """Keys that bound the distance from the rows' behaviour where they are not 0. At a temperature other than 1 a
    policy is at such a distance from its own rows, so a run that has both is refused."""
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Table -> key -> value of settings that suit the algorithm, used where the file says nothing. How many rows a
    replay memory holds that `"learns"` is in `choices`, where the class says nothing."""

    extra_columns: tuple[Column, ...] = ()
    """Columns that `act` writes into a row beyond the standard ones."""
    stop_columns: tuple[Column, ...] = ()
    """Columns of `at_stop` for the step after which the same rollout has no row of the episode, though it goes on
    or was truncated; 0 in all other rows."""
    carry: tuple[Column, ...] = ()
    """State that each environment carries from step to step, such as that of a recurrent cell; see `Acting.carry`. Rows
    hold what was there before their step, under the same names."""
    derived_columns: tuple[Column, ...] = ()
    """Columns that `derive` computes when a segment closes."""
    window: int = 1
    """Consecutive rows of one episode in one sample; 1 means single rows."""
    batch_rows: int = 256
    """Rows of one minibatch: a replay memory draws M = batch_rows // window samples. It is the setting `batch`, where
    there is one. Rollouts come whole; how they are cut up is the algorithm's own affair."""
    rows_per_update: int = 0
    """Rows of rollouts that must have come before they are learned from together. 0: one rollout of each executor
    where all wait for each other, else one at a time. It is the setting of this name, where there is one."""
    priorities: Priorities = Priorities()
    words: str = ""
    """Description of the layers that observations go through, for the user: `4 numbers -> actor 64, 64, 2`."""
    parameters: Parameters = ()
    """Names and shapes of everything that acts, in the order of the flat vector: weights, but also exploration
    constants or normaliser statistics where there are any, so that they travel under one version."""

    def __init__(
        self, settings: Any, spaces: Spaces, *, seed: int, learns: bool, threads: int = 1, device: str = "cpu"
    ) -> None:
        self.settings, self.spaces, self.learns = settings, spaces, learns
        self.device = device if learns else "cpu"
        self.rng = np.random.default_rng([seed, 1])
        self.batch_rows = getattr(settings, "batch", self.batch_rows)
        self.rows_per_update = getattr(settings, "rows_per_update", self.rows_per_update)
        with (
            denormals.flushed() if learns else contextlib.nullcontext()
        ):  # also in the threads of torch that begin here
            self._modules = ModulesOf(self, seed, threads)
        self.parameters = self._modules.parameters

    @classmethod
    def parameters_for(cls, settings: Any, spaces: Spaces) -> Parameters | None:  # noqa: ARG003 - of those that can tell
        """Return what `parameters` would be, told without making any of it; None where only making it tells.

        Raises:
            ValueError: the settings do not fit these spaces.
        """
        return None

    # -- what an author writes --

    def build(self) -> None:
        """Make what acts: torch modules and parameters, as attributes. Everywhere; they are what is published."""

    def build_learner(self) -> None:
        """Make what only learns: critics, targets, optimisers, numbers. In the learner alone; kept and resumed there.

        It is called again where learning has to begin anew.
        """

    def reloaded(self) -> None:
        """Weights that were published have taken the place of those of now: have what only learns follow.

        After a roll-back, in the learner alone. Optimisers forget what they remembered by themselves.
        """

    def policy(self, obs: Any, acting: Acting | None = None) -> Distribution:
        """The distribution of actions at observations (B, *O), which are a tensor, as the author's modules take them.

        Args:
            obs: a tensor of the observations' own type.
            acting: in executors and tests, what else is known; in `update` whatever the author hands over.
        """
        raise NotImplementedError(f"{type(self).__name__} has no policy: write policy(obs, acting), or act and greedy")

    def update(self, batch: Rows, clock: Clock) -> Any:
        """Learn from one batch; returns what was measured, name -> number.

        Where priorities are of the kind `"td"` it returns that and new priorities (M,) > 0.

        With `window` 1 the arrays are (M, ...), else time-major (window, M, ...) with `valid` (window, M): rows after
        an episode's end are padding. Rollouts come as (T, M, ...) with `valid`. `weight` (M,) are importance weights.
        The arrays may be views, and the next batch overwrites them: what is to be remembered of them is copied.
        """
        raise NotImplementedError(f"{type(self).__name__} has no update: write update(batch, clock)")

    # -- what an author may write --

    @classmethod
    def defaults_for(cls, spaces: Spaces, written: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG003 - of a task
        """Defaults for keys of `[algorithm]` that are not set, by the task's spaces and the keys that are."""
        return {}

    def act(self, obs: Array, rng: np.random.Generator, acting: Acting) -> Rows:
        """Behave: observations (B, *O) -> `action` (B, ...), `log_prob` (B,) of mu(a|s), and the extra columns.

        The acting object is the executor's own and moves on: what is to be remembered of it is copied.
        """
        with self._modules.acting():
            return acting.tempered(self.policy(self._modules.observed(obs), acting)).act(rng)

    def greedy(self, obs: Array, acting: Acting | None = None) -> Array:
        """The best action (B, ...) for each observation (B, *O) under the loaded weights, without exploration."""
        with self._modules.acting():
            return self.policy(self._modules.observed(obs), acting).mode()

    def greedy_many(self, flats: Floats, obs: Array) -> Array:
        """The best actions (V, B, ...) of V versions (V, P), each on its own observations (V, B, *O).

        Preparing the versions is remembered for the array object `flats`; offer a new array when they change. An
        algorithm that carries something is asked `greedy` instead, one version at a time.
        """
        return self._modules.versions.greedy(flats, obs)

    def at_stop(self, next_obs: Array) -> Rows:  # noqa: ARG002 - most algorithms have no such columns
        """Return the stop columns (K, ...) for observations (K, *O), in executors, by the weights that act.

        These are the observations after steps that were truncated, or that a rollout ends with. What they are worth to
        the acting weights no other process can tell: those of all other steps are acted at.
        """
        return {}

    def derive(self, segment: Rows) -> Rows:  # noqa: ARG002 - most algorithms derive nothing
        """The derived columns (L, ...) of a closed segment: consecutive rows of one episode of one environment.

        Its last row may be terminated (the future is worth 0), truncated, or neither because the segment was cut
        (both: bootstrap from its `next_obs`). Rows before the last are neither.
        """
        return {}

    def updates_due(self, *, rows: int, new_rows: int, new_segments: int) -> int:  # noqa: ARG002 - one per new row
        """Updates from a replay memory now that `new_rows` rows of `new_segments` segments came and it holds `rows`."""
        return new_rows if rows >= self.batch_rows else 0

    # -- what the engine calls --

    def begin_rollout(self, rng: np.random.Generator) -> None:
        """A rollout begins: whatever the author's modules draw in it by torch's random numbers follows from `rng`.

        So does what they draw from the global generators of numpy and Python.
        """
        drawing.seed_acting(self, rng)
        if (modules := getattr(self, "_modules", None)) is not None:
            modules.seed(rng)
            modules.settle()

    def load(self, flat: Floats) -> None:
        """Act with these weights (P,) from now on; copied."""
        self._modules.load(flat)

    def weights(self) -> Floats:
        """Return what to publish (P,), a private copy; it may be a running average of what the optimiser works on."""
        return self._modules.packed()

    def set_weights(self, flat: Floats) -> None:
        """Learn on from these weights (P,) with fresh optimisers, as after a restart."""
        self._modules.begin_again(flat)

    def state(self, *, copied: bool = True) -> Rows:
        """All that `update`, `updates_due` and `derive` will depend on, as arrays by name.

        Weights, averages, moments, target networks, clocks and generators; numbers are arrays. Names, dtypes and shapes
        follow from settings, spaces and `learns` alone. By default these are all attributes that `snapshot` knows.
        Arrays that are not `copied` may be read until the next update, and not written to.
        """
        return self._modules.state(copied=copied)

    def restore(self, state: Rows) -> None:
        """Go on from what `state` of another object with the same settings returned."""
        self._modules.restore(state)

    def restore_around(self, flat: Floats, state: Rows) -> None:
        """Go on from published weights (P,) and, for what is not in them, from an older state."""
        self.restore(state)
        self.load(flat)

    def module(self) -> nn.Module:
        """Return what acts, as a plain torch module of its own: the author's, or one whose heads are told by name.

        Several modules and parameters come as attributes of one module, under their names.
        """
        found: nn.Module = self._modules.as_one()
        return found

    def deterministic_module(self) -> nn.Module:
        """The best actions, as the environment takes them, as a torch module of observations.

        Raises:
            ValueError: how they follow from `module` only the author knows.
        """
        name = type(self).__name__
        raise ValueError(f"{name}: expected deterministic_module() of its own, got none; take module() and its outputs")

    # -- help for authors --

    def inference(self) -> contextlib.AbstractContextManager[None]:
        """Nothing is differentiated inside: for an `act` or a `greedy` of one's own."""
        return self._modules.acting()

    def observed(self, obs: Array) -> Any:
        """Observations (B, *O) as the author's modules take them."""
        return self._modules.observed(obs)

    def published(self, flat: Floats, name: str) -> Array:
        """A parameter or buffer by its name, such as `see.normaliser.mean`, as published weights (P,) hold it."""
        return self._modules.value_in(flat, name)

    def tensors(self, rows: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        """Columns as tensors on the device: floats as float32, bytes and truth values as they are, else int64."""
        return self._modules.tensors(rows)
