"""The inputs of an exported policy: observations as the environment gives them, and as the network is shown them.

| space | input | shown as |
|---|---|---|
| Box | (B, *shape) in its own dtype | float32, or bytes where it is of uint8 |
| Discrete | (B,) int64 | one-hot |
| MultiDiscrete | (B, *shape) int64 | the one-hots of its entries, one after the other |
| MultiBinary | (B, *shape) int8 | 0 and 1 as floats |
| Dict, Tuple | one input for each leaf | see `parts` |

A mask of allowed actions is an input of its own, `action_mask`, int8 (B, choices).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from mlxe_async.rows import MASK, WHOLE, Array, Spaces
from mlxe_async.tasks.observing import Leaf, Packing, is_empty, reached


@dataclass(frozen=True)
class Entry:
    """One input.

    Args:
        name: of the input, and of the part of an observation that it becomes.
        shape: of one observation's, without the batch.
        dtype: as the environment gives it.
        leaf: where in an observation it lies; None: it is the mask.
        choices: of the mask, for each entry of an action.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    leaf: Leaf | None = None
    choices: tuple[int, ...] = field(default=(), repr=False)

    def value(self, obs: Any, info: Any) -> Array:
        """The input (1, *shape) that one observation, and what came with it, is."""
        if self.leaf is not None:
            return np.asarray(reached(obs, self.leaf)).astype(self.dtype).reshape(1, *self.shape)
        shown = obs if isinstance(obs, dict) and MASK in obs else info
        mask = shown[MASK]
        flat = np.concatenate([np.ravel(one) for one in mask]) if isinstance(mask, (tuple, list)) else np.ravel(mask)
        return flat.astype(self.dtype).reshape(1, *self.shape)

    def shown(self, given: torch.Tensor) -> torch.Tensor:
        """The part (B, *shape as stored) that an input (B, *shape) becomes."""
        space = None if self.leaf is None else self.leaf.space
        if isinstance(space, spaces.Discrete):
            return _one_hot(given, int(space.start), int(space.n))
        if isinstance(space, spaces.MultiDiscrete):
            flat = given.reshape(given.shape[0], -1)
            sizes, starts = space.nvec.ravel().tolist(), space.start.ravel().tolist()
            return torch.cat([_one_hot(flat[:, k], starts[k], sizes[k]) for k in range(len(sizes))], -1)
        if space is not None and is_empty(space):  # stored as one 0
            return given.new_zeros((given.shape[0], 1), dtype=torch.float32)
        if isinstance(space, spaces.MultiBinary):
            return given.reshape(given.shape[0], -1).float()
        return given if given.dtype == torch.uint8 or space is None else given.float()

    @property
    def words(self) -> str:
        """`observation (batch, 4) float32`."""
        return f"{self.name} ({', '.join(('batch', *map(str, self.shape)))}) {self.dtype}"


def _one_hot(index: torch.Tensor, start: int, count: int) -> torch.Tensor:
    return (index[..., None] - start == torch.arange(count)).float()


def entries_of(space: Any, packing: Packing | None) -> list[Entry]:
    """Return the inputs for observations of a space, in the order in which they are given.

    Args:
        space: of the environment's observations.
        packing: what makes stored observations of them; None where they are stored as they are.
    """
    if packing is None:
        return [_entry(Leaf(WHOLE, (), space))]
    found = [_entry(leaf) for leaf, _ in packing.leaves]
    if packing.mask is not None:
        choices = packing.mask[1]
        found.append(Entry(MASK, (sum(choices),), np.dtype(np.int8), choices=choices))
    return found


def _entry(leaf: Leaf) -> Entry:
    space = leaf.space
    if isinstance(space, spaces.Discrete):
        return Entry(leaf.name, (), np.dtype(np.int64), leaf)
    if isinstance(space, spaces.MultiDiscrete):
        return Entry(leaf.name, tuple(space.nvec.shape), np.dtype(np.int64), leaf)
    if isinstance(space, spaces.MultiBinary):
        return Entry(leaf.name, tuple(map(int, space.shape)), np.dtype(np.int8), leaf)
    dtype = np.dtype(space.dtype)
    is_odd = dtype.kind == "u" and dtype.itemsize > 1  # torch knows hardly anything of them
    return Entry(leaf.name, tuple(map(int, space.shape)), np.dtype(np.int64) if is_odd else dtype, leaf)


class FromEnvironment(torch.nn.Module):
    """A policy's best actions, for observations as the environment gives them.

    Args:
        best: from observations, or their parts by name, to the best actions; see `networks.heads.Deterministic`.
        entries: the inputs.
        known: spaces of the policy.
        features: makes further inputs (B, K) of observations (B, O), which stand behind them; None: there are none.
    """

    def __init__(
        self,
        best: torch.nn.Module,
        entries: Sequence[Entry],
        known: Spaces,
        features: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__()
        self.best, self._entries, self._spaces, self._features = best, list(entries), known, features

    @property
    def memory(self) -> int:
        """Entries S of a recurrent policy's states (B, S); 0: it has none."""
        return int(getattr(self.best, "entries", 0))

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Actions (B, ...) for the inputs in their order; of a recurrent policy the states come last, in and out."""
        count = len(self._entries)
        parts = {one.name: one.shown(given) for one, given in zip(self._entries, inputs[:count], strict=True)}
        obs: Any = parts
        if not self._spaces.parts:
            (only,) = parts.values()
            obs = only = only[:, None] if only.ndim == 1 else only  # one number is stored as a vector of one
            if self._features is not None:
                obs = torch.cat([only, self._features(only)], -1)
        elif self._features is not None:
            flat = torch.cat([one.reshape(one.shape[0], -1) for name, one in parts.items() if name != MASK], -1)
            obs = parts | {"features": self._features(flat)}
        return self.best(obs, *inputs[count:])


class Watched(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Remembers what an environment showed last, and what it was given: `seen`, `info`, `given`."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """The environment's own."""
        self.seen, self.info = self.env.reset(**options)
        return self.seen, self.info

    def step(self, action: Any) -> Any:
        """The environment's own."""
        self.given = action
        answer = self.env.step(action)
        self.seen, self.info = answer[0], answer[4]
        return answer


class Watching:
    """Puts a `Watched` around an environment, and has it as `env`."""

    env: Watched

    def __call__(self, env: gymnasium.Env[Any, Any]) -> Watched:
        """The environment, watched."""
        self.env = Watched(env)
        return self.env
