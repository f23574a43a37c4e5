"""A dilated LSTM: cores with the same weights take turns, so that each remembers over steps that are further apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from mlxe_async.networks.by_numpy import is_as_written
from mlxe_async.networks.cells import Cell, Sequences, step_by_step
from mlxe_async.rows import Array


class Dilated(nn.Module):
    """Cores of which step t of an episode updates core t mod r (FeUdal networks, Vezhnevets et al. 2017, section 3.2).

    h^(t mod r) = LSTM(x, h^(t mod r)), and the output is the mean of all cores' outputs, 0 of those to come. A state
    (B, S) holds h and c of one core after the other, (r, S'), and at last t mod r: zero where an episode begins.

    Args:
        inputs: features of a row.
        size: outputs.
        layers: LSTM cells in a core, one above the other.
        cores: r, the states that take turns.
    """

    takes_arrays = True

    def __init__(self, inputs: int, size: int, layers: int = 1, cores: int = 8) -> None:
        super().__init__()
        self.core = Cell("lstm", inputs, size, layers)
        self.outputs, self.cores, self.entries = size, cores, cores * self.core.entries + 1
        self._output = slice((layers - 1) * size, layers * size)  # within a core's state

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        """Outputs (B, H) and states (B, S) after one step, for features (B, n) and states (B, S); arrays or tensors.

        Of tensors also after several: outputs (T, B, H) for features (T, B, n).
        """
        if x.ndim == 3:
            every, none = np.ones(x.shape[:2], bool), np.zeros(x.shape[:2], bool)
            kept = none.copy()
            kept[-1] = True
            found, after = self.through(x.flatten(0, 1), Sequences(every, none, kept, state))
            return found.unflatten(0, x.shape[:2]), after
        is_array = isinstance(x, np.ndarray)
        after, turn = state.copy() if is_array else state.clone(), self._turn(state)
        every, env = self._apart(after), (np if is_array else torch).arange(state.shape[0])
        every[env, turn] = self.core(x, every[env, turn])[1]
        after[:, -1] = (turn + 1) % self.cores
        return every[..., self._output].mean(1), after

    def _turn(self, state: Any) -> Any:
        """Return which core is next (B,)."""
        place = state[:, -1]
        return (place.astype(np.int64) if isinstance(place, np.ndarray) else place.long()) % self.cores

    def _apart(self, state: Any) -> Any:
        """The cores' states (B, r, S') in states (B, S), as a view."""
        return state[:, :-1].reshape(state.shape[0], self.cores, self.core.entries)

    def through(self, x: torch.Tensor, where: Sequences) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs (N, H) of rows (N, n) in sequences, and states (K, S) after those that are `kept`; see `Cell`.

        The rows of a core, every r-th of an episode, are a sequence of their own: all cores go on side by side, and
        outputs are pooled afterwards.
        """
        if not (self.core.is_as_written and is_as_written(self, _WAYS)):
            return step_by_step(self, x, where)
        (steps, envs), cores = where.valid.shape, self.cores
        turn, source, begins = self._sources(where)
        mine = (turn[..., None] == np.arange(cores)) & where.valid[..., None]
        number, width = (np.cumsum(mine, 0) - 1)[mine], envs * cores  # of a row in its core's sequence
        place = number * width + (np.arange(envs) * cores + turn)[where.valid]
        order = np.argsort(place)  # of the rows, as the cores go through them
        rank = np.zeros((steps, envs), np.int64)
        rank[where.valid] = np.argsort(order)
        # What lies behind each output: before the first row of a sequence, zero, or after one of the rows.
        after = width + 1 + rank[np.maximum(source, 0), np.arange(envs)[:, None]]
        before = np.arange(width).reshape(envs, cores)
        index = np.where(source >= 0, after, np.where(source == _ZERO, width, before))
        asked, which = np.unique(index[where.kept], return_inverse=True)
        rows = asked[asked > width] - width - 1
        flags = np.zeros((3, max(number, default=0) + 1, width), bool)
        for flag, places in zip(flags, (place, place[begins[where.valid]], place[order][rows]), strict=True):
            flag.reshape(-1)[places] = True
        begun = self._apart(where.state).flatten(0, 1)
        found, states = self.core.through(x[order], Sequences(flags[0], flags[1], flags[2], begun))
        given = torch.cat([begun[:, self._output], begun.new_zeros(1, self.outputs), found])
        outputs = given[torch.as_tensor(index[where.valid], device=x.device)].mean(1)
        some = torch.cat([begun, torch.zeros_like(begun[:1])])[asked[asked <= width]]
        kept = torch.cat([some, states])[which.reshape(-1, cores)].flatten(1)
        turns = torch.as_tensor((turn[where.kept] + 1) % cores, device=x.device)
        return outputs, torch.cat([kept, turns[:, None].to(kept.dtype)], 1)

    def _sources(self, where: Sequences) -> tuple[Array, Array, Array]:
        """Return which core's turn it is (T, B), and in which row each was updated last (T, B, r).

        That is negative for a core without such a row: the state before the sequence is its own, or `_ZERO`. The third
        array (T, B) tells which rows are a core's first of an episode.
        """
        time = np.arange(len(where.valid))[:, None]
        begin = np.maximum.accumulate(np.where(where.first, time, -1))
        turn = np.where(begin < 0, self._turn(where.state).numpy(force=True) + time, time - begin) % self.cores
        source = time[..., None] - (turn[..., None] - np.arange(self.cores)) % self.cores
        source = np.where(source >= 0, source, -1)
        source[(begin[..., None] >= 0) & (source < begin[..., None])] = _ZERO
        return turn, source, (begin >= 0) & (time - begin < self.cores)


_ZERO, _WAYS = -2, (Dilated.forward, Dilated.__call__)
