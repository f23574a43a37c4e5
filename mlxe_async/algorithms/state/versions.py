"""Several versions of an algorithm at once, as their tests ask for them.

Preparing versions costs more than a step of all of them. So they are kept for the groups that were asked last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlxe_async.networks.flat import Floats
from mlxe_async.rows import Array

GROUPS = 2  # of versions: tests that begin and tests that go on take turns


@dataclass
class _Group:
    """Objects that act by the versions of one array.

    Args:
        objects: one for each version, and perhaps more.
        flats: the versions (V, P).
        are_one: the first object acts by all versions.
    """

    objects: list[Any] = field(default_factory=list)
    flats: Floats | None = None
    are_one: bool = False


class Versions:
    """Asks several versions of an algorithm at once.

    Args:
        algorithm: whose versions; it is not changed.
    """

    def __init__(self, algorithm: Any) -> None:
        self._algorithm = algorithm
        self._groups: list[_Group] = []

    def greedy(self, flats: Floats, obs: Array) -> Array:
        """The best actions (V, B, ...) of versions (V, P), each on its own observations (V, B, *O)."""
        group = self.group(flats)
        if group.are_one:
            return np.asarray(group.objects[0].greedy(obs))
        objects = group.objects[: len(flats)]
        return np.stack([one.greedy(seen) for one, seen in zip(objects, obs, strict=True)])

    def group(self, flats: Floats) -> _Group:
        """Objects that act by versions (V, P): the same ones for the same array, while it is among the last groups."""
        if not self._groups or self._groups[-1].flats is not flats:
            found = next((one for one in self._groups if one.flats is flats), None)
            if found is None:
                found = self._groups[0] if len(self._groups) == GROUPS else _Group()
                self._prepare(found, flats)
            self._groups = [*(one for one in self._groups if one is not found), found]
        return self._groups[-1]

    def _prepare(self, group: _Group, flats: Floats) -> None:
        one, group.flats, group.are_one = self._algorithm, None, False
        missing = len(flats) - len(group.objects)
        group.objects += [type(one)(one.settings, one.spaces, seed=0, learns=False) for _ in range(missing)]
        objects = group.objects[: len(flats)]
        settled = [of._modules.settled_by(flat) for of, flat in zip(objects, flats, strict=True)]
        if any(layers for layers, _ in settled):
            from mlxe_async.networks.several import settled_as_one

            group.are_one = settled_as_one([layers for layers, _ in settled], settled[0][1])
        group.flats = flats
