"""Exact resumption: what an algorithm's next update depends on, as arrays by name, and back.

An algorithm that names its parts is done with it: `kept` are attributes that hold a learned network or a tensor,
`counted` those that hold a number. The optimiser, the generator and the moments of what was seen are known by theirs.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from mlxe_async.algorithms.interface import Algorithm, Rows
from mlxe_async.maths import generators, normaliser
from mlxe_async.networks import Floats

OPTIMISER = "optimiser."


class Resumes(Algorithm):
    """`state` and `restore` by names."""

    kept: ClassVar[tuple[str, ...]] = ()
    counted: ClassVar[tuple[str, ...]] = ()
    published: ClassVar[tuple[str, ...]] = ("_learned", "_average")
    """Those of both that `set_weights` makes out of what was published."""

    def begin_to_learn(self, seed: int, threads: int, device: str) -> None:
        """Make what every learning object has."""
        import torch

        torch.set_num_threads(threads)
        self._torch, self._device = torch, device
        self._rng = np.random.default_rng([seed, 1])

    def state(self) -> Rows:
        """All that the next update depends on; of an object that does not learn, only its counts."""
        parts: dict[str, Any] = vars(self)
        known = {name: np.array(parts[name]) for name in self.counted if name in parts}
        if "_optimiser" not in parts:
            return known
        known |= {name: self._tensor_of(name).numpy(force=True).copy() for name in self._different()}
        known |= {OPTIMISER + name: array for name, array in parts["_optimiser"].state().items()}
        known["generator"] = generators.generator_words(parts["_rng"])
        return known | normaliser.state(parts.get("_moments"))

    def restore(self, state: Rows) -> None:
        """Go on from there; the first update is the one that would have followed."""
        parts: dict[str, Any] = vars(self)
        for name in self.counted:
            if name in parts:
                setattr(self, name, state[name].item())
        if "_optimiser" not in parts:
            return
        for name in self._different():
            tensor = self._tensor_of(name)
            tensor.copy_(parts["_torch"].as_tensor(state[name]))
        generators.set_generator(parts["_rng"], state["generator"])
        parts["_optimiser"].restore({name.removeprefix(OPTIMISER): array for name, array in state.items()})
        if "_moments" in parts:
            self._moments = normaliser.restored(state)

    def restore_around(self: Any, flat: Floats, state: Rows) -> None:
        """Go on from these weights (P,) and, for all that is not in them, from an older state."""
        self.set_weights(flat)
        now = self.state()
        later = {name: now[name] for name in now if name in self.published or name.startswith("moments.")}
        self.restore({**state, **later})

    def _different(self) -> list[str]:
        """The kept parts, each once: a target network may be the learned one itself."""
        names: dict[int, str] = {}
        for name in self.kept:
            names.setdefault(id(getattr(self, name)), name)
        return list(names.values())

    def _tensor_of(self, name: str) -> Any:
        part = getattr(self, name)
        return getattr(part, "flat", part) if not hasattr(part, "copy_") else part
