"""Exact resumption: what an algorithm's next update depends on, as arrays by name, and back.

Networks, learned tensors and optimisers are found among the attributes and kept under their names; beside them the
generator and the moments of what was seen. `counted` are attributes that hold a number.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from mlxe_async.algorithms.interface import Algorithm, Rows
from mlxe_async.algorithms.state import drawing, snapshot, unkept
from mlxe_async.algorithms.state.namespaces import is_own
from mlxe_async.maths import generators, normaliser
from mlxe_async.networks import Floats

NETWORKS = ("network", "average", "target")
"""Those that are one object are kept under the first of these names."""
PUBLISHED = ("network", "average", "epsilon")
"""What `set_weights` makes out of what was published."""


class Resumes(Algorithm):
    """`state` and `restore` by names."""

    counted: ClassVar[tuple[str, ...]] = ()

    def state(self) -> Rows:
        """All that the next update depends on; of an object that does not learn, only its counts."""
        parts: dict[str, Any] = vars(self)
        known = {name: np.array(parts[name]) for name in self.counted if name in parts}
        if "optimiser" not in parts:
            return known
        known |= {name: parts[name].flat.numpy(force=True).copy() for name in self._different()}
        known |= {name: parts[name].numpy(force=True).copy() for name in self._free()}
        for optimiser in self._optimisers():
            known |= {f"{optimiser}.{name}": array for name, array in parts[optimiser].state().items()}
        known["generator"] = generators.generator_words(parts["rng"])
        return known | normaliser.state(parts.get("_moments")) | self._own_state()

    def restore(self, state: Rows) -> None:
        """Go on from there; the first update is the one that would have followed."""
        parts: dict[str, Any] = vars(self)
        for name in self.counted:
            if name in parts:
                setattr(self, name, state[name].item())
        if "optimiser" not in parts:
            return
        for name in self._different():
            parts[name].put(state[name])
        for name in self._free():
            parts[name].data.copy_(parts[name].new_tensor(state[name]))
        generators.set_generator(parts["rng"], state["generator"])
        for optimiser in self._optimisers():
            own = f"{optimiser}."
            parts[optimiser].restore({n.removeprefix(own): array for n, array in state.items() if n.startswith(own)})
        if "_moments" in parts:
            self._moments = normaliser.restored(state)
        self._restore_own(state)

    def restore_around(self: Any, flat: Floats, state: Rows) -> None:
        """Go on from these weights (P,) and, for all that is not in them, from an older state."""
        self.set_weights(flat)
        now = self.state()
        later = {name: now[name] for name in now if name in PUBLISHED or name.startswith("moments.")}
        self.restore({**state, **later})

    def _own_state(self) -> Rows:
        """What an author added: attributes that no class of this package has, and global random numbers."""
        draws = drawing.draws_of(self)
        if draws is None:
            return {}
        known = vars(self).setdefault(unkept.SAME, snapshot.SameArrays()).taken(self.own_parts())
        return {f"own.{name}": array for name, array in (known | draws.state()).items()}

    def _restore_own(self, state: Rows) -> None:
        draws = drawing.draws_of(self)
        if draws is None:
            return
        own = {name.removeprefix("own."): array for name, array in state.items() if name.startswith("own.")}
        same: snapshot.SameArrays = vars(self).setdefault(unkept.SAME, snapshot.SameArrays())
        for name, value in same.put_back(self.own_parts(), own).items():
            setattr(self, name, value)
        draws.restore(own)

    def own_parts(self) -> dict[str, Any]:
        """What an author added, without the networks, tensors and optimisers that are kept under their names."""
        parts = vars(self)
        told = {id(parts[name]) for name in (*self._different(), *self._free(), *self._optimisers())}
        return {name: one for name, one in unkept.kept_parts(self).items() if id(one) not in told}

    def own_forgotten(self) -> list[str]:
        """What an author added and no state can hold, such as `history (deque)`."""
        if not is_own(type(self)):
            return []
        same: snapshot.SameArrays = vars(self).setdefault(unkept.SAME, snapshot.SameArrays())
        same.taken(self.own_parts())
        return [*snapshot.unknown(self.own_parts()), *sorted(same.left_out)]

    def _different(self) -> list[str]:
        """The networks, each once: a target may be the learned one itself."""
        parts = vars(self)
        known = [name for name in NETWORKS if name in parts]
        others = sorted(name for name, one in parts.items() if hasattr(one, "follow") and hasattr(one, "flat"))
        names: dict[int, str] = {}
        for name in (*known, *others):
            names.setdefault(id(parts[name]), name)
        return list(names.values())

    def _free(self) -> list[str]:
        """Tensors that are learned and belong to no network."""
        return sorted(name for name, one in vars(self).items() if getattr(one, "is_leaf", False) and one.requires_grad)

    def _optimisers(self) -> list[str]:
        return sorted(name for name, one in vars(self).items() if hasattr(one, "zero_grad") and hasattr(one, "restore"))
