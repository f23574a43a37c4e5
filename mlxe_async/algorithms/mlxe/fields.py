"""Keys of MLxE alone: how returns are counted and corrected, how rows are drawn, and how long steps are."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from mlxe_async.algorithms.interface import Priorities
from mlxe_async.algorithms.parts import fields as keys
from mlxe_async.algorithms.parts.fields import ReplayedFields, key
from mlxe_async.maths.returns import DiscountCurve
from mlxe_async.optimisers import OptimiserKind
from mlxe_async.rows import Spaces

Share = Annotated[float, Field(ge=0, le=1)]
Factor = Literal["age", "risk", "td"]
BOOTSTRAPS = 'discount > 0 or returns in ("steps_to_end", "state") or correction == "vtrace"'
UNEVEN = "(priority_exponent > 0 or priority_exponent_growth > 0)"


class ReturnFields(BaseModel):
    """Settings of how returns are counted."""

    returns: Literal["n_step", "steps_to_end", "state"] = key(
        "n_step", "steps_to_end: to the end, cautious near it, as MLxE; state: cautious near the limits."
    )
    n_step: int = keys.n_step(5, 'returns == "n_step" and discount > 0')
    discount: float = keys.discount(0.99, 'returns in ("n_step", "state")')
    discount_low: float = key(
        0.5,
        "state: the discount where a limit is reached; higher blames earlier rows too.",
        'returns == "state"',
        ge=0,
        le=1,
    )
    discount_curve: tuple[Share, ...] = key(
        tuple(DiscountCurve()),
        "steps_to_end: a, b, low, high of a + b ln k.",
        'returns == "steps_to_end"',
        min_length=4,
        max_length=4,
    )
    return_scale: float = keys.return_scale(1.0, 'value_scale in ("return", "categorical")')
    faithful_truncation: bool = key(
        False,
        "true: truncation ends the world, to reproduce MLxE's error.",
        'discount > 0 or returns in ("steps_to_end", "state")',
    )

    @property
    def curve(self) -> DiscountCurve:
        """Settings of `returns = "steps_to_end"`."""
        return DiscountCurve(*self.discount_curve)


class CorrectionFields(ReturnFields):
    """Settings of the correction for rows that an older policy made, and of the returns that it allows."""

    correction: Literal["vtrace", "clipped", "none"] = key("clipped", "clipped: min(pi/mu, ratio_clip).")
    ratio_clip: float = key(
        1.0,
        "Largest weight of a row; higher has less bias, more variance.",
        'correction in ("vtrace", "clipped")',
        gt=0,
    )

    @model_validator(mode="after")
    def _fit_together(self: Any) -> Any:
        *_, low, high = self.discount_curve
        if low > high:
            raise ValueError(f"discount_curve: got {low} for low and {high} for high, expected no more for low")
        if self.correction == "vtrace" and (self.returns != "n_step" or self.n_step < 2):
            raise ValueError('correction = "vtrace" makes its own targets: it needs returns = "n_step", n_step >= 2')
        if self.value_scale == "survival" and self.returns != "n_step":
            raise ValueError('value_scale = "survival" needs returns = "n_step": it has one discount')
        if self.value_scale == "categorical" and self.correction == "vtrace":
            raise ValueError('value_scale = "categorical" needs another correction than "vtrace", which corrects means')
        return self

    def refuse_spaces(self: Any, spaces: Spaces) -> None:
        """Refuse what these settings cannot learn from.

        Raises:
            ValueError: the task declares no limits.
        """
        if self.returns == "state" and not any(spaces.limits or ()):
            raise ValueError('algorithm.returns: "state" needs a task that declares the limits of its failure')


class StepFields(BaseModel):
    """The optimiser's step sizes, which shrink with the run's finished episodes."""

    optimiser: OptimiserKind = key("radam", "radam starts more carefully than adam.")
    learning_rate: float = keys.learning_rate(1e-3, "learning_rate_min <= learning_rate")
    learning_rate_decay: float = key(
        0.998, "Factor per finished episode; 1 never decays.", "learning_rate_min < learning_rate", gt=0, le=1
    )
    learning_rate_min: float = key(
        1e-6, "Higher keeps late learning faster.", "learning_rate_decay < 1 or learning_rate < learning_rate_min", ge=0
    )
    max_gradient_norm: float = keys.max_gradient_norm(0.0)

    def rate(self, episodes: int) -> float:
        """The learning rate after `episodes` episodes: max(minimum, first * decay ** episodes)."""
        return max(self.learning_rate_min, self.learning_rate * self.learning_rate_decay**episodes)


class PriorityFields(BaseModel):
    """Settings of the priorities of rows in a replay memory; all are judged anew at each learning phase."""

    priorities: tuple[Factor, ...] = key(
        (), "Rows come more often if new (age), close to failure (risk), or misjudged (td); none: evenly.", UNEVEN
    )
    priority_exponent: float = key(0.4, "Higher draws less evenly.", "priorities", ge=0, le=1)
    priority_exponent_growth: float = key(
        0.0,
        "Added per learning phase and executor, up to 1; higher grows uneven sooner.",
        "priorities and priority_exponent < 1",
        ge=0,
        le=1,
    )
    priority_correction: float = key(
        0.0, "Higher undoes more of the sampling's bias.", f"priorities and {UNEVEN}", ge=0, le=1
    )

    @model_validator(mode="after")
    def _each_once(self) -> PriorityFields:
        if len(set(self.priorities)) < len(self.priorities):
            raise ValueError(f"priorities: expected each factor once, got {', '.join(self.priorities)}")
        return self

    @property
    def how_to_draw(self) -> Priorities:
        """The priorities that the memory is told."""
        if not self.priorities:
            return Priorities()
        return Priorities(
            "factors", self.priorities, self.priority_exponent, self.priority_exponent_growth, self.priority_correction
        )


class BootstrapFields(ReplayedFields, PriorityFields):
    """Settings of replay where rows may be drawn unevenly, and values are bootstrapped from a target network."""

    target: Literal["every_update", "per_iteration", "every_k"] = key(
        "every_update",
        "When the target network becomes the learned one; less often is steadier.",
        BOOTSTRAPS,
    )
    target_every: int = key(
        64,
        'Updates of target = "every_k"; more are steadier and slower.',
        f'target == "every_k" and ({BOOTSTRAPS})',
        ge=1,
    )
