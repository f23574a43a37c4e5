"""Which code a process has of its algorithm: a digest for each module that the algorithm's class can reach.

Every process of a run imports the algorithm by itself. What a task's module patches in it is patched in those processes
alone that import the task; the learner is none of them. So each process tells its digests with its hand-shake, and the
supervisor compares them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from mlxe_async.errors import SettingsError

PARTS = ("algorithms", "maths", "networks", "optimisers", "gpu", "rows", "parts")
INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
LONGEST_S = 10.0  # that a fork may say nothing
PLAIN = (bool, int, float, str, bytes, tuple, type(None))


def code_of(algorithm: type) -> dict[str, Any]:
    """Digests by module, and the places of functions that were put there by another module, as plain JSON."""
    modules, digests, elsewhere = [*_modules_of(algorithm)], dict[str, str](), list[str]()
    for module in modules:
        found = hashlib.blake2b(digest_size=8)
        for place, told, file in _told(module):
            found.update(f"{place} {told}\n".encode())
            if file not in ("", "<string>", module.__file__) and not _is_installed(file):
                elsewhere.append(f"{module.__name__}:{place} (from {file})")
        digests[module.__name__] = found.hexdigest()
    return {"modules": digests, "elsewhere": elsewhere[:8]}


def code_told_by_a_fork(algorithm: type) -> dict[str, Any]:
    """The same as `code_of`, found out by a fork of this process.

    Looking at a function changes its reference count, so that the page which it lies on becomes the process's own. Of
    all functions these are 5 MiB, which an executor would keep to its end.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of threads: the fork takes no lock, and runs no other code
        child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(json.dumps(code_of(algorithm)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    try:
        told = _all_of(reading)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    try:
        found: dict[str, Any] = json.loads(told)
    except ValueError:  # it was killed, or stood still
        return code_of(algorithm)
    return found


def _all_of(pipe: int) -> bytes:
    """What comes through a pipe until its other end is closed, or nothing more comes."""
    found = bytearray()
    while select.select([pipe], [], [], LONGEST_S)[0] and (piece := os.read(pipe, 1 << 16)):
        found += piece
    return bytes(found)


def expect_the_same(name: str, mine: Mapping[str, Any], learner: Mapping[str, Any]) -> None:
    """Compare what two processes told of their code.

    Args:
        name: of the process that is compared with the learner's.
        mine: what it told.
        learner: what the learner's process told.

    Raises:
        SettingsError: a module that both have differs.
    """
    ours, theirs = mine["modules"], learner["modules"]
    differing = sorted(module for module in ours.keys() & theirs.keys() if ours[module] != theirs[module])
    if not differing:
        return
    places = sorted({*mine["elsewhere"]} ^ {*learner["elsewhere"]}) or differing
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    raise SettingsError(
        [
            f"algorithm.name: {places[0]}{more} is not the same in {name} as in the learner, expected the same code in "
            "all processes; what a task's module patches the learner does not import: patch it in the module that "
            "algorithm.name names, or write an algorithm of your own"
        ]
    )


def _modules_of(algorithm: type) -> Iterator[types.ModuleType]:
    """The modules of the project and of the user that a class's modules name, directly or through others."""
    names = [klass.__module__ for klass in algorithm.__mro__]
    met: set[str] = set()
    while names:
        name = names.pop()
        module = sys.modules.get(name)
        if name in met or module is None or not _is_ours(module):
            continue
        met.add(name)
        yield module
        for value in vars(module).values():
            if isinstance(value, types.ModuleType):
                names.append(value.__name__)
            elif isinstance(value, type | types.FunctionType):
                names.append(value.__module__)


def _is_installed(file: str) -> bool:
    """Return whether a file is an installed package's, also one that a virtual environment sees from outside."""
    return file.startswith(INSTALLED) or "/site-packages/" in file or "/dist-packages/" in file


def _is_ours(module: types.ModuleType) -> bool:
    package, _, rest = module.__name__.partition(".")
    if package == "mlxe_async":
        return rest.partition(".")[0] in PARTS
    file = getattr(module, "__file__", None)
    return file is not None and not _is_installed(file)


def _told(module: types.ModuleType) -> Iterator[tuple[str, str, str]]:
    """Place, what there is, and the file that a function is from: of all that can run."""
    of_the_project = module.__name__.startswith("mlxe_async.")
    for name, value in sorted(vars(module).items()):
        if isinstance(value, types.ModuleType) or name.startswith("__"):
            continue
        if isinstance(value, type):
            yield name, f"{value.__module__}:{value.__qualname__}", ""
            if value.__module__ == module.__name__:
                yield from _members(value, name, of_the_project)
        elif isinstance(value, types.FunctionType):
            is_imported = value.__module__ != module.__name__ and _is_imported(value)
            yield name, _function(value), "" if is_imported else value.__code__.co_filename
        elif of_the_project and name.isupper() and isinstance(value, PLAIN):
            yield name, repr(value), ""


def _members(klass: type, place: str, constants: bool) -> Iterator[tuple[str, str, str]]:
    yield place, " ".join(f"{base.__module__}:{base.__qualname__}" for base in klass.__bases__), ""
    for name, value in sorted(vars(klass).items()):
        functions = [*_functions(value)]
        for function in functions:
            yield f"{place}.{name}", _function(function), function.__code__.co_filename
        if not functions and constants and not name.startswith("_") and isinstance(value, PLAIN):
            yield f"{place}.{name}", repr(value), ""


def _functions(value: Any) -> Iterator[types.FunctionType]:
    parts = (value.fget, value.fset) if isinstance(value, property) else (getattr(value, "__func__", value),)
    yield from (part for part in parts if isinstance(part, types.FunctionType))


def _function(function: types.FunctionType) -> str:
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    plain = [repr(one) for one in defaults if isinstance(one, PLAIN)]
    return f"{_code(function.__code__)} {' '.join(plain)}"


def _is_imported(function: types.FunctionType) -> bool:
    """Return whether a function is, under its name, that of the module that it says it is from."""
    home = sys.modules.get(function.__module__)
    return home is not None and vars(home).get(function.__name__) is function


def _code(code: types.CodeType) -> str:
    """Return what a function does, in words that are the same in each process."""
    found = hashlib.blake2b(code.co_code, digest_size=8)
    for one in code.co_consts:
        inner: Any = sorted(map(repr, one)) if isinstance(one, frozenset) else one
        found.update(f"{_code(one) if isinstance(one, types.CodeType) else inner!r}\n".encode())
    found.update(" ".join((*code.co_names, *code.co_freevars)).encode())
    return found.hexdigest()
