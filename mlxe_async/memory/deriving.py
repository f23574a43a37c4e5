"""Columns that an algorithm derives from whole closed stretches, of one at a time or of many at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mlxe_async.rows import Array

Derive = Callable[[dict[str, Array]], dict[str, Array]]
"""Derived columns (L, ...) of the rows of a closed stretch."""
DeriveMany = Callable[[dict[str, Array], Array], dict[str, Array]]
"""Derived columns (N, ...) of several closed stretches, one after the other, and the rows of each (S,)."""


class Deriving(NamedTuple):
    """How derived columns are made.

    Args:
        derive: of one stretch.
        many: of several at once, the same to the last bit; None: one after the other.
    """

    derive: Derive
    many: DeriveMany | None

    def __call__(self, segments: dict[str, Array], lengths: Array) -> dict[str, Array]:
        """Derived columns (N, ...) of stretches of these lengths (S,)."""
        if self.many is not None:
            return self.many(segments, lengths)
        if len(lengths) == 1:
            return self.derive(segments)
        ends = np.cumsum(lengths).tolist()
        pieces = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        answers = [self.derive({name: column[piece] for name, column in segments.items()}) for piece in pieces]
        return {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}
