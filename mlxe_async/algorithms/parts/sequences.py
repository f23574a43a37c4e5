"""Memory in networks of values: replayed sequences, each from the state that its executor had before the first row.

Paper: Kapturowski et al. 2019 (R2D2): stored states, burn-in, and priorities of sequences.
Where we differ: targets count fewer rewards at the end of a segment, and then go on with the value of its last
`next_obs`; all rows of a sequence that begins a segment are learned from, since there are none before them to move the
state; sequences that no update has seen yet have the largest priority.

A sequence begins at every `sequence_steps`-th row of a segment, so that each row is learned from in one of them. No
other row is ever drawn: they have no priority.

Sequences come time-major: T = burn_in + sequence_steps + n_step - 1 rows of M samples. N rows are learned from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import model_validator

from mlxe_async.algorithms.interface import Priorities, Rows, Tensors
from mlxe_async.algorithms.parts import recurrent
from mlxe_async.algorithms.parts.fields import REMEMBERS, CellFields, key
from mlxe_async.algorithms.parts.recurrent import STATE
from mlxe_async.maths.returns import PartialReturn
from mlxe_async.rows import Array, Column

if TYPE_CHECKING:
    import torch

MOST = 0.9
"""Share of a sequence's largest error in its priority, beside the mean: eta of the paper."""
COLUMNS = (*(Column(name, "<f4") for name in ("partial", "coefficient", "initial_priority")), Column("first", "|u1"))
EVENLY = Priorities("td", exponent=1.0, correction=0.0)
"""Draws all rows alike that have any priority, as long as no update tells another one."""
WHERE_NOT_SAID = {"batch": 512, "train_every": 8}
"""Defaults with a cell: of single rows far fewer would do."""
ROLLOUT_STEPS = 128
"""Sequences stop where rollouts do: these are longer where nothing is said."""


class SequenceFields(CellFields):
    """Settings of a recurrent cell behind all layers but the last one, and of sequences to learn it from."""

    sequence_steps: int = key(16, "Rows of a sample to learn from; more go further back.", REMEMBERS, ge=1, le=100_000)
    burn_in: int = key(8, "Rows before them that only move the state.", REMEMBERS, ge=0)

    @property
    def window(self) -> int:
        """Rows of one sample, those included that only targets ask for."""
        s: Any = self
        return int(self.burn_in + self.sequence_steps + s.n_step - 1)

    @model_validator(mode="after")
    def _has_a_sequence(self) -> SequenceFields:
        s: Any = self
        if self.cell != "none" and self.window < 2:
            told = "burn_in + sequence_steps + n_step - 1 to be at least 2, the rows of one sequence"
            raise ValueError(f"sequence_steps: got {self.sequence_steps}, expected {told}")
        if self.cell != "none" and s.batch < self.window:
            told = f"burn_in + sequence_steps + n_step - 1 = {self.window}, the rows of one sequence"
            raise ValueError(f"batch: got {s.batch}, expected at least {told}")
        return self


def defaults_for(kind: Any, written: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of an algorithm's keys where others are written."""
    has_cell = "cell" in kind.Settings.model_fields and written.get("cell", "none") != "none"
    return dict(WHERE_NOT_SAID) if has_cell else {}


def prepare(algorithm: Any) -> None:
    """Tell the engine what is carried, stored and drawn, once an algorithm with a cell is built."""
    s, tables = algorithm.settings, type(algorithm).defaults
    algorithm.window, algorithm.derived_columns = s.window, COLUMNS
    algorithm.carry = recurrent.carried(s, each_row=True)
    if not (s.prioritised and s.priority_exponent):
        algorithm.priorities = EVENLY
    schedule = {**tables["schedule"], "rollout_steps": ROLLOUT_STEPS}
    vars(algorithm)["defaults"] = {**tables, "schedule": schedule}  # the class has those without a cell


def stored(s: Any, split: PartialReturn, lengths: Array) -> Rows:
    """The columns `COLUMNS` (N,) of segments of these lengths (S,), which lie one after the other."""
    row = np.arange(len(split.partial)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    begins = (row % s.sequence_steps == 0) & ((row == 0) | (row + s.burn_in < np.repeat(lengths, lengths)))
    found = {"partial": split.partial, "coefficient": split.coefficient}
    found |= {"initial_priority": np.where(begins, np.inf, 0.0), "first": row == 0}
    return {column.name: found[column.name].astype(column.dtype) for column in COLUMNS}


def rows_of(algorithm: Any, batch: Rows) -> Tensors:
    """Return what the loss needs of sequences (T, M, ...).

    Of the rows that are learned from (N,): `action`, `partial`, `coefficient`, `weight`, `at`, which of all (T + 1) M
    places each is, and `after`, the place that its target asks. Of all, `obs` (T + 1, M, ...), where behind the last
    row is what its `next_obs` shows; `memory` (M, S), `whole` (M,), whether all rows are learned from, and `learned`
    (T, M), which these are. Of sequences without any, the first row is taken, with no weight.
    """
    s, valid = algorithm.settings, batch["valid"].astype(bool)
    places, samples = np.ogrid[: len(valid), : valid.shape[1]]
    length, whole = valid.sum(0), batch["first"][0].astype(bool)
    learned = valid & (places < s.burn_in + s.sequence_steps) & (whole | (places >= s.burn_in))
    weight = np.broadcast_to(batch.get("weight", np.ones(len(length), np.float32)), valid.shape)
    if not learned.any():
        learned, weight = valid & (places == 0), np.zeros_like(weight)
    obs = np.concatenate([batch["obs"], batch["next_obs"][-1:]])
    obs[length, samples[0]] = batch["next_obs"][length - 1, samples[0]]
    after = places + np.minimum(s.n_step, length - places)
    at, beyond = (one * len(length) + samples for one in (places, after))
    found = {name: batch[name][learned] for name in ("action", "partial", "coefficient")}
    found |= {"weight": weight[learned], "at": at[learned], "after": beyond[learned], "obs": obs}
    rows: Tensors = algorithm.tensors(found | {STATE: batch[STATE][0], "whole": whole, "learned": learned})
    return rows


def evaluated(algorithm: Any, rows: Tensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs (N, A, ...) of the learned network; of the target network where targets ask, and of what chooses there.

    Args:
        algorithm: with networks `learned` and `target`.
        rows: from `rows_of`.
    """
    import torch

    def unrolled(network: Any) -> Any:
        return network.unrolled(rows["obs"], rows[STATE], algorithm.settings.burn_in, rows["whole"])

    features = unrolled(algorithm.learned)
    with torch.no_grad():
        following = algorithm.target.values_of(unrolled(algorithm.target)[rows["after"]])
        chosen = algorithm.learned.values_of(features[rows["after"]]) if algorithm.settings.double else following
    return algorithm.learned.values_of(features[rows["at"]]), following, chosen


def priorities(error: Array, learned: Array) -> Array:
    """Return 0.9 of the largest and 0.1 of the mean error (M,) of sequences, by rows' (N,), the `learned` (T, M)."""
    errors = np.zeros(learned.shape, error.dtype)
    errors[learned] = np.abs(error)
    found: Array = MOST * errors.max(0) + (1 - MOST) * errors.sum(0) / np.maximum(learned.sum(0), 1)
    return found
