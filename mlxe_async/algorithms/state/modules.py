"""An algorithm's torch modules: what of them is published, how it is loaded again, and what the learner keeps.

What `build` makes acts, and is published: each parameter and each buffer, of whatever dtype, in the order in which it
was made, in one vector (see `flat_form`). What `build_learner` makes only learns.

Nothing here imports torch: an algorithm without modules of its own costs no process more than numpy.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mlxe_async import turns
from mlxe_async.algorithms.state import drawing, snapshot
from mlxe_async.algorithms.state.flat_form import FlatForm, slots, unpacked
from mlxe_async.algorithms.state.held import tensors_of
from mlxe_async.algorithms.state.versions import Versions
from mlxe_async.networks.flat import Floats, Parameters
from mlxe_async.optimisers import FlatOptimiser, OfParameters
from mlxe_async.rows import Array

FACTS = {
    *("settings", "spaces", "learns", "device", "parameters", "batch_rows", "rows_per_update", "window", "priorities"),
    *("extra_columns", "stop_columns", "carry", "derived_columns", "off_policy", "memory", "bootstraps", "words"),
    *("defaults", "_modules", drawing.NAME),
}
"""Attributes of an algorithm that are told to the engine and not learned."""
NOTHING: Parameters = (("nothing", (1,)),)
"""The published weights of an algorithm without modules: one number, as the engine needs one."""
_NOTHING = contextlib.nullcontext()


class ModulesOf:
    """The modules that an algorithm's `build` and `build_learner` made.

    Args:
        algorithm: whose; both are called here.
        seed: of fresh weights, and in the learner of torch's random numbers.
        threads: of torch, in the learner.
    """

    def __init__(self, algorithm: Any, seed: int, threads: int) -> None:
        self._algorithm, self._seed = algorithm, seed
        self.versions = Versions(algorithm)
        self._generator: Any = None
        self._same = snapshot.SameArrays()
        self._settled, self._may_settle = list[Any](), list[Any]()
        self._held, self._found = list[Any](), list[tuple[str, Any]]()
        self._forms: FlatForm | None = None
        made = self._made(algorithm.build, seed)
        if self._generator is None and self._torch is not None:  # only now can its random numbers be seeded
            for name in made:
                delattr(algorithm, name)
            made = self._made(algorithm.build, seed)
        self._built = [name for name in made if name not in FACTS]
        self._generator = None
        self.parameters: Parameters = tuple((name, slots(one)) for name, one in self._published()) or NOTHING
        ends = itertools.accumulate((math.prod(shape) for _, shape in self.parameters), initial=0)
        self._places = [slice(*ends) for ends in itertools.pairwise(ends)]
        modules = self._modules()
        self._knows_arrays = algorithm.takes_arrays and all(getattr(one, "takes_arrays", False) for one in modules)
        self._to_device()
        if algorithm.learns:
            if self._torch is not None:
                self._torch.set_num_threads(threads)
            self._begin()
            self.state()  # whose arrays are the same from now on
            return
        for module in modules:
            module.eval()
        if type(algorithm).__module__.startswith("mlxe_async.algorithms."):
            every = (part for module in modules for part in module.modules())
            self._may_settle = [part for part in every if hasattr(type(part), "settle")]
        if modules and not self._takes_arrays:
            from mlxe_async.networks import sequential

            sequential.act_by_numpy(modules)

    @property
    def _torch(self) -> Any:
        return sys.modules.get("torch")

    def _made(self, make: Callable[[], None], seed: int) -> list[str]:
        """Have something made by random numbers that follow from a seed. Returns names of the new attributes."""
        before = set(vars(self._algorithm))
        self._generator = _generator_of(seed)
        with drawing.OwnDraws(seed, python=True).inside(), self.learning():
            make()
        return [name for name in vars(self._algorithm) if name not in before]

    def _begin(self) -> None:
        """Make what only learns."""
        self._of_learner = self._made(self._algorithm.build_learner, self._seed + 1)
        self._to_device()

    # -- what it holds --

    def _own(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self._algorithm).items() if name not in FACTS}

    def held(self) -> Iterator[Any]:
        """Everything that the algorithm's attributes hold."""
        return (value for _, value in _inside(self._own()))

    def _modules(self) -> list[Any]:
        torch = self._torch
        return [] if torch is None else [value for value in self.held() if isinstance(value, torch.nn.Module)]

    def _published(self) -> list[tuple[str, Any]]:
        """Each parameter and buffer of what `build` made, once, as it is now, with its name."""
        torch, known = self._torch, vars(self._algorithm)
        if torch is None:
            return []
        made = {name: known[name] for name in self._built if type(known.get(name)) not in snapshot.NUMBERS}
        parts = [(name, one) for name, one in _inside(made) if isinstance(one, (torch.nn.Module, torch.Tensor))]
        held = [tensors_of(one) if isinstance(one, torch.nn.Module) else one for _, one in parts]
        if len(held) != len(self._held) or not all(map(operator.is_, held, self._held)):  # nearly never
            found: dict[int, tuple[str, Any]] = {}
            for (name, _), tensors in zip(parts, held, strict=True):
                for key, tensor in tensors if isinstance(tensors, list) else [("", tensors)]:
                    found.setdefault(id(tensor), (f"{name}.{key}".rstrip("."), tensor))
            self._held, self._found, self._forms = held, [*found.values()], None
        return self._found

    def _flat_form(self) -> FlatForm:
        """Return what makes a flat vector of each parameter and buffer, and puts one into them.

        Raises:
            ValueError: they are not those that `build` made.
        """
        found = self._published()
        if self._forms is None or not self._forms.hold():  # nearly never
            now = tuple((name, slots(tensor)) for name, tensor in found) or NOTHING
            if now != self.parameters:
                kind, odd = type(self._algorithm).__name__, {name for name, _ in {*now} ^ {*self.parameters}}
                told = f"{kind}: expected the parameters and buffers that build made, got others of "
                raise ValueError(told + ", ".join(sorted(odd)))
            self._forms = FlatForm([tensor for _, tensor in found], self._places)
        return self._forms

    def _to_device(self) -> None:
        torch, device = self._torch, self._algorithm.device
        for value in sorted(self.held(), key=lambda value: isinstance(value, OfParameters)):  # they follow the others
            if isinstance(value, OfParameters):
                value.attach()
            elif torch is not None and isinstance(value, torch.nn.Module):
                value.to(device)
            elif torch is not None and isinstance(value, torch.nn.Parameter):
                value.data = value.data.to(device)

    # -- acting --

    def seed(self, rng: np.random.Generator) -> None:
        """Have torch's random numbers follow from `rng`, which is drawn from."""
        if self._torch is not None and self.parameters != NOTHING:  # others may not even know torch
            with turns.torchs_generator():
                self._torch.default_generator.manual_seed(int(rng.integers(2**63)))  # what acts is on the CPU

    def settle(self) -> None:
        """Take layers and hooks to stay as they are until other weights are put in: no call examines them.

        This is for a rollout of a built-in algorithm, whose own code attaches nothing to a module meanwhile.
        """
        self._settled = self._may_settle if self._takes_arrays else []
        for module in self._settled:
            module.settle()

    def _unsettle(self) -> None:
        for module in self._settled:
            module.unsettle()
        self._settled = []

    def acting(self) -> contextlib.AbstractContextManager[Any]:
        """Nothing is differentiated inside."""
        return _NOTHING if self._torch is None or self._takes_arrays else self._torch.inference_mode()

    def observed(self, obs: Array) -> Any:
        """Observations as the author's modules take them."""
        torch = self._torch
        if torch is None or self._takes_arrays:
            return obs
        return torch.from_numpy(obs if obs.flags.writeable else obs.copy()).to(self._algorithm.device)

    @property
    def _takes_arrays(self) -> bool:
        """True if `policy` and all layers that act take arrays: an author may have put other layers in place."""
        return self._knows_arrays and self._algorithm.device == "cpu"

    def act_as_a_learner(self, device: str) -> None:
        """Have torch evaluate what acts on this device, as it does in the learner."""
        self._unsettle()
        self._algorithm.device = device
        _act_by_torch(self._modules())
        self._to_device()

    def settled_by(self, flat: Floats) -> tuple[list[Any], list[Any]]:
        """Settle for what a flat vector says. Returns the layers that are settled, and all tensors that act."""
        self.load(flat)
        self.settle()
        return self._settled, [tensor for _, tensor in self._published()]

    # -- the flat vector --

    def load(self, flat: Floats) -> None:
        """Have what acts be what a flat vector (P,) says."""
        count, torch = self._places[-1].stop, self._torch
        if flat.shape != (count,):
            raise ValueError(f"{type(self._algorithm).__name__} loading: expected {count} numbers, got {flat.shape}")
        self._unsettle()
        with _NOTHING if torch is None else torch.no_grad():
            self._flat_form().load(np.require(flat, np.float32, ["C", "W"]))  # torch takes nothing that is read-only

    def value_in(self, flat: Floats, name: str) -> Array:
        """A parameter or buffer by its name, as a flat vector (P,) holds it."""
        found = dict(self._published())
        place = self._places[[*found].index(name)]
        return unpacked(np.array(flat[place], np.float32), found[name])

    def packed(self) -> Floats:
        """The flat vector (P,)."""
        return self._flat_form().packed()

    def as_one(self) -> Any:
        """Return what is published as one module, copied; a single module is itself."""
        torch = self._torch
        if torch is None or self.parameters == NOTHING:
            raise ValueError(f"{type(self._algorithm).__name__}: expected torch modules to hand out, it has none")
        roots = {name.partition(".")[0]: None for name, _ in self.parameters}
        found = {name: copy.deepcopy(vars(self._algorithm)[name]) for name in roots}
        _act_by_torch([value for _, value in _inside(found) if isinstance(value, torch.nn.Module)])
        if len(found) == 1 and isinstance(only := next(iter(found.values())), torch.nn.Module):
            return only
        whole = torch.nn.Module()
        for name, value in found.items():  # containers as torch has them, so that what they hold goes with the module
            parts = [*value.values()] if isinstance(value, Mapping) else value
            if isinstance(parts, list | tuple) and all(isinstance(part, torch.nn.Module) for part in parts):
                value = (torch.nn.ModuleDict if isinstance(value, Mapping) else torch.nn.ModuleList)(value)
            setattr(whole, name, value)
        return whole

    # -- learning --

    @contextlib.contextmanager
    def learning(self) -> Iterator[None]:
        """Keep torch's random numbers the learner's own inside, also if other code of this process draws some."""
        torch = self._torch
        if torch is None or self._generator is None:
            yield
            return
        others = torch.get_rng_state()
        torch.set_rng_state(self._generator)
        try:
            yield
        finally:
            self._generator = torch.get_rng_state()
            torch.set_rng_state(others)

    def reseed(self, seed: int) -> None:
        """Have torch's random numbers in updates to come follow from this seed."""
        if self._generator is not None:
            self._generator = _generator_of(seed)

    def begin_again(self, flat: Floats) -> None:
        """Learn on from a flat vector: optimisers forget; if anything is not finite, all that only learns is new."""
        torch = self._torch
        self.load(flat)
        self._algorithm.reloaded()
        for value in self.held():
            if torch is not None and isinstance(value, torch.optim.Optimizer):
                value.state.clear()
            elif isinstance(value, FlatOptimiser):
                value.forget()
        if not all(np.isfinite(a).all() for a in self.state().values() if a.dtype.kind == "f"):
            for name in self._of_learner:
                vars(self._algorithm).pop(name, None)
            self._begin()

    def tensors(self, rows: Mapping[str, Array]) -> dict[str, Any]:
        """Columns as tensors, each of the type that its kind has, on the learner's device."""
        import torch

        from mlxe_async.networks.tensors import moved, tensor_type

        typed = {name: (column, tensor_type(name, column)) for name, column in rows.items()}
        return moved(typed, torch.device(self._algorithm.device))

    # -- state --

    def _parts(self) -> dict[str, Any]:
        """Return what is kept: all in the learner; elsewhere what is not loaded, such as counts."""
        torch, known = self._torch, self._own()
        if not self._algorithm.learns and torch is not None:
            tensors = (torch.Tensor, torch.nn.Module)
            known = {name: value for name, value in known.items() if not isinstance(value, tensors)}
        return known if self._generator is None else known | {"torch.generator": self._generator}

    def state(self, *, copied: bool = True) -> dict[str, Array]:
        """All that is kept, as arrays by name; see `interface.Algorithm.state`."""
        draws = drawing.draws_of(self._algorithm)
        return self._same.taken(self._parts(), copied=copied) | ({} if draws is None else draws.state())

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state` returned."""
        self._unsettle()
        vars(self._algorithm).update(self._same.put_back(self._parts(), state))
        if (draws := drawing.draws_of(self._algorithm)) is not None:
            draws.restore(state)

    @property
    def forgotten(self) -> list[str]:
        """Attributes that are in no state, such as `history (deque)`, or that a state had to leave out."""
        self._same.taken(self._parts())
        return [*self._same.unknown, *sorted(self._same.left_out)]


def _generator_of(seed: int) -> Any:
    """Return the state of torch's generator after a seed; None: torch is not known.

    torch.manual_seed looks for devices of all kinds, which takes a millisecond and, in each executor, a megabyte.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed % 2**63)
    return torch.Generator().manual_seed(seed % 2**63).get_state()


def _act_by_torch(modules: list[Any]) -> None:
    if modules:
        from mlxe_async.networks import sequential

        sequential.act_by_torch(modules)


def _inside(value: Any, name: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Return what containers and plain objects hold, with the way to it, such as `nets.0`; each object once."""
    seen = set() if seen is None else seen
    parts: Any = None
    kind: Any = type(value)
    torch = sys.modules.get("torch")
    if _is_whole(torch, kind):
        pass
    elif isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple) or hasattr(value, "__dict__"):
        parts = enumerate(value) if isinstance(value, list | tuple) else vars(value).items()
    if parts is None:
        yield name, value
    elif id(value) not in seen:
        seen.add(id(value))
        for key, one in [*parts]:
            way = f"{name}.{key}" if name else str(key)
            kind = type(one)
            if _is_whole(torch, kind):
                yield way, one
            else:
                yield from _inside(one, way, seen)


@functools.cache
def _is_whole(torch: Any, kind: type) -> bool:
    """Return whether values of a type are not entered."""
    whole = () if torch is None else (torch.nn.Module, torch.Tensor, torch.optim.Optimizer, FlatOptimiser)
    return issubclass(kind, (*whole, *snapshot.NUMBERS, *snapshot.STILL))
