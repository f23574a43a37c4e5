"""Recurrent cells as plain torch modules, `nn.LSTM` and `nn.GRU`, and how they go through rows of several episodes.

A state is one flat vector (B, S) of each environment, zero where an episode begins: it is carried, stored and published
as numbers of one column. While executors act, a step takes arrays and is evaluated by numpy, see `by_numpy`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from mlxe_async.networks import ways
from mlxe_async.networks.by_numpy import Settling, in_turn, is_as_written, is_heard, is_plain, is_torchs_own
from mlxe_async.networks.recurrence import recurrent
from mlxe_async.networks.seen import CELLS
from mlxe_async.rows import Array


class Sequences(NamedTuple):
    """Places of rows (N, ...) in sequences, and the states that these began with.

    Args:
        valid: which places (T, B) are rows; the rows are theirs in order, time by time.
        first: which of these are the first of an episode (T, B).
        kept: after which rows (T, B) the state is asked for.
        state: the state (B, S) before the first row of each sequence.
    """

    valid: Array
    first: Array
    kept: Array
    state: torch.Tensor


@in_turn
class Cell(Settling, nn.Module):
    """LSTM (Hochreiter and Schmidhuber 1997, with forget gates) or GRU (Cho et al. 2014) of one or several layers.

    Weights begin orthogonal, each gate for itself, and biases at 0.

    Args:
        kind: `"lstm"` or `"gru"`.
        inputs: features of a row.
        size: outputs of each layer.
        layers: cells, one above the other.
    """

    takes_arrays = True

    def __init__(self, kind: str, inputs: int, size: int, layers: int = 1) -> None:
        super().__init__()
        self.layers: Any = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](inputs, size, layers)
        self.outputs, self._shape = size, (CELLS[kind].states, layers, size)
        self.entries = CELLS[kind].states * layers * size
        for name, weight in self.layers.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(weight)
            else:
                for gate in weight.data.split(size):
                    nn.init.orthogonal_(gate)

    def __call__(self, x: Any, state: Any) -> tuple[Any, Any]:
        """Outputs (B, H) and states (B, S) after one step, for features (B, n) and states (B, S).

        Of tensors also after several: outputs (T, B, H) for features (T, B, n).
        """
        if not isinstance(x, np.ndarray):
            found: tuple[Any, Any] = super().__call__(x, state)
            return found
        known: Any = self.__dict__.get("_views")
        if known is None or not known.is_settled:
            known = self._examined()
        if known is not None:
            stepped: Any = known.through((x, state.reshape(len(state), *self._shape)))
            if stepped is not None:
                return stepped[0], stepped[1].reshape(state.shape)
        with torch.inference_mode():
            place = self.layers.weight_ih_l0.device
            y, after = super().__call__(torch.as_tensor(x, device=place), torch.as_tensor(state, device=place))
        return y.numpy(force=True), after.numpy(force=True)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Evaluate one step, or several, on tensors."""
        states = state.reshape(-1, *self._shape).permute(1, 2, 0, 3).contiguous()
        rows = x if x.ndim == 3 else x[None]
        y, after = self.layers(rows, (states[0], states[1]) if len(states) == 2 else states[0])
        after = torch.stack(after) if len(states) == 2 else after[None]
        return y if x.ndim == 3 else y[0], after.permute(2, 0, 1, 3).reshape(state.shape)

    @property
    def is_as_written(self) -> bool:
        """True if a call does what this class and torch's say, and nothing else."""
        return is_as_written(self, _WAYS[Cell]) and is_torchs_own(self.layers)

    def through(self, x: torch.Tensor, where: Sequences) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs (N, H) of rows (N, n) in sequences, and the states (K, S) after those that are `kept`.

        The state is zero before each row that begins an episode; gradients go back to the first row of a sequence.
        Rows between two such places are one call of torch's, where numpy does not go through all of them.
        """
        if not is_as_written(self, _WAYS[Cell]):
            return step_by_step(self, x, where)
        stops: Array = np.asarray(where.first.any(1))
        stops[1:] |= where.kept[:-1].any(1)
        borders = sorted({0, len(stops), *np.flatnonzero(stops).tolist()})
        if not self._is_for_numpy(x, len(stops), len(borders) - 1):
            return self._by_torch(x, where, borders)
        if (watcher := ways.watcher()) is not None:
            watcher(
                lambda x, state: self._by_numpy(x, where._replace(state=state)),
                lambda x, state: self._by_torch(x, where._replace(state=state), borders),
                [*self.layers.parameters()],
                x,
                where.state,
            )
        return self._by_numpy(x, where)

    def _by_torch(self, x: torch.Tensor, where: Sequences, borders: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Go by one call of the layers' own from each border to the next."""
        dense, valid = _placed(x, where.valid)
        state, outputs, kept = where.state, list[torch.Tensor](), list[torch.Tensor]()
        for begin, end in itertools.pairwise(borders):
            if where.first[begin].any():
                state = state.where(~torch.as_tensor(where.first[begin, :, None], device=x.device), 0.0)
            y, state = self(dense[begin:end], state)
            outputs.append(y)
            if where.kept[end - 1].any():
                kept.append(state[torch.as_tensor(where.kept[end - 1], device=x.device)])
        return torch.cat(outputs)[valid], torch.cat(kept) if kept else state[:0]

    def _is_for_numpy(self, x: torch.Tensor, steps: int, calls: int) -> bool:
        """Return whether numpy is faster than this number of calls: one of LSTM's costs as much as some 30 steps."""
        is_known = x.device.type == "cpu" and x.dtype in _PRECISIONS and not (is_heard() or ways.is_torchs())
        is_slower = self.layers.mode == "GRU" or calls > max(1, steps // STEPS_OF_A_CALL)
        return is_known and is_slower and is_plain(self.layers, x.dtype)

    def _by_numpy(self, x: torch.Tensor, where: Sequences) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, with the gradients of `recurrence`."""
        states, found = where.state.reshape(-1, *self._shape).permute(1, 2, 0, 3), list[Any]()
        there = ... if where.valid.all() else torch.as_tensor(where.valid)
        for number in range(self._shape[1]):
            names = (f"weight_ih_l{number}", f"bias_ih_l{number}", f"weight_hh_l{number}", f"bias_hh_l{number}")
            inner, bias, outer, more = (getattr(self.layers, name) for name in names)
            shown, _ = _placed(functional.linear(x, inner, bias), where.valid)
            after = recurrent(self.layers.mode, shown, states[:, number], where.first, outer, more)
            x = after[0].flatten(0, 1) if there is ... else after[0][there]
            found.append(after)
        if not where.kept.any():
            return x, where.state[:0]
        asked = torch.as_tensor(where.kept)
        kept = [torch.stack([one[asked] for one in states_of], 1) for states_of in zip(*found, strict=True)]
        return x, torch.stack(kept, 1).flatten(1)


def step_by_step(cell: Any, x: torch.Tensor, where: Sequences) -> tuple[torch.Tensor, torch.Tensor]:
    """Go through sequences as `Cell.through` does, by one call for each step: of a cell that was changed."""
    dense, valid = _placed(x, where.valid)
    state, outputs, kept = where.state, list[torch.Tensor](), list[torch.Tensor]()
    for seen, first, asked in zip(dense, where.first, where.kept, strict=True):
        if first.any():
            state = state.where(~torch.as_tensor(first[:, None], device=x.device), 0.0)
        y, state = cell(seen, state)
        outputs.append(y)
        if asked.any():
            kept.append(state[torch.as_tensor(asked, device=x.device)])
    return torch.stack(outputs)[valid], torch.cat(kept) if kept else state[:0]


STEPS_OF_A_CALL = 32
_PRECISIONS = (torch.float32, torch.float64)


def _placed(x: torch.Tensor, valid: Array) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (N, n) at their places (T, B, n), 0 elsewhere; and these places, as a tensor."""
    there = torch.as_tensor(valid, device=x.device)
    if valid.all():
        return x.reshape(*valid.shape, x.shape[-1]), there
    dense = x.new_zeros((*valid.shape, x.shape[-1]))
    dense[there] = x
    return dense, there


class Cells(nn.Module):
    """A cell for actor and critic together, or one for each of them, whose outputs and states lie side by side.

    Args:
        cells: one, or the actor's and the critic's; all have the same outputs.
    """

    def __init__(self, *cells: Any) -> None:
        super().__init__()
        self.cells = nn.ModuleList(cells)
        self.takes_arrays = all(getattr(one, "takes_arrays", False) for one in cells)
        self._entries: int = cells[0].entries
        self.outputs, self.entries = cells[0].outputs, sum(one.entries for one in cells)
        self.widths: Sequence[tuple[bool, int]] = ()  # no feature of it is a picture's own

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        """Outputs (B, k H) and states (B, S) after one step; arrays or tensors, see `Cell`."""
        if len(self.cells) == 1:
            found: tuple[Any, Any] = self.cells[0](x, state)
            return found
        size = self._entries
        pairs = [one(x, state[:, at * size : (at + 1) * size]) for at, one in enumerate(self.cells)]
        join = np.concatenate if isinstance(x, np.ndarray) else torch.cat
        outputs, states = zip(*pairs, strict=True)
        return join(outputs, -1), join(states, -1)

    def through(self, x: torch.Tensor, where: Sequences) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs (N, k H) of rows (N, n) in sequences, and states (K, S) after those that are `kept`; see `Cell`."""
        if not is_as_written(self, _WAYS[Cells]):
            return step_by_step(self, x, where)
        size, cells = self._entries, list[Any](self.cells)
        pairs = [
            one.through(x, where._replace(state=where.state[:, at * size : (at + 1) * size]))
            for at, one in enumerate(cells)
        ]
        outputs, states = zip(*pairs, strict=True)
        return torch.cat(outputs, -1), torch.cat(states, -1)

    def apart(self, features: Any) -> tuple[Any, Any]:
        """Split outputs (..., k H) into the actor's and the critic's, (..., H) each; a single cell's are both."""
        size = self.outputs
        return features[..., :size], features[..., -size:]


_WAYS = {kind: (kind.forward, kind.__call__) for kind in (Cell, Cells)}
