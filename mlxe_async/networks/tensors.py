"""Columns of rows as tensors on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mlxe_async.gpu import uploaded


def tensor_type(name: str, column: NDArray[Any]) -> torch.dtype:
    """The type of a column's tensor: float32 for floats, bool and bytes as they are, int64 for other integers.

    Raises:
        TypeError: the column holds no numbers.
    """
    if column.dtype == np.uint8:
        return torch.uint8
    kinds = {"f": torch.float32, "b": torch.bool, "i": torch.int64, "u": torch.int64}
    if column.dtype.kind not in kinds:
        raise TypeError(f"column {name}: expected numbers or truth values, got {column.dtype}")
    return kinds[column.dtype.kind]


def moved(columns: Mapping[str, tuple[NDArray[Any], torch.dtype]], device: torch.device) -> dict[str, torch.Tensor]:
    """Columns as tensors of the given types on a device; on the CPU they may share their memory."""
    if device.type == "cuda":
        return uploaded(columns, device)
    return {name: torch.as_tensor(column, dtype=dtype).to(device) for name, (column, dtype) in columns.items()}
