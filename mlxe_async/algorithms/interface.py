"""What an algorithm is to the rest of the program: one object that acts, derives, and learns.

The same class lives in four places, with `learns=True` in the learner only (whose object the memorizer shares where it
lives in the same process). An executor calls `load` and `act`. The memorizer asks for columns, `window`, `batch_rows`
and `priorities`, calls `derive` when a segment of an episode closes, `updates_due` when rows have come, and for some
priorities `load` and `appraise`. The learner calls `update`, `weights` and, after a step back, `set_weights`. The
evaluator calls `greedy_many`; a policy that was loaded from a run calls `greedy`.

Shapes: L rows of a segment, T time, B environments side by side, M samples of a batch, O an observation, A actions,
P weights, V versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, JsonValue

from mlxe_async.maths.normaliser import Moments
from mlxe_async.networks import Floats, Parameters
from mlxe_async.rows import Array, Column, Spaces

Rows = dict[str, Array]
Metrics = dict[str, float]
STAYS: dict[str, JsonValue] = {"on_resume": "forbidden"}
"""`json_schema_extra` of a field of `Settings` that must not change when a run goes on: it is part of the network."""


def needs(switches: dict[str, JsonValue] | None = None, **more: JsonValue) -> dict[str, JsonValue]:
    """`json_schema_extra` of a field of `Settings` that has an effect only while other fields are as told.

    A key that somebody wrote is refused where the others switch it off; for the forms see `settings.effects`.
    """
    return {"needs": {**(switches or {}), **more}}


def needs_any(**switches: JsonValue) -> dict[str, JsonValue]:
    """The same, of a field that has an effect while one of the others is as told."""
    return {"needs_any": switches}


@dataclass(frozen=True)
class Clock:
    """How far the run is; whatever an algorithm anneals, it anneals by this one clock.

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
class ActingClock:
    """How far an executor is; whatever exploration is annealed by, it reads it here, also after a restart.

    Args:
        steps: environment steps of this executor so far, all its environments and all its lives together.
        episodes: finished episodes of the whole run when the rollout began.
        rollouts: rollouts of this executor before the present one.
    """

    steps: int = 0
    episodes: int = 0
    rollouts: int = 0


@dataclass(frozen=True)
class Priorities:
    """How a replay memory draws its samples.

    Args:
        kind: `"uniform"`; `"td"`: proportional to (the priority that `update` returned) ** exponent, stratified, where
            rows that no update has seen yet have the largest priority that any update returned, at least 1; or
            `"factors"`: at the start of each learning phase, which is the first draw after new rows came, all stored
            rows are appraised anew by the newest published weights (see `Appraising`) and keep these probabilities
            until the next.
        factors: for `"factors"`, one or more of `"age"` (newest first), `"risk"` (lowest return first) and `"td"`
            (largest error first). Each is normalised to sum 1; their mean to the power of the exponent is normalised.
        exponent: 0 draws uniformly, 1 fully in proportion; for `"factors"` that of the first phase.
        exponent_growth: for `"factors"`, added for each executor with each further phase, until the exponent is 1.
        correction: exponent beta of the importance weights (N P)^-beta / max; 0 leaves all weights at 1.
    """

    kind: Literal["uniform", "td", "factors"] = "uniform"
    factors: tuple[Literal["age", "risk", "td"], ...] = ()
    exponent: float = 0.4
    exponent_growth: float = 0.0
    correction: float = 0.4


class Algorithm(Protocol):
    """The verbs every algorithm has. `Settings` is validated before anything else is built."""

    Settings: ClassVar[type[BaseModel]]
    memory: ClassVar[Literal["replay", "rollouts"]]
    """`"replay"`: samples are drawn again and again; `"rollouts"`: every row is learned from in one update only."""

    extra_columns: tuple[Column, ...]
    """What `act` writes into a row beyond the standard columns."""
    derived_columns: tuple[Column, ...]
    """What `derive` computes when a segment closes."""
    window: int
    """Consecutive rows of one episode in one sample; 1 means single rows."""
    batch_rows: int
    """Rows of one minibatch: a replay memory draws M = batch_rows // window samples. Rollouts come whole, one from each
    executor where all wait for each other, else one at a time; how they are cut up is the algorithm's own affair."""
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]]
    """May be left out: table -> key -> value of settings that suit the algorithm, used where the file says nothing."""
    defaults_for: ClassVar[Callable[[Spaces, Mapping[str, Any]], Mapping[str, Any]]]
    """May be left out. A class method: the task's spaces, and the keys of `[algorithm]` that somebody wrote -> values
    for keys that nobody did."""
    priorities: Priorities
    off_policy: Literal["learns", "corrects", "ignores"]
    """May be left out. What rows made by an older policy are to it: what it learns from by design (Q-learning),
    something it corrects for (a ratio of probabilities), or something it ignores. Together with `memory` it decides
    under which schedules a run is refused, and which are told of in the log: see `schedules.soundness`."""
    bootstraps: bool
    """May be left out: True. Whether `derive` or `update` value what follows the last row of a segment whose episode
    was truncated or goes on; without it, segments must end where episodes do."""
    parameters: Parameters
    """Names and shapes of everything that acts, in the order of the flat vector: weights, but also exploration
    constants or normaliser statistics where there are any, so that they travel under one version."""

    def __init__(
        self, settings: Any, spaces: Spaces, *, seed: int, learns: bool, threads: int = 1, device: str = "cpu"
    ) -> None:
        """Build it; with `learns=False` there is no optimiser and torch is not imported.

        Raises:
            ValueError: the settings do not fit these spaces; the message names the key.
        """
        ...

    def load(self, flat: Floats) -> None:
        """Act with these weights (P,) from now on; copied."""
        ...

    def act(self, obs: Array, rng: np.random.Generator, clock: ActingClock) -> Rows:
        """Behave: observations (B, O) -> `action` (B, ...), `log_prob` (B,) of mu(a|s), and the extra columns.

        The clock is the executor's own object and moves on: what is to be remembered of it is copied.
        """
        ...

    def greedy(self, obs: Array) -> Array:
        """The best action (B, ...) for each observation (B, O) under the loaded weights, without exploration."""
        ...

    def greedy_many(self, flats: Floats, obs: Array) -> Array:
        """The best actions (V, B, ...) of V versions (V, P), each on its own observations (V, B, O).

        Preparing the versions is remembered for the array object `flats`; offer a new array when they change.
        """
        ...

    def behaviour_log_prob(self, obs: Array, action: Array) -> Floats:
        """Log mu(action|obs) (N,) under the loaded weights, as `act` would have stored it; to check stored rows.

        Where the behaviour changes with the acting clock, a third argument may say where it stood; left out, at 0.
        """
        ...

    def derive(self, segment: Rows) -> Rows:
        """The derived columns (L, ...) of a closed segment: consecutive rows of one episode of one environment.

        Its last row may be terminated (the future is worth 0), truncated, or neither because the segment was cut
        (both: bootstrap from its `next_obs`). Rows before the last are neither.
        """
        ...

    def updates_due(self, *, rows: int, new_rows: int, new_segments: int) -> int:
        """Updates to do now that `new_rows` rows of `new_segments` closed segments came and memory holds `rows`."""
        ...

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, Floats | None]:
        """Learn from one batch; returns what was measured and, for `"td"` priorities, new priorities (M,) > 0.

        With `window` 1 the arrays are (M, ...), else time-major (window, M, ...) with `valid` (window, M): rows after
        an episode's end are padding. Rollouts come as (T, M, ...) with `valid`. `weight` (M,) are importance weights.
        The arrays may be views, and the next batch overwrites them: what is to be remembered of them is copied.
        """
        ...

    def weights(self) -> Floats:
        """What to publish (P,), a private copy; it may be a running average of what the optimiser works on."""
        ...

    def set_weights(self, flat: Floats) -> None:
        """Learn on from these weights (P,) with a fresh optimiser, as after a restart."""
        ...


class Resumable(Protocol):
    """What exact resumption asks of an algorithm beside the verbs of all.

    Without it a run that goes on from a checkpoint, or a learner that was killed, begins with the newest weights and a
    fresh optimiser, and says so. Learner and memorizer are asked, each for the object it holds; executors are not, for
    they act by what is published. The learner is asked with nearly each publication, so it should take little time.
    """

    def state(self) -> Rows:
        """All that `update`, `updates_due` and `derive` will depend on, as arrays by name, copied.

        Weights, averages, moments, target networks, clocks and generators (`maths.generators`); numbers are arrays of
        shape (). Names, dtypes and shapes follow from settings, spaces and `learns` alone.
        """
        ...

    def restore(self, state: Rows) -> None:
        """Go on from what `state` of another object with the same settings returned."""
        ...


class ResumesAround(Resumable, Protocol):
    """What a learner may go on with whose state was kept some publications before its weights."""

    def restore_around(self, flat: Floats, state: Rows) -> None:
        """Go on from published weights (P,) and, for what is not in them, from an older state."""
        ...


class DerivesMany(Protocol):
    """What makes taking rows in cheap, beside the verbs of all: many environments close many segments at a time."""

    def derive_many(self, segments: Rows, lengths: Array) -> Rows:
        """What `derive` returns, of several segments at once: the same numbers, to the last bit.

        Args:
            segments: the rows (N, ...) of closed segments, one segment after the other.
            lengths: rows of each segment (S,), with sum N.
        """
        ...


class Normalising(Protocol):
    """What running moments of the observations ask of an algorithm with a replay memory beside the verbs of all.

    The memory counts each row once, when it is taken in, however often it is drawn. The learner hands the moments on
    before the updates of a plan; `weights` publishes them with what was learned by them.
    """

    moment_entries: int
    """Entries O of a flattened observation; 0: no moments are wanted."""

    def set_moments(self, moments: Moments) -> None:
        """Learn by these moments (O,) from now on, also after `set_weights`."""
        ...

    def moments_in(self, flat: Floats) -> Moments:
        """The moments that travel in published weights (P,): what a run counts on from that begins with them."""
        ...


class Compilable(Protocol):
    """What `[learner] compile` asks of an algorithm beside the verbs of all; of an object with `learns=True`."""

    compiles: ClassVar[bool]
    """True."""

    def compile(self) -> float:
        """Do what `update` does by compiled code from now on; called before the first update, once in a process.

        Returns:
            seconds that took.

        Raises:
            errors.CompileFailed: it cannot; all goes on as before.
        """
        ...


class Distributed(Protocol):
    """The two halves of `update` where gradients travel: workers differentiate, the server applies."""

    def differentiate(self, batch: Rows, clock: Clock) -> tuple[Floats, Metrics]:
        """The gradient (P,) of the loss at the loaded weights; nothing is changed."""
        ...

    def apply(self, gradient: Floats, worker_weights: Floats, clock: Clock) -> None:
        """Apply one worker's gradient (P,), taken at `worker_weights` (P,), to the server's weights exactly once."""
        ...


class Appraising(Protocol):
    """What the priorities `"factors"` ask of an algorithm beside the verbs of all; `"age"` alone asks nothing."""

    def appraise(self, rows: Rows) -> Rows:
        """Judge stored rows (N, ...), standard and derived columns, by the loaded weights, without torch.

        Returns `return`, what each row's return is thought to be (N,), for `"risk"`, and `td_error`, how far the value
        of its observation is from that (N,), for `"td"`. The memory is appraised in pieces, so what is said of a row
        must depend on this row alone.
        """
        ...


def flat_observations(obs: NDArray[Any], spaces: Spaces) -> NDArray[Any]:
    """Observations (..., *O) with the observation's axes merged into one: (..., prod O)."""
    if len(spaces.observation_shape) == 1:
        return obs
    lead = obs.ndim - len(spaces.observation_shape)
    return obs.reshape((*obs.shape[:lead], int(np.prod(spaces.observation_shape))))
