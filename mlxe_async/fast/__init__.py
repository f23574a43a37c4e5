"""Fast twins: what some built-in algorithms say, computed in less time. Deleting one changes nothing but the rate.

An algorithm's file says in plain torch what is learned, and that is what is learned. For the built-in files there are
twins here, derived from them by hand. The learner asks `updates` for the way to do an algorithm's updates, and gets
the twin only where all of this holds:

* The class is exactly the built-in one, and no method was put on the object.
* Every function that its update can reach has the text that the twin was derived from (`fingerprints`).
* The settings and the structure of the networks are among those that the twin knows (`quick.why_not`).

Everything else is done as it is written, and one line of the log says why. Examples decide nothing. While a run goes
on, `audit` does some of its updates a second time, as they are written, and compares.

Only the learner's role imports this package; no algorithm knows of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from mlxe_async.algorithms import REGISTRY
from mlxe_async.algorithms.interface import Clock, Metrics, Rows, learned
from mlxe_async.errors import CompileFailed
from mlxe_async.fast.fingerprints import difference, difference_of_acting
from mlxe_async.fast.quick import networks_of, why_not
from mlxe_async.rows import Array

__all__ = ["Twin", "Updates", "twin_of", "updates"]


class Twin(Protocol):
    """Does an algorithm's updates; everything that was learned stays in the algorithm."""

    learned: Any
    """The network that it works on."""

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
        acts_otherwise: what was changed in the way the algorithm acts, so that the twin does not know which
            log-probabilities are stored; "" if nothing.
    """

    def __init__(self, algorithm: Any, twin: Twin | None, reason: str, acts_otherwise: str = "") -> None:
        self.algorithm, self.twin, self.reason, self.acts_otherwise = algorithm, twin, reason, acts_otherwise

    def update(self, batch: Rows, clock: Clock) -> tuple[Metrics, Array | None]:
        """Learn from one batch; see `algorithms.interface.Algorithm.update`."""
        if self.twin is None:
            return learned(self.algorithm, batch, clock)
        if self.twin.learned is not self.algorithm.network:
            self.twin.attach()
        return self.twin.update(batch, clock)

    def compile(self) -> float:
        """Do updates by compiled code from now on; returns the seconds that took.

        Raises:
            CompileFailed: it cannot; all goes on as before.
        """
        compiling: Callable[[], float] | None = getattr(self.twin or self.algorithm, "compile", None)
        if compiling is None:
            why = f": {self.reason}" if self.reason else ""
            raise CompileFailed(f"{type(self.algorithm).__name__} has no update that can be compiled{why}")
        return compiling()


def updates(algorithm: Any, *, fast: bool = True) -> Updates:
    """The fastest way to do exactly what an algorithm's `update` says; not `fast`: as it is written."""
    twin, reason = _twin(algorithm) if fast else (None, "learner.fast = false")
    name = _name(type(algorithm)) if twin else None
    return Updates(algorithm, twin, reason, difference_of_acting(type(algorithm), name) if name else "")


def _name(kind: type) -> str | None:
    """The name that a class is built in under, if it is."""
    path = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, place in REGISTRY.items() if place == path), None)


def _twin(algorithm: Any) -> tuple[Twin | None, str]:
    """An algorithm's twin, or why it has none."""
    kind = type(algorithm)
    name = _name(kind)
    if name is None:
        return None, f"{kind.__name__} is not a built-in algorithm"
    if name not in _MAKERS:
        return None, f"there is no fast twin of {name}"
    if changed := difference(kind, name):
        return None, f"{changed} is not what the fast twin of {name} was derived from"
    methods = {member for klass in kind.__mro__ for member, value in vars(klass).items() if callable(value)}
    if own := sorted(vars(algorithm).keys() & methods):
        return None, f"its object has a {own[0]} of its own"
    for network in networks_of(algorithm):
        if reason := why_not(network):
            return None, reason
    if name != "mlxe":
        from mlxe_async.fast import continuous, dqn, ppo

        if reason := {"ppo": ppo, "dqn": dqn}.get(name, continuous).why_not(algorithm):
            return None, reason
    return twin_of(name, algorithm), ""


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
