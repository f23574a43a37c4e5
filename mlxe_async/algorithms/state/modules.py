"""An algorithm's torch modules: what of them is published, how it is loaded again, and what the learner keeps.

What `build` makes acts, and is published: each parameter and each buffer, of whatever dtype, in the order in which it
was made. Floats of 32 bits or fewer are one number each of the flat vector; all others are cut into pieces of 16 bits,
which numbers of 32 bits hold exactly. What `build_learner` makes only learns.

Nothing here imports torch: an algorithm without modules of its own costs no process more than numpy.
"""

from __future__ import annotations

import contextlib
import copy
import math
import operator
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mlxe_async.algorithms.state import drawing, snapshot
from mlxe_async.algorithms.state.held import tensors_of
from mlxe_async.networks.flat import Floats, Parameters, parameter_count
from mlxe_async.optimisers import FlatOptimiser, OfParameters
from mlxe_async.rows import Array

if TYPE_CHECKING:
    import torch

FACTS = frozenset(
    ("settings", "spaces", "learns", "device", "parameters", "batch_rows", "rows_per_update", "window", "priorities")
) | {
    *("extra_columns", "stop_columns", "carry", "derived_columns", "off_policy", "memory", "bootstraps", "words"),
    "defaults",
    "_modules",
    drawing.NAME,
}
"""Attributes of an algorithm that are told to the engine and not learned."""
NOTHING: Parameters = (("nothing", (1,)),)
"""The published weights of an algorithm without modules: one number, as the engine needs one."""


class _Looked(NamedTuple):
    """Tensors that were found among what `build` made, see `ModulesOf._roots`, and the shape and dtype of each."""

    roots: list[Any] | None
    tensors: list[Any]
    forms: list[Any]


_NO_CONTAINERS = (type(None), bool, int, float, str)


class ModulesOf:
    """The modules that an algorithm's `build` and `build_learner` made.

    Args:
        algorithm: whose; both are called here.
        seed: of fresh weights, and in the learner of torch's random numbers.
        threads: of torch, in the learner.
    """

    def __init__(self, algorithm: Any, seed: int, threads: int) -> None:
        self._algorithm, self._seed = algorithm, seed
        self._cached: tuple[Floats, list[Any]] | None = None
        self._generator: torch.Tensor | None = None
        self._same = snapshot.SameArrays()
        self._settled: list[Any] = []
        self._may_settle: list[Any] | None = None
        self._looked: _Looked | None = None
        before = set(vars(algorithm))
        knew_torch = "torch" in sys.modules
        with self._seeded():
            algorithm.build()
        if not knew_torch and "torch" in sys.modules:  # only now can its random numbers be seeded
            for name in set(vars(algorithm)) - before:
                delattr(algorithm, name)
            with self._seeded():
                algorithm.build()
        self._built = [name for name in vars(algorithm) if name not in before | FACTS]
        found = [(name, _slots(tensor)) for name, tensor in self._published()]
        self.parameters: Parameters = tuple(found) or NOTHING
        self._count = parameter_count(self.parameters)
        self._knows_arrays = self._all_know_arrays()
        if self._torch is not None:
            self._to_device()
        if algorithm.learns:
            if self._torch is not None:
                self._torch.set_num_threads(threads)
            self._begin()
            self.state()  # whose arrays are the same from now on
        else:
            modules = self._all_modules()
            for module in modules:
                module.eval()
            if modules and not self._takes_arrays:
                from mlxe_async.networks import sequential

                sequential.act_by_numpy(modules)

    @property
    def _torch(self) -> Any:
        return sys.modules.get("torch")

    def _published(self) -> list[tuple[str, Any]]:
        """Each parameter and buffer of what `build` made, as it is now."""
        known = vars(self._algorithm)
        return list(_tensors_in({name: known[name] for name in self._built if name in known}))

    def _tensors(self) -> list[Any]:
        """Return each parameter and buffer for the flat vector.

        Raises:
            ValueError: they are not those that `build` made.
        """
        if (known := self._same_tensors()) is not None:
            return known
        found = self._published()
        now = tuple((name, _slots(tensor)) for name, tensor in found) or NOTHING
        if now != self.parameters:
            odd = sorted({name for name, _ in {*now} ^ {*self.parameters}})
            raise ValueError(
                f"{type(self._algorithm).__name__}: expected the parameters and buffers that build made, "
                f"got others of {', '.join(odd)}"
            )
        tensors = [tensor for _, tensor in found]
        self._looked = _Looked(self._roots(), tensors, [(tensor.shape, tensor.dtype) for tensor in tensors])
        self._may_settle = None
        return tensors

    def _roots(self) -> list[Any] | None:
        """Return what `build` made, a module as the list of its tensors; None: a container holds some, too."""
        torch, known, found = self._torch, vars(self._algorithm), list[Any]()
        if torch is None:
            return None
        for name in self._built:
            one = known.get(name)
            if isinstance(one, torch.nn.Module):
                found.append(tensors_of(one))
            elif isinstance(one, (torch.Tensor, *_NO_CONTAINERS)):
                found.append(one)
            elif any(isinstance(value, torch.nn.Module | torch.Tensor) for _, value in _inside(one)):
                return None
            else:
                found.append(None)
        return found

    def _same_tensors(self) -> list[Any] | None:
        """The tensors that were found before, if nothing else is there now."""
        before, now = self._looked, None if self._looked is None else self._roots()
        if before is None or before.roots is None or now is None or not all(map(operator.is_, now, before.roots)):
            return None
        same_forms = [(tensor.shape, tensor.dtype) for tensor in before.tensors] == before.forms
        return before.tensors if same_forms else None

    @contextlib.contextmanager
    def _seeded(self) -> Iterator[None]:
        """Random numbers follow from the seed inside, and are outside what they were."""
        torch = self._torch
        with drawing.OwnDraws(self._seed, python=True).inside():
            if torch is None:
                yield
                return
            with _torch_seeded(torch, self._seed):
                yield

    def _begin(self) -> None:
        """Make what only learns."""
        algorithm = self._algorithm
        before = set(vars(algorithm))
        torch = self._torch
        with drawing.OwnDraws(self._seed + 1, python=True).inside():
            if torch is None:
                algorithm.build_learner()
            else:
                with _torch_seeded(torch, self._seed + 1):
                    algorithm.build_learner()
                    self._generator = torch.get_rng_state()
                self._to_device()
        self._of_learner = set(vars(algorithm)) - before

    def held(self) -> Iterator[Any]:
        """Everything that the algorithm's attributes hold."""
        own = {name: value for name, value in vars(self._algorithm).items() if name not in FACTS}
        return (value for _, value in _inside(own))

    def _all_modules(self) -> list[Any]:
        torch = self._torch
        return [] if torch is None else [value for value in self.held() if isinstance(value, torch.nn.Module)]

    def _to_device(self) -> None:
        torch = self._torch
        for value in self.held():
            if isinstance(value, torch.nn.Module):
                value.to(self._algorithm.device)
            elif isinstance(value, torch.nn.Parameter):
                value.data = value.data.to(self._algorithm.device)
        for value in self.held():
            if isinstance(value, OfParameters):
                value.attach()

    # -- acting --

    def seed(self, rng: np.random.Generator) -> None:
        """Have torch's random numbers follow from `rng`, which is drawn from."""
        if self._torch is not None and self.parameters != NOTHING:  # others may not even know torch
            # What acts is on the CPU; torch.manual_seed looks for other devices, which takes a millisecond.
            self._torch.default_generator.manual_seed(int(rng.integers(2**63)))

    def settle(self) -> None:
        """Take layers and hooks to stay as they are until other weights are put in: no call examines them.

        This is for a rollout of a built-in algorithm, whose own code attaches nothing to a module meanwhile.
        """
        is_built_in = type(self._algorithm).__module__.startswith("mlxe_async.algorithms.")
        if is_built_in and self._takes_arrays and self._torch is not None and not self._algorithm.learns:
            if self._same_tensors() is None or self._may_settle is None:
                every = (part for module in self._all_modules() for part in module.modules())
                self._may_settle = [part for part in every if hasattr(part, "settle")]
            self._settled = self._may_settle
            for module in self._settled:
                module.settle()

    def _unsettle(self) -> None:
        for module in self._settled:
            module.unsettle()
        self._settled = []

    def acting(self) -> contextlib.AbstractContextManager[None]:
        """Nothing is differentiated inside."""
        torch = self._torch
        if torch is None or self._takes_arrays:
            return _NOTHING
        found: contextlib.AbstractContextManager[None] = torch.inference_mode()
        return found

    def observed(self, obs: Array) -> Any:
        """Observations as the author's modules take them."""
        torch = self._torch
        if torch is None or self._takes_arrays:
            return obs
        return torch.from_numpy(obs if obs.flags.writeable else obs.copy()).to(self._algorithm.device)

    @property
    def _takes_arrays(self) -> bool:
        return self._knows_arrays and self._algorithm.device == "cpu"

    def _all_know_arrays(self) -> bool:
        """True if `policy` and all layers that act take arrays: an author may have put other layers in place."""
        if self._torch is None or not self._algorithm.takes_arrays:
            return bool(self._algorithm.takes_arrays)
        known = vars(self._algorithm)
        parts = [value for _, value in _inside({name: known[name] for name in self._built if name in known})]
        return all(getattr(one, "takes_arrays", False) for one in parts if isinstance(one, self._torch.nn.Module))

    def act_as_a_learner(self, device: str) -> None:
        """Have torch evaluate what acts on this device, as it does in the learner."""
        self._unsettle()
        self._algorithm.device = device
        if modules := self._all_modules():
            from mlxe_async.networks import sequential

            sequential.act_by_torch(modules)
        if self._torch is not None:
            self._to_device()

    def versions(self, flats: Floats) -> list[Any]:
        """Objects that act by several versions (V, P); they are the same as long as `flats` is the same object."""
        if self._cached is None or self._cached[0] is not flats:
            kept, self._cached = self._cached, None
            made = kept[1] if kept is not None and len(kept[1]) == len(flats) else self._copies(len(flats))
            for one, flat in zip(made, flats, strict=True):
                one.load(flat)
            self._cached = (flats, made)
        return self._cached[1]

    def _copies(self, count: int) -> list[Any]:
        one = self._algorithm
        return [type(one)(one.settings, one.spaces, seed=0, learns=False) for _ in range(count)]

    # -- the flat vector --

    def load(self, flat: Floats) -> None:
        """Have what acts be what a flat vector (P,) says."""
        if flat.shape != (self._count,):
            raise ValueError(
                f"{type(self._algorithm).__name__} loading: expected {self._count} numbers, got {flat.shape}"
            )
        start, torch = 0, self._torch
        if torch is None:
            return
        self._unsettle()
        flat, tensors = np.array(flat, np.float32), self._tensors()
        with torch.no_grad():
            for tensor, (_, shape) in zip(tensors, self.parameters, strict=bool(tensors)):
                stop = start + math.prod(shape)
                tensor.copy_(torch.from_numpy(_unpacked(flat[start:stop], tensor)))
                start = stop

    def value_in(self, flat: Floats, name: str) -> Array:
        """A parameter or buffer by its name, as a flat vector (P,) holds it."""
        start = 0
        for (known, shape), (_, tensor) in zip(self.parameters, self._published(), strict=True):
            stop = start + int(np.prod(shape))
            if known == name:
                return _unpacked(np.array(flat[start:stop], np.float32), tensor)
            start = stop
        raise KeyError(name)

    def packed(self) -> Floats:
        """The flat vector (P,)."""
        pieces = [_packed(tensor) for tensor in self._tensors()]
        return np.concatenate(pieces, dtype=np.float32) if pieces else np.zeros(self._count, np.float32)

    def as_one(self) -> Any:
        """Return what is published as one module, copied; a single module is itself."""
        torch = self._torch
        if torch is None or self.parameters == NOTHING:
            raise ValueError(f"{type(self._algorithm).__name__}: expected torch modules to hand out, it has none")
        roots = {name.partition(".")[0]: None for name, _ in self.parameters}
        found = {name: copy.deepcopy(vars(self._algorithm)[name]) for name in roots}
        modules = [value for _, value in _inside(found) if isinstance(value, torch.nn.Module)]
        if modules:
            from mlxe_async.networks import sequential

            sequential.act_by_torch(modules)
        if len(found) == 1 and isinstance(only := next(iter(found.values())), torch.nn.Module):
            return only
        whole = torch.nn.Module()
        for name, value in found.items():
            setattr(whole, name, _as_module(torch, value))
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
        if self._torch is not None and self._generator is not None:
            with _torch_seeded(self._torch, seed):
                self._generator = self._torch.get_rng_state()

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
                if name in vars(self._algorithm):
                    delattr(self._algorithm, name)
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
        torch = self._torch
        known = {name: value for name, value in vars(self._algorithm).items() if name not in FACTS}
        if not self._algorithm.learns and torch is not None:
            tensors = (torch.Tensor, torch.nn.Module)
            known = {name: value for name, value in known.items() if not isinstance(value, tensors)}
        if self._generator is not None:
            known["torch.generator"] = self._generator
        return known

    def state(self) -> dict[str, Array]:
        """All that is kept, as arrays by name, copied."""
        known, draws = self._same.taken(self._parts()), self._draws
        return known if draws is None else known | draws.state()

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state` returned."""
        self._unsettle()
        for name, value in self._same.put_back(self._parts(), state).items():
            setattr(self._algorithm, name, value)
        if (draws := self._draws) is not None:
            draws.restore(state)

    @property
    def _draws(self) -> drawing.OwnDraws | None:
        return drawing.draws_of(self._algorithm) if self._algorithm.learns else None

    @property
    def forgotten(self) -> list[str]:
        """Attributes that are in no state, such as `history (deque)`, or that a state had to leave out."""
        self._same.taken(self._parts())
        return [*self._same.unknown, *sorted(self._same.left_out)]


_NOTHING = contextlib.nullcontext()


@contextlib.contextmanager
def _torch_seeded(torch: Any, seed: int) -> Iterator[None]:
    """Torch's random numbers follow from a seed inside, and are outside what they were.

    torch.manual_seed looks for devices of all kinds, which takes a millisecond and, in each executor, a megabyte.
    """
    others = torch.get_rng_state()
    (torch if torch.cuda.is_initialized() else torch.default_generator).manual_seed(seed % 2**63)
    try:
        yield
    finally:
        torch.set_rng_state(others)


def _tensors_in(made: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each parameter and buffer of what was made, once, with its name."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    seen: set[int] = set()
    for name, value in _inside(made):
        if isinstance(value, torch.nn.Module):
            found = [(f"{name}.{key}", tensor) for key, tensor in tensors_of(value)]
        else:
            found = [(name, value)] if isinstance(value, torch.Tensor) else []
        for key, tensor in found:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield key, tensor


def _inside(value: Any, name: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Return what containers and plain objects hold, with the way to it, such as `nets.0`; each object once."""
    seen = set() if seen is None else seen
    torch = sys.modules.get("torch")
    whole = (torch.nn.Module, torch.Tensor, torch.optim.Optimizer, FlatOptimiser) if torch is not None else ()
    if isinstance(value, Mapping):
        parts = [*value.items()]
    elif isinstance(value, list | tuple):
        parts = [*enumerate(value)]
    elif isinstance(value, (*whole, *snapshot.STILL)) or not hasattr(value, "__dict__"):
        parts = None
    else:
        parts = [*vars(value).items()]
    if parts is None:
        yield name, value
    elif id(value) not in seen:
        seen.add(id(value))
        for key, one in parts:
            yield from _inside(one, f"{name}.{key}" if name else str(key), seen)


def _as_module(torch: Any, value: Any) -> Any:
    """Containers as torch has them, so that what they hold moves and is saved with the module."""
    parts = [*value.values()] if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else []
    if not parts or not all(isinstance(part, torch.nn.Module) for part in parts):
        return value
    return torch.nn.ModuleDict(value) if isinstance(value, Mapping) else torch.nn.ModuleList(parts)


def _is_small_float(tensor: Any) -> bool:
    return bool(tensor.is_floating_point() and tensor.element_size() <= 4)


def _slots(tensor: Any) -> tuple[int, ...]:
    """Shape of a tensor's place in the flat vector.

    Raises:
        ValueError: it has no shape yet.
    """
    if type(tensor).__name__ in ("UninitializedParameter", "UninitializedBuffer"):
        raise ValueError(
            "algorithm.name: build made a lazy module, such as LazyLinear, whose shape is not known before it is used; "
            "expected sizes, as nn.Linear(self.spaces.entries, 64)"
        )
    if _is_small_float(tensor):
        return tuple(tensor.shape)
    return (-(-tensor.numel() * tensor.element_size() // 2),)


def _packed(tensor: Any) -> Floats:
    if tensor.dtype is sys.modules["torch"].float32:
        plain: Floats = tensor.numpy(force=True).reshape(-1)
        return plain
    if _is_small_float(tensor):
        return np.asarray(tensor.float().numpy(force=True).reshape(-1), np.float32)
    array = tensor.numpy(force=True)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return np.full(_slots(tensor), np.nan, np.float32)  # such weights are not published
    raw = array.tobytes()
    return np.frombuffer(raw + b"\0" * (len(raw) % 2), np.uint16).astype(np.float32)


def _unpacked(numbers: Floats, tensor: Any) -> Array:
    if _is_small_float(tensor):
        return numbers.reshape(tuple(tensor.shape))
    dtype = tensor.numpy(force=True).dtype
    raw = numbers.astype(np.uint16).tobytes()[: tensor.numel() * tensor.element_size()]
    return np.frombuffer(raw, dtype).reshape(tuple(tensor.shape)).copy()
