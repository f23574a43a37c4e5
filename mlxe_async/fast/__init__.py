"""Fast twins: what some built-in algorithms say, computed in less time. Deleting one changes nothing but the rate.

An algorithm's file says in plain torch what is learned, and that is what is learned. For six built-in files there are
twins here, derived from them by hand. The learner asks the function `updates` for the way to do an algorithm's updates,
and gets the twin only where all of this holds:

* The class is exactly the built-in one, and no method was put on the object.
* All modules that it imports are, as they are in this process, what the twin was derived from (`manifest`).
* The settings and the structure of the networks are among those that the twin knows (`quick.why_not_plain`).

Everything else is done by the algorithm's own file, and one line of the log says why. Examples decide nothing. While a
run goes on, modules are compared again, and `audit` does some updates a second time, as they are written.

There are no twins of networks with recurrent cells. Numpy goes through their sequences, also in an author's algorithm,
and `audit` compares that with torch's own way; see `networks.recurrence`.

Only the learner's role imports this package; no algorithm knows of it.

    audit, rounding                             updates done twice and compared, and what rounding explains
    manifest, namespaces, libraries             whether code is what the twins were derived from
    dqn, ppo, continuous, mlxe                  the twins
    quick, sequences                            what twins share; pieces of rollouts that PPO learns from
    dense, layers, stacked                      dense networks differentiated by hand
    convolved, pictures                         networks of pictures differentiated by hand
    products, target_values                     which library multiplies; values kept until the target network moves
    cells                                       the audit of recurrent cells
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from mlxe_async.algorithms import REGISTRY
from mlxe_async.algorithms.interface import Clock, Metrics, Rows
from mlxe_async.algorithms.state.as_written import learned
from mlxe_async.errors import AuditFailed
from mlxe_async.fast.manifest import Watch
from mlxe_async.networks.ways import by_torch
from mlxe_async.rows import Array

if TYPE_CHECKING:
    from mlxe_async.fast.products import Library
    from mlxe_async.fast.target_values import TargetValues

LOOK_S = 0.05  # between two looks at the code that a twin stands for
LOOK_SHARE = 200  # times what a look takes has to pass until the next one
__all__ = ["Twin", "Updates", "twin_of", "updates", "watch_of"]


class Twin(Protocol):
    """Does an algorithm's updates; everything that was learned stays in the algorithm."""

    @property
    def attached(self) -> bool:
        """True if the networks that it works on are those that the algorithm learns."""

    def attach(self) -> None:
        """Work on the networks that the algorithm learns now."""

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, Array | None]:
        """As the algorithm's own."""


class Updates:
    """The way in which an algorithm's updates are done.

    Args:
        algorithm: an object that learns.
        twin: what does them faster; None: they are done as they are written.
        reason: why there is no twin; "" if there is one.
        watch: says what has changed of the code that the twin stands for.
        cells: numpy may go through sequences of recurrent cells; there is no twin then.
    """

    def __init__(
        self, algorithm: Any, twin: Twin | None, reason: str, watch: Watch | None = None, *, cells: bool = False
    ) -> None:
        self.algorithm, self.twin, self.reason, self.cells, self._watch = algorithm, twin, reason, cells, watch
        self._look_at = 0.0

    @property
    def products(self) -> str:
        """Which library multiplied the matrices of a twin so far, in words; "" where none did."""
        if self.twin is None:
            return ""
        from mlxe_async.fast import products

        return products.told()

    @property
    def target_values(self) -> TargetValues | None:
        """Values by a target network that are kept, which have to be told of the rows to come; None: there are none."""
        return getattr(self.twin, "target_values", None)

    @property
    def is_fast(self) -> bool:
        """True if some of it is not done as it is written."""
        return self.twin is not None or self.cells

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, Array | None]:
        """Learn from one batch; see `algorithms.interface.Algorithm.update`.

        Raises:
            AuditFailed: what the twin stands for was changed after the learner had begun.
        """
        if self.twin is None:
            with contextlib.nullcontext() if self.cells else by_torch():
                return learned(self.algorithm, batch, clock)
        if time.monotonic() > self._look_at:
            self.expect_unchanged()
        if not self.twin.attached:
            self.twin.attach()
        return self.twin.update(batch, clock)

    def expect_unchanged(self) -> None:
        """Compare the code that the twin stands for with what it was.

        Raises:
            AuditFailed: it was changed.
        """
        began = time.monotonic()
        if self.twin is not None and (changed := self.changed()):
            raise AuditFailed(
                f"{changed} was changed after the learner had begun, and was not learned by from then on; change it "
                "where the algorithm's module is imported, or set learner.fast = false"
            )
        ended = time.monotonic()
        self._look_at = ended + max(LOOK_S, LOOK_SHARE * (ended - began))

    def changed(self) -> str:
        """The place of what is no longer as it was when the twin was chosen; "" if all is."""
        return "" if self._watch is None else self._watch.difference()

    def as_written(self, reason: str) -> None:
        """Do without the twin, and without numpy's way through sequences, from now on."""
        self.twin, self.cells, self.reason = None, False, reason


def watch_of(kind: type) -> Watch | None:
    """Return what compares the code of a built-in class with what its twin was derived from; None: it has no twin."""
    name = _name(kind)
    return Watch(kind, name) if name in _MAKERS else None


def updates(algorithm: Any, *, fast: bool = True, watch: Watch | None = None, products: Library = "auto") -> Updates:
    """The fastest way to do exactly what an algorithm's `update` says.

    Args:
        algorithm: an object that learns.
        fast: whether a twin may do it; otherwise the algorithm's own file does.
        watch: from `watch_of` this class, which may have begun already.
        products: the library that multiplies the matrices of dense twins, from now on in the whole process.
    """
    if not fast:
        return Updates(algorithm, None, "learner.fast = false")
    if _has_cells(algorithm):
        return Updates(algorithm, None, "", cells=True)
    kind = type(algorithm)
    name = _name(kind)
    if name is None:
        return Updates(algorithm, None, f"{kind.__name__} is not a built-in algorithm")
    if (watch := watch or watch_of(kind)) is None:
        return Updates(algorithm, None, f"there is no fast twin of {name}")
    if changed := watch.difference():
        return Updates(algorithm, None, f"{changed} is not what the fast twin of {name} was derived from")
    if reason := _why_not(algorithm, name):
        return Updates(algorithm, None, reason)
    from mlxe_async.fast.products import multiply_by

    multiply_by(products)
    return Updates(algorithm, twin_of(name, algorithm), "", watch)


def _has_cells(algorithm: Any) -> bool:
    """Return whether a network of an algorithm's has a recurrent cell through whose sequences numpy may go."""
    from torch import nn

    from mlxe_async.networks.cells import Cell

    networks = [one for one in getattr(algorithm, "__dict__", {}).values() if isinstance(one, nn.Module)]
    cells = [part for one in networks for part in one.modules() if isinstance(part, Cell)]
    return any(weight.device.type == "cpu" for cell in cells for weight in cell.parameters())


def _name(kind: type) -> str | None:
    """The name that a class is built in under, if it is."""
    path = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, place in REGISTRY.items() if place == path), None)


def _why_not(algorithm: Any, name: str) -> str:
    """Return what the twin of this name does not know about an object; "" if it knows all."""
    methods = {member for klass in type(algorithm).__mro__ for member, value in vars(klass).items() if callable(value)}
    if own := sorted(vars(algorithm).keys() & methods):
        return f"its object has a {own[0]} of its own"
    from mlxe_async.fast import continuous, dqn, mlxe, ppo

    known: Any = {"ppo": ppo, "dqn": dqn, "mlxe": mlxe}.get(name, continuous)
    return str(known.why_not(algorithm))


def twin_of(name: str, algorithm: Any) -> Twin:
    """The twin of a built-in algorithm, whatever the object is: who asks knows that it may stand for it."""
    return _MAKERS[name](algorithm)


def _ppo(algorithm: Any) -> Twin:
    from mlxe_async.fast.ppo import PPOTwin

    return PPOTwin(algorithm)


def _mlxe(algorithm: Any) -> Twin:
    from mlxe_async.fast.mlxe import MLxETwin

    return MLxETwin(algorithm)


def _dqn(algorithm: Any) -> Twin:
    from mlxe_async.fast.dqn import DQNTwin

    return DQNTwin(algorithm)


def _sac(algorithm: Any) -> Twin:
    from mlxe_async.fast.continuous import SACTwin

    return SACTwin(algorithm)


def _ddpg(algorithm: Any) -> Twin:
    from mlxe_async.fast.continuous import DDPGTwin

    return DDPGTwin(algorithm)


_MAKERS: dict[str, Callable[[Any], Twin]] = {
    "mlxe": _mlxe,
    "dqn": _dqn,
    "ppo": _ppo,
    "sac": _sac,
    "td3": _ddpg,
    "ddpg": _ddpg,
}
TWINS = tuple(_MAKERS)
"""The algorithms that have one."""
