"""IMPALA: A2C whose targets are corrected by V-trace for the versions that the learner is ahead of its executors.

Paper: Espeholt et al. 2018 (V-trace, eq. 1 and section 4.2). All but the targets is A2C's, see `a2c`.
Where we differ: means instead of sums over the rows, Adam by default, and truncated episodes are bootstrapped.

What do I change to make ...
  another loss                `policy_loss` or `value_loss` of `a2c`: pure functions.
  clipping at other bounds    no code: rho_clip decides which policy is evaluated, c_clip how fast.
  A2C                         no code: name = "a2c"; with ratios of 1, V-trace is the n-step return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxe_async.algorithms.a2c import A2C, A2CFields
from mlxe_async.algorithms.interface import Rows, needs, needs_any
from mlxe_async.algorithms.parts import fields
from mlxe_async.algorithms.parts.fields import key
from mlxe_async.maths import correction, vtrace
from mlxe_async.rows import Array

if TYPE_CHECKING:
    import torch


class ImpalaSettings(A2CFields):
    """The fields of `[algorithm]` beside `name = "impala"`."""

    gae_lambda: float = fields.gae_lambda(1.0)
    rho_clip: float = key(
        *(1.0, "Largest weight of a row; higher has less bias, more variance."),
        needs_any(**fields.OLDER, rho_clip={"below": 1}),
        gt=0,
    )
    c_clip: float = key(
        *(1.0, "Largest weight that is carried back; higher learns faster, less steadily."),
        needs(discount={"above": 0}, gae_lambda={"above": 0}) | needs_any(**fields.OLDER, c_clip={"below": 1}),
        gt=0,
    )


class Impala(A2C):
    """Acts by its policy and learns from whole rollouts, once from each, also from those of older versions."""

    Settings = ImpalaSettings
    corrects = True

    def targets(self, batch: Rows, value: Array, log_prob: torch.Tensor) -> tuple[Array, Array]:
        """V-trace's advantages and targets (T, B), given V (T, B) and log pi(a|s) (N,) of the valid rows."""
        s, behaviour = self.settings, self.valid_rows({name: batch[name] for name in ("valid", "log_prob")})["log_prob"]
        ratio = self.spread(batch, correction.ratio(log_prob, behaviour), 1.0)
        following, ended, ends = self.around(batch, value)
        arrays = (ratio, batch["reward"], value, following, s.discount * ~ended, 1.0 - ends)
        target, advantage = vtrace.vtrace(*arrays, lambda_=s.gae_lambda, rho_clip=s.rho_clip, c_clip=s.c_clip)
        return advantage, target
