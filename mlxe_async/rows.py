"""What a stored step looks like: the one table of columns from which lanes, memories and batches are laid out.

Every column is an array of its own inside a block of rows (structure of arrays), aligned to 64 bytes, so that a block
can be written, checked and copied as plain bytes and read back as numpy views without a copy.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

ALIGNMENT = 64


@dataclass(frozen=True)
class Column:
    """One named quantity of a row.

    Args:
        name: the column's name.
        dtype: a numpy dtype string such as `"<f4"`.
        shape: the shape of one row's entry; `()` for a scalar.
        fill: an impossible value that marks memory nobody has written yet.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    fill: float = -4242

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
        return [{"name": c.name, "dtype": c.dtype, "shape": list(c.shape), "fill": c.fill} for c in self.columns]

    @classmethod
    def from_json(cls, columns: list[dict[str, Any]]) -> RowLayout:
        """The inverse of `to_json`."""
        return cls(tuple(Column(c["name"], c["dtype"], tuple(c["shape"]), c["fill"]) for c in columns))


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
        observation_shape: shape O of one observation.
        observation_dtype: numpy dtype string of one observation as stored.
        actions: number of discrete actions, or None when the action is an array.
        action_shape: shape of one action; `()` when discrete.
        action_low: lower bounds of an array action, flattened.
        action_high: upper bounds of an array action, flattened.
        symmetry: a mirror image the task declares, if any.
        limits: per observation entry, flattened, the magnitude at which the task counts as failed, None where there is
            no such limit; None altogether if the task declares none.
        frames: an observation (frames, ...) is the newest so many frames, oldest first; 0 where nothing is known.
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
        }

    @classmethod
    def from_json(cls, spaces: Mapping[str, Any]) -> Spaces:
        """The inverse of `to_json`; what runs wrote before there were limits and frames is read too."""
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
        )


def standard_columns(spaces: Spaces) -> tuple[Column, ...]:
    """The columns that every stored step has, whatever the algorithm.

    `next_obs` is the observation the step led to, also at the end of an episode (never the one after a reset).
    `cut` marks the last row of a rollout that stops inside an episode: nothing follows on, but the world goes on;
    `last` the final row of a rollout, all environments of the executor together.
    `log_prob` is log mu(a|s) of the policy that really chose the action, `version` the weights it used.
    `episode` counts the episodes of one environment of one executor, `step` the rows of one episode, both from 0.
    """
    action_dtype = "<i8" if spaces.actions is not None else "<f4"
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
