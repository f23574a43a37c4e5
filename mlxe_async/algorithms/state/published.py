"""A check that executors act as the learner's object would: by what is published, and by nothing that is not.

An executor's object is made by `build` alone and given the published weights. Whatever else `policy` reads it has from
`build`, however long the learner has changed its own. So both objects act now and then on the same observations, with
the same weights, generators and carry; where they differ, what they hold says which attribute it comes from.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel

from mlxe_async.algorithms.interface import Acting, Clock
from mlxe_async.algorithms.state import inside
from mlxe_async.algorithms.state.modules import ModulesOf
from mlxe_async.algorithms.state.namespaces import Namespaces
from mlxe_async.algorithms.state.untouched import seed_globals, untouched
from mlxe_async.networks import Floats
from mlxe_async.optimisers import FlatOptimiser
from mlxe_async.rows import Array

ROWS = 32
DRAWS = 4
EVERY = 1024
NEAR, NEAR_ON_GPU = 1e-5, 1e-3  # relative to 1 + the number
ROUNDED = 1  # row of all draws may differ: rounding may decide between two actions
MOST_NAMED = 5
_TOLD = ("_modules", "_draws", "_same", "learns", "device", "spaces", "parameters")
ADVICE = (
    "only modules, parameters and buffers that build makes as attributes are published; "
    "make it a buffer of a module (register_buffer), or let acting tell it"
)


class Unlike(Exception):
    """An executor's object does not act as the learner's; the message names what is not published."""


def is_due(publications: int) -> bool:
    """True if this publication, counted from 1, is checked: the first, second, fourth, eighth ... and each 1024th."""
    return publications & (publications - 1) == 0 or publications % EVERY == 0


class Published:
    """Compares the learner's object with one that was given the published weights.

    Args:
        algorithm: the learner's, before its first update.
        make: makes an object as executors do.
        namespaces: what its author's modules hold before the first update.
    """

    def __init__(self, algorithm: Any, make: Callable[[], Any], namespaces: Namespaces) -> None:
        self._algorithm, self._make, self._namespaces = algorithm, make, namespaces
        self._device = str(getattr(algorithm, "device", "cpu"))

    def check(self, flat: Floats, obs: Array, acting: Acting) -> None:
        """See that both act alike; what is learned, and all generators, stay what they are.

        Args:
            flat: the weights (P,) that are published.
            obs: observations (B, *O).
            acting: who acts, with what is carried (B, ...).

        Raises:
            Unlike: they do not.
        """
        learner: Any = self._algorithm
        with untouched({"": learner}, _is_kept) as held:
            with self._namespaces.as_at_first():
                fresh = self._made(flat)
            self._as_one_that_acts(learner, fresh, flat, held)
            odd = 0
            for draw in range(DRAWS):
                mine = _acted(learner, obs, acting, draw)
                with self._namespaces.as_at_first():
                    theirs, error = _tried(fresh, obs, acting, draw)
                if theirs is None:
                    raise Unlike(self._sentence(fresh, obs, acting, f"would raise {error}"))
                odd += _different(mine, theirs, NEAR if self._device == "cpu" else NEAR_ON_GPU)
                if odd > ROUNDED:
                    raise Unlike(self._sentence(fresh, obs, acting, "would act otherwise than the learner's"))

    def _made(self, flat: Floats) -> Any:
        """Return what an executor makes, on the learner's device and evaluated by torch as the learner's is."""
        fresh = self._make()
        modules = getattr(fresh, "_modules", None)
        if isinstance(modules, ModulesOf):
            modules.act_as_a_learner(self._device)
        fresh.load(flat)
        return fresh

    def _as_one_that_acts(self, learner: Any, fresh: Any, flat: Floats, held: list[Any]) -> None:
        """Have the learner's object act by the weights, as an executor's does, but for what is not published."""
        own = vars(learner)
        own["learns"] = False
        learner.load(flat)
        for name, generator in vars(fresh).items():
            _same_generator(own.get(name), generator)
        if (torch := sys.modules.get("torch")) is not None:
            for module in (one for one in held if isinstance(one, torch.nn.Module)):
                module.training = False

    def _sentence(self, fresh: Any, obs: Array, acting: Acting, what: str) -> str:
        name = type(self._algorithm).__name__
        named = self._culprits(fresh, obs, acting)
        found = ", ".join(named[:MOST_NAMED]) or "something that none of its attributes tells"
        return f"an executor's {name} {what}, by what is not published: {found}; {ADVICE}"

    def _culprits(self, fresh: Any, obs: Array, acting: Acting) -> list[str]:
        """Return what the two hold differently: first of all what is read while acting."""
        mine, theirs = (inside.digests(_parts(one), _is_engines) for one in (self._algorithm, fresh))
        odd, read = inside.odd_ways(mine, theirs), set[str]()
        with self._namespaces.as_at_first(), _reading(fresh, read):
            _tried(fresh, obs, acting, 0)
        return [way for way in odd if way.partition(".")[0] in read] + self._namespaces.changed() or odd


def sampled(batch: Mapping[str, Array], algorithm: Any, clock: Clock) -> tuple[Array, Acting]:
    """Some observations (B, *O) of what is learned from, and what was carried there."""
    carried, obs = tuple(getattr(algorithm, "carry", ())), batch["obs"]
    lead = obs.ndim - len(algorithm.spaces.observation_shape)
    columns = {column.name: batch[column.name] for column in carried if column.name in batch}
    if any(column.per_rollout for column in carried):
        obs, valid = obs[0], batch["valid"][0]
        columns = {c.name: columns[c.name] if c.per_rollout else columns[c.name][0] for c in carried}
        lead = 1
    else:
        valid = batch["valid"] if "valid" in batch else np.ones(obs.shape[:lead], bool)
    where = np.flatnonzero(np.asarray(valid).astype(bool))
    where = where[np.linspace(0, len(where) - 1, min(ROWS, len(where))).astype(np.int64)]

    def chosen(column: Array) -> Array:
        return np.array(column.reshape(-1, *column.shape[lead:])[where])

    acting = Acting(clock.env_steps, clock.episodes, clock.version).start(carried, len(where))
    acting.began = np.zeros(len(where), bool)
    acting.carry |= {name: chosen(column) for name, column in columns.items()}
    return chosen(obs), acting


def _acted(one: Any, obs: Array, acting: Acting, draw: int) -> dict[str, Array]:
    """All that an executor and an evaluator ask of an object, on these observations."""
    rng, acting = np.random.default_rng(draw), copy.deepcopy(acting)
    seed_globals(draw)
    greedy = one.greedy(obs, copy.deepcopy(acting)) if acting.carry else one.greedy(obs)
    if callable(begin := getattr(one, "begin_rollout", None)):
        begin(rng)
    found = {"greedy": greedy, **one.act(obs, rng, acting)}
    found |= {f"carry.{name}": column for name, column in acting.carry.items()}
    if stops := getattr(one, "stop_columns", ()):
        said = one.at_stop(obs)
        found |= {column.name: said[column.name] for column in stops}
    return {name: np.array(column) for name, column in found.items()}


def _tried(one: Any, obs: Array, acting: Acting, draw: int) -> tuple[dict[str, Array] | None, str]:
    """Return the answers of `_acted`, or the error it raised."""
    try:
        return _acted(one, obs, acting, draw), ""
    except Exception as error:  # noqa: BLE001 - an author's code lacks what only the learner has; it is told
        return None, f"{type(error).__name__} ({' '.join(str(error).split())})"


def _different(mine: Mapping[str, Array], theirs: Mapping[str, Array], near: float) -> int:
    """Count the rows in which two answers differ by more than rounding."""
    rows = len(mine["action"])
    odd = np.zeros(rows, bool)
    for name in {**mine, **theirs}:
        one, other = mine.get(name), theirs.get(name)
        if one is None or other is None or one.shape != other.shape:
            return rows + ROUNDED
        if one.dtype.kind in "fc":
            apart = ~np.isclose(other, one, rtol=near, atol=near, equal_nan=True)
        else:
            apart = one != other
        odd |= apart.reshape(rows, -1).any(axis=1)
    return int(odd.sum())


def _parts(one: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(one).items() if name not in _TOLD}


def _is_kept(value: Any) -> bool:
    """Return whether acting does not change it: what is frozen, too."""
    frozen = getattr(getattr(type(value), "__dataclass_params__", None), "frozen", False)
    return bool(frozen or isinstance(value, BaseModel) or _is_engines(value))


def _is_engines(value: Any) -> bool:
    """Return whether acting has nothing to do with it: optimisers, and what the engine itself keeps of modules."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.optim.Optimizer):
        return True
    return isinstance(value, ModulesOf | FlatOptimiser)


def _same_generator(mine: Any, theirs: Any) -> None:
    """Have two attributes that are generators draw the same: their seeds are each object's own."""
    torch = sys.modules.get("torch")
    if type(mine) is not type(theirs):
        return
    if isinstance(theirs, np.random.Generator):
        with contextlib.suppress(TypeError, ValueError):  # of another kind each
            mine.bit_generator.state = theirs.bit_generator.state
    elif isinstance(theirs, random.Random):
        mine.setstate(theirs.getstate())
    elif torch is not None and isinstance(theirs, torch.Generator) and mine.device == theirs.device:
        mine.set_state(theirs.get_state())


@contextlib.contextmanager
def _reading(one: Any, read: set[str]) -> Iterator[None]:
    """Note which attributes of an object are read."""
    kind = type(one)
    inherited: Any = kind.__getattribute__

    def noting(self: Any, name: str) -> Any:
        read.add(name)
        return inherited(self, name)

    one.__class__ = type(kind.__name__, (kind,), {"__getattribute__": noting, "__module__": kind.__module__})
    try:
        yield
    finally:
        one.__class__ = kind
