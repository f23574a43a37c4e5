"""What a stored step looks like: the one table of columns from which lanes, memories and batches are laid out.

Every column is an array of its own inside a block of rows (structure of arrays), aligned to 64 bytes, so that a block
can be written, checked and copied as plain bytes and read back as numpy views without a copy.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mlxe_async import parts as packing
from mlxe_async.parts import Part

Array = NDArray[Any]
ActionKind = Literal["discrete", "multi_discrete", "multi_binary", "box"]

ALIGNMENT = 64
MASK = "action_mask"
"The part of an observation that says which actions are allowed, 1 for each that is."
WHOLE = "observation"
"The part that is the observation itself, where its space has no parts."


@dataclass(frozen=True)
class Column:
    """One named quantity of a row.

    Args:
        name: the column's name.
        dtype: a numpy dtype of numbers or truth values, kept as a string such as `"<f4"`.
        shape: the shape of one row's entry; `()` for a scalar.
        fill: an impossible value that marks memory that was never written.
        per_rollout: whether a memory of rollouts keeps only the entry of each environment's first row.

    Raises:
        ValueError: there is no such dtype, or it is not one of numbers, or the shape is none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    fill: float = -4242
    per_rollout: bool = False

    def __post_init__(self) -> None:
        told = f'Column({self.name!r}, dtype, shape): expected a dtype of numbers such as "<f4"'
        try:
            found = np.dtype(self.dtype)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{told}, got {self.dtype!r}") from error
        if found.kind not in "biuf" or not isinstance(self.dtype, str | type | np.dtype):
            raise ValueError(f"{told}, got {self.dtype!r}")
        shape = self.shape if isinstance(self.shape, tuple | list) else (self.shape,)
        if not all(isinstance(size, int | np.integer) and size >= 0 for size in shape):
            raise ValueError(f"Column({self.name!r}, dtype, shape): expected a shape such as (64,), got {self.shape!r}")
        if not isinstance(self.dtype, str):
            object.__setattr__(self, "dtype", found.str)
        object.__setattr__(self, "shape", tuple(map(int, shape)))

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's entry."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class RowLayout:
    """An ordered set of columns and the arithmetic of laying rows out in a buffer."""

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise ValueError(f"row layout: column names must differ, got {names}")

    def nbytes(self, rows: int) -> int:
        """Bytes that `rows` rows need, each column padded to the alignment."""
        return sum(_aligned(column.row_bytes * rows) for column in self.columns)

    def views(self, buffer: Any, rows: int, offset: int = 0) -> dict[str, Array]:
        """Numpy views on `buffer`, name -> array (rows, *shape). Writing to them writes to the buffer.

        Raises:
            ValueError: the buffer is too small.
        """
        result: dict[str, Array] = {}
        for column in self.columns:
            count = rows * int(np.prod(column.shape, dtype=np.int64))
            flat = np.frombuffer(buffer, dtype=column.dtype, count=count, offset=offset)
            result[column.name] = flat.reshape((rows, *column.shape))
            offset += _aligned(column.row_bytes * rows)
        return result

    def empty(self, rows: int) -> dict[str, Array]:
        """Fresh private arrays of the same shape, filled with the impossible values."""
        return {c.name: np.full((rows, *c.shape), _fill_for(c), dtype=c.dtype) for c in self.columns}

    def with_columns(self, extra: Iterable[Column]) -> RowLayout:
        """This layout followed by more columns."""
        return RowLayout((*self.columns, *extra))

    @property
    def schema_hash(self) -> int:
        """64-bit fingerprint of names, dtypes and shapes; two processes that disagree must not share memory."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")

    def to_json(self) -> list[dict[str, Any]]:
        """The layout as plain JSON types."""
        more = {"per_rollout": True}
        return [
            {
                "name": c.name,
                "dtype": c.dtype,
                "shape": list(c.shape),
                "fill": c.fill,
                **(more if c.per_rollout else {}),
            }
            for c in self.columns
        ]

    @classmethod
    def from_json(cls, columns: list[dict[str, Any]]) -> RowLayout:
        """The inverse of `to_json`."""
        return cls(
            tuple(
                Column(c["name"], c["dtype"], tuple(c["shape"]), c["fill"], c.get("per_rollout", False))
                for c in columns
            )
        )


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _fill_for(column: Column) -> float:
    return 255 if np.dtype(column.dtype).kind == "u" else column.fill


@dataclass(frozen=True)
class Symmetry:
    """A mirror image under which the task does not change.

    Args:
        observation_sign: factor per observation entry, +1 or -1, in flattened order.
        action_order: `action_order[a]` is the discrete action that mirrors action `a`.
    """

    observation_sign: tuple[float, ...]
    action_order: tuple[int, ...]


@dataclass(frozen=True)
class Spaces:
    """What an environment shows and takes, in plain types that travel between processes.

    Args:
        observation_shape: shape O of one observation as stored.
        observation_dtype: numpy dtype string of one observation as stored.
        actions: number of discrete actions, or None when the action is an array.
        action_shape: shape of one action; `()` when discrete.
        action_low: lower bounds of an action of floats, flattened.
        action_high: upper bounds of an action of floats, flattened.
        symmetry: a mirror image the task declares, if any.
        limits: per observation entry, flattened, the magnitude at which the task counts as failed, None where there is
            no such limit; None altogether if the task declares none.
        frames: number of newest frames in an observation (frames, ...), oldest first; 0 where nothing is known.
        parts: what an observation is made of that stands for several (see `parts`); empty where it is one array.
        action_kind: `"discrete"`, `"multi_discrete"`, `"multi_binary"` or `"box"`; all but the last are integers from
            0. Left out, it is discrete where there are `actions`, else a box.
        action_sizes: choices of each entry of an action of integers, flattened; 2 each where they are binary.
        masked: whether the last part, `action_mask`, says which of all choices are allowed.
        observation_sizes: choices of each entry of an observation that is made of nothing but integers, and stored as
            their one-hots, one after the other; else empty.
        action_starts: what the environment calls the first choice of each entry of an action; empty where all are 0.
    """

    observation_shape: tuple[int, ...]
    observation_dtype: str = "<f4"
    actions: int | None = None
    action_shape: tuple[int, ...] = ()
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    symmetry: Symmetry | None = None
    limits: tuple[float | None, ...] | None = None
    frames: int = 0
    parts: tuple[Part, ...] = ()
    action_kind: ActionKind = "discrete"
    action_sizes: tuple[int, ...] = ()
    masked: bool = False
    observation_sizes: tuple[int, ...] = ()
    action_starts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.action_kind == "discrete" and self.actions is None:
            object.__setattr__(self, "action_kind", "box")
        elif self.action_kind == "discrete" and not self.action_sizes:
            object.__setattr__(self, "action_sizes", (self.actions,))

    # -- what observations hold, of arrays and tensors with any axes before those of an observation ------------------

    def split(self, obs: Any) -> dict[str, Any]:
        """The parts (..., *shape) of observations (..., *O) by name, as views where that is possible.

        Without parts there is one, `observation`.
        """
        if not self.parts:
            return {WHOLE: obs}
        return {part.name: packing.view(part, obs, is_bytes=self._is_bytes) for part in self.parts}

    def pack(self, named: Mapping[str, Array]) -> Array:
        """The inverse of `split`, for arrays.

        Raises:
            ValueError: a name is missing or unknown, or a part has another shape.
        """
        if self.parts:
            return packing.packed(self.parts, named)
        if set(named) != {WHOLE}:
            raise ValueError(f"packing an observation: expected {WHOLE}, got {', '.join(named) or 'nothing'}")
        return np.array(named[WHOLE], self.observation_dtype)

    def vector(self, obs: Any) -> Any:
        """Observations (..., *O) as float32 (..., F): all parts but the mask, flattened, one after the other."""
        if not self.parts:
            lead = obs.shape[: obs.ndim - len(self.observation_shape)]
            flat = obs.reshape((*lead, math.prod(self.observation_shape)))
            return flat.astype(np.float32, copy=False) if isinstance(obs, np.ndarray) else flat.float()
        return packing.joined(obs, *self._counted) if self._is_bytes else obs

    def mask(self, obs: Any) -> Any:
        """Which choices are allowed, bool (..., sum of `action_sizes`); None where nothing says so.

        Observations may come as their parts, by name.
        """
        if not self.masked:
            return None
        if isinstance(obs, Mapping):
            return obs[MASK] != 0
        allowed = packing.view(self.parts[-1], obs, is_bytes=True)
        return allowed != 0

    @functools.cached_property
    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds (D,) of a flattened action, not to be written to; -inf and inf where it has none."""
        size = math.prod(self.action_shape)
        low, high = self.action_low or (-np.inf,) * size, self.action_high or (np.inf,) * size
        found = np.array(low, np.float32), np.array(high, np.float32)
        for one in found:
            one.flags.writeable = False
        return found

    @functools.cached_property
    def entries(self) -> int:
        """F, the entries of what `vector` gives."""
        return sum(self._counted) if self.parts else math.prod(self.observation_shape)

    @functools.cached_property
    def _counted(self) -> tuple[int, int]:
        return packing.counted(self.parts[:-1] if self.masked else self.parts)

    @functools.cached_property
    def _is_bytes(self) -> bool:
        return self.observation_dtype == packing.BYTES

    @property
    def fits_together(self) -> bool:
        """True if parts fill an observation, and all that is told of actions goes together; else a file was changed."""
        if not self._actions_fit:
            return False
        if self.observation_sizes and sum(self.observation_sizes) != math.prod(self.observation_shape):
            return False
        if not self.parts:
            return not self.masked
        laid_out = packing.laid_out((part.name, part.shape, part.dtype) for part in self.parts)
        stored = (self.observation_shape, self.observation_dtype)
        last = self.parts[-1]
        mask = (last.name, last.size) == (MASK, sum(self.action_sizes)) if self.masked else True
        return laid_out == self.parts and packing.stored_as(self.parts) == stored and mask

    @property
    def _actions_fit(self) -> bool:
        entries, mirror = math.prod(self.action_shape), self.symmetry
        if self.action_kind == "box":
            bounds = (*self.action_low, *self.action_high)
            is_told = self.actions is None and not self.action_sizes and not any(bound is None for bound in bounds)
            fits = is_told and len(self.action_low) == len(self.action_high) == entries > 0
        else:
            one = self.action_kind == "discrete"
            is_told = self.action_sizes == (self.actions,) and not self.action_shape if one else self.actions is None
            is_told = is_told and len(self.action_starts) in (0, entries)
            fits = is_told and len(self.action_sizes) == entries and min(self.action_sizes, default=0) > 0
        order = () if mirror is None else mirror.action_order
        return fits and sorted(order) == list(range(len(order)))

    def for_environment(self, action: Any) -> Any:
        """Actions (..., *shape) of choices from 0, arrays or tensors, as the environment counts them; numbers stay."""
        if not self.action_starts:
            return action
        starts = np.reshape(self.action_starts, self.action_shape)
        if isinstance(action, np.ndarray | np.generic):
            return action + starts
        return action + action.new_tensor(starts)

    # -- in words ----------------------------------------------------------------------------------------------------

    @property
    def observation_words(self) -> str:
        """`4 floats`, `84 x 84 x 3 bytes`, or `image 7 x 7 x 3 bytes, direction 4 floats`."""
        if not self.parts:
            return _amount(self.observation_shape, self.observation_dtype)
        return ", ".join(f"{part.name} {_amount(part.shape, part.dtype)}" for part in self.parts)

    @property
    def action_words(self) -> str:
        """`one of 2`, `one of 3 and one of 2`, `4 switches`, `2 floats`."""
        if self.action_kind == "box":
            return _amount(self.action_shape, packing.FLOATS)
        if self.action_kind == "multi_binary":
            return f"{' x '.join(map(str, self.action_shape))} switches"
        return " and ".join(f"one of {size}" for size in self.action_sizes)

    @property
    def action_name(self) -> str:
        """The space of actions as gymnasium calls it, such as `MultiDiscrete([3 2])`."""
        if self.action_kind == "discrete":
            return f"Discrete({self.actions})"
        if self.action_kind == "multi_discrete":
            return f"MultiDiscrete({np.array(self.action_sizes).reshape(self.action_shape)})".replace("\n", "")
        if self.action_kind == "multi_binary":
            shape = self.action_shape
            return f"MultiBinary({shape[0] if len(shape) == 1 else shape})"
        return f"Box of shape {self.action_shape}"

    # -- as JSON -----------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The spaces as plain JSON types."""
        symmetry = self.symmetry and {
            "observation_sign": list(self.symmetry.observation_sign),
            "action_order": list(self.symmetry.action_order),
        }
        return {
            "observation_shape": list(self.observation_shape),
            "observation_dtype": self.observation_dtype,
            "actions": self.actions,
            "action_shape": list(self.action_shape),
            "action_low": list(self.action_low),
            "action_high": list(self.action_high),
            "symmetry": symmetry,
            "limits": None if self.limits is None else list(self.limits),
            "frames": self.frames,
            "parts": [
                {"name": part.name, "shape": list(part.shape), "dtype": part.dtype, "offset": part.offset}
                for part in self.parts
            ],
            "action_kind": self.action_kind,
            "action_sizes": list(self.action_sizes),
            "masked": self.masked,
            "observation_sizes": list(self.observation_sizes),
            "action_starts": list(self.action_starts),
        }

    @classmethod
    def from_json(cls, spaces: Mapping[str, Any]) -> Spaces:
        """The inverse of `to_json`; what runs wrote before there were limits, frames and parts is read too."""
        limits = spaces.get("limits")
        symmetry = spaces["symmetry"] and Symmetry(
            tuple(spaces["symmetry"]["observation_sign"]), tuple(spaces["symmetry"]["action_order"])
        )
        return cls(
            tuple(spaces["observation_shape"]),
            spaces["observation_dtype"],
            spaces["actions"],
            tuple(spaces["action_shape"]),
            tuple(spaces["action_low"]),
            tuple(spaces["action_high"]),
            symmetry or None,
            None if limits is None else tuple(limits),
            spaces.get("frames", 0),
            tuple(Part(p["name"], tuple(p["shape"]), p["dtype"], p["offset"]) for p in spaces.get("parts", ())),
            spaces.get("action_kind", "discrete"),
            tuple(spaces.get("action_sizes", ())),
            spaces.get("masked", False),
            tuple(spaces.get("observation_sizes", ())),
            tuple(spaces.get("action_starts", ())),
        )


def _amount(shape: tuple[int, ...], dtype: str) -> str:
    kind = "byte" if dtype == packing.BYTES else "float"
    return f"{' x '.join(map(str, shape)) or '1'} {kind}{'' if math.prod(shape) == 1 else 's'}"


def standard_columns(spaces: Spaces) -> tuple[Column, ...]:
    """The columns that every stored step has, whatever the algorithm.

    `next_obs` is the observation the step led to, also at the end of an episode (never the one after a reset).
    `cut` marks the last row of a rollout that stops inside an episode: nothing follows on, but the world goes on;
    `last` the final row of a rollout, all environments of the executor together.
    `log_prob` is log mu(a|s) of the policy that really chose the action, `version` the weights it used.
    `episode` counts the episodes of one environment of one executor, `step` the rows of one episode, both from 0.
    """
    action_dtype = "<f4" if spaces.action_kind == "box" else "<i8"
    return (
        Column("obs", spaces.observation_dtype, spaces.observation_shape),
        Column("action", action_dtype, spaces.action_shape, fill=-1),
        Column("reward", "<f4"),
        Column("terminated", "|u1"),
        Column("truncated", "|u1"),
        Column("cut", "|u1"),
        Column("last", "|u1"),
        Column("next_obs", spaces.observation_dtype, spaces.observation_shape),
        Column("log_prob", "<f4"),
        Column("version", "<i8", fill=-1),
        Column("env", "<i4", fill=-1),
        Column("episode", "<i8", fill=-1),
        Column("step", "<i4", fill=-1),
    )
