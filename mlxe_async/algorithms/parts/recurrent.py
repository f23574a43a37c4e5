"""Memory in the policy: how recurrent cells act and learn from rollouts.

An executor carries each environment's state, and a rollout is stored with the state that it began with. The learner
goes through whole rollouts, or through pieces of them, from that state on; gradients end where they begin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxe_async.algorithms.interface import Acting, Rows
from mlxe_async.maths import rollouts, together
from mlxe_async.networks import Parameters
from mlxe_async.networks.seen import cell_entries, cell_parameters
from mlxe_async.rows import Array, Column

if TYPE_CHECKING:
    from mlxe_async.networks.cells import Cells, Sequences
    from mlxe_async.networks.dense import Dense

STATE = "memory"
"""The column of the state before each row."""
MOST_LAG = 4
"""Versions that rollouts may be old, where nothing is said: stored states age faster than probabilities do."""


def _are_stored(s: Any) -> bool:
    """Return whether pieces of rollouts begin with the states that executors had."""
    return getattr(s, "sequence_states", "") == "stored" and s.minibatches == "rows"


def defaults_of(s: Any, kind: Any) -> dict[str, dict[str, Any]]:
    """An algorithm's `defaults`; with a cell, rollouts may be fewer versions old where nothing is said."""
    tables = {name: dict(values) for name, values in kind.defaults.items()}
    if s.cell != "none":
        tables["schedule"] = {**tables.get("schedule", {}), "max_policy_lag": MOST_LAG}
    return tables


def cells_of(s: Any, below: Dense) -> Cells | None:
    """Make the cell, or two of them, that the settings ask for on the layers below; None: they ask for none."""
    if s.cell == "none":
        return None
    from mlxe_async.networks.cells import Cell, Cells
    from mlxe_async.networks.dilated import Dilated

    def made() -> Any:
        if s.cell == "dilated":
            return Dilated(below.outputs, s.cell_size, s.cell_layers, s.cell_cores)
        return Cell(s.cell, below.outputs, s.cell_size, s.cell_layers)

    return Cells(*(made() for _ in range(_count(s))))


def parameters_of(s: Any, inputs: int, name: str = "cell") -> Parameters:
    """Names and shapes of what `cells_of` makes, as an attribute of this name."""
    if s.cell == "none":
        return ()
    every = [
        cell_parameters(f"{name}.cells.{number}", s.cell, inputs, s.cell_size, s.cell_layers)
        for number in range(_count(s))
    ]
    return tuple(one for cell in every for one in cell)


def _count(s: Any) -> int:
    return 2 if getattr(s, "cells", "shared") == "apart" else 1


def sizes_of(s: Any) -> tuple[Any, ...]:
    """Return the cell in words, such as `lstm, 64`."""
    name = f"{s.cell} of {s.cell_cores} cores" if s.cell == "dilated" else s.cell
    return () if s.cell == "none" else (name, *(s.cell_size,) * s.cell_layers)


def carried(s: Any, *, each_row: bool = False) -> tuple[Column, ...]:
    """Columns that each environment carries: its state.

    A rollout keeps the one before its first row, or, if pieces of it begin with stored states, those before all rows.
    A replay memory keeps that before each row.
    """
    if s.cell == "none":
        return ()
    entries = cell_entries(s.cell, s.cell_size, s.cell_layers, s.cell_cores)
    return (Column(STATE, "<f4", (_count(s) * entries,), per_rollout=not (each_row or _are_stored(s))),)


def step(cells: Cells, features: Any, acting: Acting | None) -> Any:
    """Outputs (B, n) after one step of each environment, whose states move on; without `acting`, episodes begin.

    Features are arrays or tensors (B, n).
    """
    if acting is None or STATE not in acting.carry:
        state: Any = np.zeros((len(features), cells.entries), np.float32)
    else:
        state = acting.carry[STATE]
    if not isinstance(features, np.ndarray):
        import torch

        state = torch.as_tensor(state, device=features.device)
    outputs, after = cells(features, state)
    if acting is not None and STATE in acting.carry:
        acting.carry[STATE] = np.array(after if isinstance(after, np.ndarray) else after.numpy(force=True))
    return outputs


def sequences(batch: Rows, device: Any, kept: Array | None = None) -> Sequences:
    """Return where the valid rows of rollouts (T, B, ...) lie; states are asked for after those `kept` (T, B)."""
    import torch

    from mlxe_async.networks.cells import Sequences

    valid, state = batch["valid"].astype(bool), batch[STATE] if batch[STATE].ndim == 2 else batch[STATE][0]
    first, none = valid & (batch["step"] == 0), np.zeros_like(valid)
    return Sequences(valid, first, none if kept is None else kept, torch.as_tensor(np.array(state), device=device))


def values(algorithm: Any, batch: Rows, missing: Array) -> tuple[Array, Array]:
    """V of rollouts' rows (T, B), and of what `next_obs` shows after those that are `missing` (K,).

    The latter are asked with the state after their row, which nothing goes on from.
    """
    import torch

    cells, valid = algorithm.cell, batch["valid"].astype(bool)
    with torch.no_grad():
        features, states = cells.through(
            _shown(algorithm, batch["obs"][valid]), sequences(batch, algorithm.device, missing)
        )
        after, _ = cells(_shown(algorithm, batch["next_obs"][missing]), states)
        value, following = (algorithm.critic(cells.apart(one)[1])[:, 0].double() for one in (features, after))
    return rollouts.spread(batch, value), following.numpy(force=True)


def states_by_now(algorithm: Any, batch: Rows, steps: int) -> Array:
    """States (P, B, S) before each piece of `steps` rows, by the present weights from a rollout's first state on."""
    import torch

    valid, ends = batch["valid"].astype(bool), np.zeros_like(batch["valid"], bool)
    ends[steps - 1 : -1 : steps] = True
    with torch.no_grad():
        where = sequences(batch, algorithm.device, ends)
        _, states = algorithm.cell.through(_shown(algorithm, batch["obs"][valid]), where)
    found = torch.cat([where.state, states]).numpy(force=True)
    return np.asarray(found.reshape(-1, valid.shape[1], found.shape[-1]))


def _shown(algorithm: Any, obs: Array) -> Any:
    """Features (N, n) of observations (N, *O), as a cell is shown them."""
    return algorithm.common(algorithm.see(algorithm.tensors({"obs": obs})["obs"]))


def minibatches(algorithm: Any, batch: Rows, size: int, epochs: int) -> Iterator[Rows]:
    """Minibatches (L, M, ...) of about `size` rows: pieces of rollouts (T, B, ...), in a new order for each epoch.

    A piece has `sequence_steps` rows, one at a rollout's end perhaps fewer. It begins with the state that was stored,
    for which a memory keeps that of each row; or with what the present weights make of the rollout's first state, for
    which all rows are gone through once more.
    """
    s, state = algorithm.settings, batch[STATE]
    states = states_by_now(algorithm, batch, s.sequence_steps) if state.ndim == 2 else state[:: s.sequence_steps]
    cut = {name: _cut(one, s.sequence_steps) for name, one in batch.items() if name not in (*_FOR_TARGETS, STATE)}
    states, some = states.reshape(-1, states.shape[-1]), np.flatnonzero(cut["valid"].any(0))
    parts = together.parts_of(int(batch["valid"].sum()), size, len(some))
    for _ in range(epochs):
        for chosen in np.array_split(algorithm.rng.permutation(some), parts):
            together.learn_from(cut["valid"][:, chosen].sum())
            yield {name: column[:, chosen] for name, column in cut.items()} | {STATE: states[chosen]}


_FOR_TARGETS = ("next_obs", "reward", "terminated", "truncated", "cut", "episode")


def _cut(column: Array, steps: int) -> Array:
    """A column (T, B, ...) in pieces of consecutive rows, one beside the other (steps, P B, ...)."""
    count, envs, *shape = column.shape
    pieces = -(-count // steps)
    padded = np.zeros((pieces * steps, envs, *shape), column.dtype)
    padded[:count] = column
    return padded.reshape(pieces, steps, envs, *shape).swapaxes(0, 1).reshape(steps, pieces * envs, *shape)
