"""Whether executors, and a successor, have all that the learner's object has: looked at before a publication."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlxe_async.algorithms.interface import Clock
from mlxe_async.algorithms.state.namespaces import Namespaces
from mlxe_async.algorithms.state.published import Published, Unlike, is_due, sampled
from mlxe_async.algorithms.state.unkept import Unkept
from mlxe_async.errors import Unpublished
from mlxe_async.rows import Array


class Likeness:
    """Looks at the first publication after an update, the second, fourth, eighth ..., and each 1024th.

    Args:
        algorithm: the learner's object, before its first update.
        make: makes an object as executors do; None: it is not checked how they act.
        told: is told, in a sentence, what is not kept.
    """

    def __init__(
        self, algorithm: Any, make: Callable[[], Any] | None, told: Callable[[str], None] = lambda _sentence: None
    ) -> None:
        self._algorithm, self._publications, self._told = algorithm, 0, told
        self._has_learned = False  # since the last publication
        namespaces = Namespaces(type(algorithm))
        self._published = None if make is None else Published(algorithm, make, namespaces)
        self._unkept = Unkept(algorithm, namespaces)
        self._last: tuple[Mapping[str, Array], Clock] | None = None

    def learned(self, batch: Mapping[str, Array], clock: Clock) -> None:
        """Note what was learned from last, if the next publication is looked at: its rows are acted on."""
        self._has_learned = True
        if is_due(self._publications + 1):
            self._last = (batch, clock)

    def tell(self) -> None:
        """Tell what the algorithm changes and no state holds, each once."""
        if names := self._unkept.news():
            self._told(
                f"{type(self._algorithm).__name__}: {', '.join(names)}: no state can hold that; a run that goes on, "
                "or a learner that was killed, begins without"
            )

    def see(self, vector: Array) -> None:
        """Look at the weights (P,) that are about to be published, if it is time to.

        Raises:
            Unpublished: executors would act otherwise than the learner's object.
        """
        if not self._has_learned:
            return
        self._publications, self._has_learned = self._publications + 1, False
        if self._last is None:
            return
        (batch, clock), self._last = self._last, None
        self.tell()
        if self._published is None or not hasattr(self._algorithm, "spaces"):
            return  # a class that is not derived from Algorithm may do without
        obs, acting = sampled(batch, self._algorithm, clock)
        if not len(obs):
            return
        try:
            self._published.check(vector, obs, acting)
        except Unlike as error:
            raise Unpublished(f"after {clock.updates + 1} updates {error}") from error
