"""Optional verbs of an algorithm, beside those of `interface.Algorithm`: some settings ask for them, some are faster.

Nothing derives from these protocols: an algorithm that has the verbs is asked. Shapes are those of `interface`.
"""

from __future__ import annotations

from typing import Protocol

from mlxe_async.algorithms.interface import Rows
from mlxe_async.maths.normaliser import Moments
from mlxe_async.networks import Floats
from mlxe_async.rows import Array


class DerivesMany(Protocol):
    """A further verb that makes taking rows in cheap: many environments close many segments at a time."""

    def derive_many(self, segments: Rows, lengths: Array) -> Rows:
        """Return what `derive` returns, of several segments at once: the same numbers, to the last bit.

        Args:
            segments: the rows (N, ...) of closed segments, one segment after the other.
            lengths: rows of each segment (S,), with sum N.
        """
        ...


class Normalising(Protocol):
    """Further verbs that running moments of observations ask of an algorithm with a replay memory.

    The memory counts each row once, when it is taken in, however often it is drawn. The learner hands the moments on
    before the updates of a plan; `weights` publishes them with what was learned by them.
    """

    moment_entries: int
    """Entries O of a flattened observation; 0: no moments are wanted."""

    def set_moments(self, moments: Moments) -> None:
        """Learn by these moments (O,) from now on, also after `set_weights`."""
        ...

    def moments_in(self, flat: Floats) -> Moments:
        """The moments that travel in published weights (P,): what a run counts on from that begins with them."""
        ...


class Appraising(Protocol):
    """A further verb that the priorities `"factors"` ask of an algorithm; `"age"` alone asks nothing."""

    def appraise(self, rows: Rows) -> Rows:
        """Judge stored rows (N, ...), standard and derived columns, by the loaded weights, without torch.

        Returns `return`, what each row's return is thought to be (N,), for `"risk"`, and `td_error`, how far the value
        of its observation is from that (N,), for `"td"`. The memory is appraised in pieces, so what is said of a row
        must depend on this row alone.
        """
        ...
