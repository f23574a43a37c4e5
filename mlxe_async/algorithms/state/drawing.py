"""The learner's own random numbers of numpy's and Python's global generators, as an author's `update` draws them.

They follow from the seed, belong to what is kept, and are not shared: environments in the same process draw others.
Python's cost some time to exchange, so they are the learner's own only where an author's module knows `random`.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any
from zlib import crc32

import numpy as np

from mlxe_async.algorithms.state.namespaces import is_own, own_modules
from mlxe_async.maths import generators
from mlxe_async.rows import Array

NAME = "_draws"
"""Attribute of an algorithm that holds its `OwnDraws`."""
_NUMPYS: Any = np.random  # whose types lack what exchanges its generator
NUMPYS, PYTHONS = "numpy.generator", "python.generator"


class OwnDraws:
    """Two generators that stand for the global ones while the learner works.

    Args:
        seed: of both.
        python: whether Python's is one of them.
    """

    def __init__(self, seed: int, *, python: bool) -> None:
        self._numpys: Any = np.random.MT19937(seed)
        self._pythons = random.Random(seed).getstate() if python else None  # noqa: S311 - no secrets here

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Replace the global generators inside: all code draws from these."""
        numpys, pythons = _NUMPYS.get_bit_generator(), random.getstate() if self._pythons else None
        _NUMPYS.set_bit_generator(self._numpys)
        if self._pythons is not None:
            random.setstate(self._pythons)
        try:
            yield
        finally:
            self._numpys = _NUMPYS.get_bit_generator()
            _NUMPYS.set_bit_generator(numpys)
            if pythons is not None:
                self._pythons = random.getstate()
                random.setstate(pythons)

    def state(self) -> dict[str, Array]:
        """Both, as arrays by name."""
        state = self._numpys.state["state"]
        known: dict[str, Array] = {NUMPYS: np.array([*state["key"], state["pos"]], np.uint32)}
        if self._pythons is not None:
            _, words, gauss = self._pythons
            half = np.array([np.nan if gauss is None else gauss]).view(np.uint32)
            known[PYTHONS] = np.concatenate([np.array(words, np.uint32), half])
        return known

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from there."""
        words = state[NUMPYS]
        self._numpys.state = {"bit_generator": "MT19937", "state": {"key": words[:-1].copy(), "pos": int(words[-1])}}
        if self._pythons is not None:
            *numbers, _low, _high = state[PYTHONS].tolist()
            gauss = float(state[PYTHONS][-2:].copy().view(np.float64)[0])
            self._pythons = (3, tuple(numbers), None if np.isnan(gauss) else gauss)


def draws_of(algorithm: Any) -> OwnDraws | None:
    """Return the generators of an author's learner; None: a built-in one, which draws from no global generator."""
    parts = getattr(algorithm, "__dict__", None)
    if parts is None or not is_own(type(algorithm)) or not parts.get("learns", True):
        return None
    if NAME not in parts:
        rng = parts.get("rng")
        is_known = isinstance(rng, np.random.Generator) and isinstance(rng.bit_generator, np.random.PCG64)
        seed = crc32(generators.generator_words(rng).tobytes()) if is_known else 0
        parts[NAME] = OwnDraws(seed, python=_knows_random(type(algorithm)))
    found: OwnDraws = parts[NAME]
    return found


@contextlib.contextmanager
def learning(algorithm: Any) -> Iterator[None]:
    """Have global generators draw the learner's own numbers inside."""
    draws = draws_of(algorithm)
    with contextlib.nullcontext() if draws is None else draws.inside():
        yield


def seed_acting(algorithm: Any, rng: np.random.Generator) -> None:
    """Have the global generators follow from a rollout's, which is not drawn from, where an author's object acts."""
    if is_own(type(algorithm)):
        seed = crc32(repr(rng.bit_generator.state).encode())
        random.seed(seed)
        np.random.seed(seed)


def _knows_random(kind: type) -> bool:
    its = getattr(random.random, "__self__")  # noqa: B009 - types do not know that it is a bound method
    held = (value for module in own_modules(kind) for value in list(vars(module).values()))
    return any(value is random or getattr(value, "__self__", None) is its for value in held)


def reseed(algorithm: Any, seed: int) -> None:
    """Have all that an algorithm draws while it learns follow from another seed."""
    algorithm.rng = np.random.default_rng([seed, 1])
    algorithm._modules.reseed(seed)
    if draws_of(algorithm) is not None:
        vars(algorithm)[NAME] = OwnDraws(seed, python=_knows_random(type(algorithm)))
