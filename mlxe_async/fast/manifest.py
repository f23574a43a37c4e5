"""Whether the code that an update can run is the code that its fast twin was derived from.

A twin computes what a built-in algorithm's files say, without running them. So it may stand for them only while they
say the same. Nothing is followed from call to call here. Every module that the algorithm's module imports, directly or
through others, is compared whole, as it is in this process:

* The file is the one that twin and file were last proven equal for: `manifest.json` has a digest of each definition's
  syntax tree, without docstrings, comments and positions.
* The live module is what the file makes: the file is compiled and run once more in a fresh namespace, and the two are
  compared name by name: code, defaults, closures, constants, members of classes, what names are bound to. A function
  that was patched, wrapped, added or removed is a difference, reached or not.
* The functions of torch, numpy and Python that these files mention are those libraries' own.

The first difference is told with its place. `Watch` compares again while a run goes on.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import threading
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mlxe_async.fast.libraries import Libraries, unusual
from mlxe_async.fast.namespaces import Comparison

PROJECT = "mlxe_async"
PACKAGE = Path(__file__).parents[1]
KEPT = Path(__file__).with_name("manifest.json")
TEXT = "text"
"""The entry that holds the digest of a file's bytes: where it fits, no syntax tree is asked for."""
Entries = dict[str, str]


def kept() -> dict[str, Any]:
    """What was taken down: under `reaches` the modules of each algorithm, under `modules` the digests of each."""
    found: dict[str, Any] = json.loads(KEPT.read_text())
    return found


class Watch:
    """Compares what an algorithm's updates can run with what its twin was derived from.

    Args:
        kind: the algorithm's class.
        name: the name that it is built in under.
    """

    def __init__(self, kind: type, name: str) -> None:
        self._kind, manifest = kind, kept()
        self._modules: dict[str, Entries] = {
            module: manifest["modules"][module] for module in manifest["reaches"].get(name, [])
        }
        self._seen: dict[str, Comparison] = {}
        self._mentioned: set[str] = set()
        self._libraries: Libraries | None = None
        self._thread: threading.Thread | None = None
        self._first: str = ""

    def begin(self) -> None:
        """Compare for the first time in a thread, while there is nothing else to do."""
        if self._thread is None and not self._seen:
            self._thread = threading.Thread(target=self._look_once, name="manifest", daemon=True)
            self._thread.start()

    def _look_once(self) -> None:
        # Python 3.11 may raise SystemError if two threads ask for syntax trees: these are left to the first thread.
        if all(_has_text(name, entries) for name, entries in self._modules.items()):
            self._first = self._difference()

    def difference(self) -> str:
        """The place of the first difference, in words; "" if there is none. Cheap from the second call on."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if self._first:
                return self._first
        return self._difference()

    def _difference(self) -> str:
        if not self._modules:
            return f"{self._kind.__name__} has no entry in the manifest"
        here = sys.modules.get(self._kind.__module__)
        if vars(here).get(self._kind.__name__) is not self._kind:
            return f"{self._kind.__module__}:{self._kind.__name__}"
        for name, entries in self._modules.items():
            if (module := sys.modules.get(name)) is None:
                continue  # what is not imported does not run; it is compared when it is
            if (seen := self._seen.get(name)) is not None:
                if changed := seen.changed():
                    return changed
            elif changed := self._compared(name, module, entries):
                return changed
        if self._libraries is None:
            self._libraries = Libraries(self._mentioned)
        return self._libraries.replaced() or unusual()

    def _compared(self, name: str, module: types.ModuleType, entries: Entries) -> str:
        path = file_of(name)
        try:
            source = path.read_bytes()
            if changed := _text_differs(source, entries):
                return f"{name}:{changed}"
        except (OSError, SyntaxError) as error:
            return f"{name}, whose file cannot be read ({type(error).__name__}),"
        before = _EQUAL.get(name)
        if before is not None and before.module is module and before.source == source:
            if changed := before.comparison.changed():
                return changed
        else:
            code = compile(source, str(path), "exec", dont_inherit=True)
            fresh = types.ModuleType(name)
            fresh.__dict__.update({key: vars(module)[key] for key in _GIVEN if key in vars(module)})
            exec(code, fresh.__dict__)  # noqa: S102 - the package's own file, whose digest has just been compared
            if (comparison := Comparison(module, fresh)).difference:
                return comparison.difference
            before = _EQUAL[name] = _Equal(module, source, comparison, _names(code))
        self._seen[name] = before.comparison
        self._mentioned |= before.names
        self._libraries = None
        return ""


class _Equal(NamedTuple):
    """A module that was equal to what its file makes, and the names that it mentions."""

    module: types.ModuleType
    source: bytes
    comparison: Comparison
    names: set[str]


_EQUAL: dict[str, _Equal] = {}
"What was compared once in this process: from then on it is asked whether it has changed."


def _names(code: types.CodeType) -> set[str]:
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return {*code.co_names}.union(*map(_names, inner))


_GIVEN = ("__file__", "__package__", "__path__", "__spec__", "__loader__", "__cached__", "__builtins__")


def file_of(module: str) -> Path:
    """Return where the package has a module's file."""
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _has_text(module: str, entries: Entries) -> bool:
    """Return whether a module's file has not changed at all, so that no syntax tree is asked for."""
    try:
        return _digest(file_of(module).read_bytes()) == entries.get(TEXT)
    except OSError:
        return False


def _digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()[:16]


def _text_differs(source: bytes, entries: Entries) -> str:
    """The first definition of a file that is not the one in the manifest; "" if none is."""
    if _digest(source) == entries.get(TEXT):
        return ""
    found, expected = definitions(source), {key: value for key, value in entries.items() if key != TEXT}
    changed = sorted(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
    return changed[0] if changed else ""


# -- what the manifest holds, also for those who take it down --


def entries_of(module: str) -> Entries:
    """The digests of a module's file as it is now."""
    source = file_of(module).read_bytes()
    return {TEXT: _digest(source), **definitions(source)}


def definitions(source: bytes) -> Entries:
    """A digest for each definition of a file; all that defines nothing shares one.

    It is the same under each version of Python, and does not change with comments, docstrings and layout.
    """
    parts: dict[str, list[str]] = {}
    for statement in (one for one in ast.parse(source).body if not _is_text(one)):
        parts.setdefault(_defined(statement), []).append("".join(_spelled(statement)))
    return {name: _digest("\n".join(texts).encode()) for name, texts in parts.items()}


def _defined(statement: ast.stmt) -> str:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return statement.name
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    names = [node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)]
    return ",".join(names) or "imports and the like"


def _spelled(node: Any) -> Iterator[str]:
    """A syntax tree in words, without what says nothing: positions, strings that are statements, empty fields."""
    if isinstance(node, list):
        for one in node:
            if not _is_text(one):
                yield from _spelled(one)
    elif isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for field in node._fields:
            if (value := getattr(node, field, None)) not in (None, []) or isinstance(node, ast.Constant):
                yield f" {field}="
                yield from _spelled(value)
        yield ")"
    else:
        yield f"{type(node).__name__} {node!r}"


def _is_text(node: Any) -> bool:
    """Return whether a statement is a string, such as a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def reached(module: str) -> list[str]:
    """A module and all modules of the project that it imports, directly or through others, also inside functions."""
    found, open_ = {module}, [module]
    while open_:
        for name in _imported(ast.parse(file_of(open_.pop()).read_bytes())):
            if name.startswith(f"{PROJECT}.") and name not in found and file_of(name).exists():
                found.add(name)
                open_.append(name)
    return sorted(found)


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def taken_down(paths: Mapping[str, str]) -> dict[str, Any]:
    """The manifest of algorithms as their files are now: name -> `"module:Class"`."""
    reaches = {name: reached(path.partition(":")[0]) for name, path in sorted(paths.items())}
    modules: Iterable[str] = sorted({module for found in reaches.values() for module in found})
    return {"reaches": reaches, "modules": {module: entries_of(module) for module in modules}}
