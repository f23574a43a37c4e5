"""Mutants of a Python source file: copies that differ from it in one place each.

Changed are numbers, signs, operators, comparisons, conditions, bounds, reductions, `detach`, and arguments that are
handed on. Left alone are docstrings, annotations, raised errors, assertions (`strict` of zip too), imports, and all of
pydantic's fields but their defaults.
Text is replaced in place, so a mutant reads like its original.

    python tests/mutation/mutants.py mlxe_async/maths/vtrace.py
"""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "mlxe_async"
Defaults = Mapping[str, frozenset[str]]
"""Name of a function -> names of its arguments that may be left out, and positions as digits."""


@dataclass(frozen=True)
class Mutant:
    """One changed copy of a file.

    Args:
        file: where the original lies.
        line: number of the first changed line.
        scope: qualified name of the outermost function, or else of the class, around the change; empty outside of all.
        kind: what sort of change it is.
        before: the changed lines as they were, stripped and joined.
        after: the same lines as they are.
        source: the whole new text.
    """

    file: str
    line: int
    scope: str
    kind: str
    before: str
    after: str
    source: str


_BINARY = {
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("/",)),
    ast.Div: ("/", ("*",)),
    ast.FloorDiv: ("//", ("*",)),
    ast.Mod: ("%", ("//",)),
    ast.Pow: ("**", ("*",)),
    ast.LShift: ("<<", (">>",)),
    ast.RShift: (">>", ("<<",)),
    ast.BitOr: ("|", ("&",)),
    ast.BitAnd: ("&", ("|",)),
}
_COMPARISONS = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">=")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
_NAMES = {
    "minimum": "maximum",
    "min": "max",
    "argmin": "argmax",
    "fmin": "fmax",
    "floor": "ceil",
    "sum": "mean",
    "any": "all",
    "zeros": "ones",
    "zeros_like": "ones_like",
    "cumsum": "cumprod",
    "log1p": "log",
    "expm1": "exp",
}
_NAMES |= {new: old for old, new in _NAMES.items()}
_DROPPED = ("detach", "abs", "relu", "square")
_BOUNDED = ("clamp", "clip", "clamp_")
_SYMMETRIC = ("min", "max", "minimum", "maximum")
_CALLED_BARE = {"min", "max", "any", "all", "sum"}


def mutants(path: Path, *, name: str | None = None, defaults: Defaults | None = None) -> Iterator[Mutant]:
    """All mutants of a file, in the order of its lines.

    Args:
        path: the file.
        name: what the mutants call it.
        defaults: which arguments may be left out, as from `defaults_in`; others count as needed where positional.
    """
    return of_source(path.read_text(), name or str(path), defaults or {})


def of_source(source: str, name: str, defaults: Defaults | None = None) -> Iterator[Mutant]:
    """All mutants of a text."""
    text = _Text(source)
    found = _Changes(text, defaults or {})
    found.visit(ast.parse(source))
    seen = set()
    for start, end, new, kind, scope in sorted(found.changes):
        changed = text.replaced(start, end, new)
        if changed in seen or changed == source:
            continue
        seen.add(changed)
        line, before, after = text.lines(start, end, new)
        yield Mutant(name, line, scope, kind, before, after, changed)


@functools.cache
def defaults_in(folder: Path) -> Defaults:
    """Which arguments of the functions and methods below a folder have a default, by the function's name."""
    known: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                args = [one.arg for one in node.args.posonlyargs + node.args.args]
                first = int(bool(args) and args[0] in ("self", "cls"))
                names = known.setdefault(node.name, set())
                for k in range(len(args) - len(node.args.defaults), len(args)):
                    names |= {args[k], str(k - first)}
                pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                names |= {arg.arg for arg, default in pairs if default is not None}
    return {function: frozenset(names) for function, names in known.items()}


class _Text:
    """A source as bytes, for `ast` counts columns in bytes."""

    def __init__(self, source: str) -> None:
        self.bytes = source.encode()
        self._starts = [0]
        for line in self.bytes.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def start(self, node: ast.AST) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.AST) -> int:
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.AST) -> str:
        return self.bytes[self.start(node) : self.end(node)].decode()

    def replaced(self, start: int, end: int, new: str) -> str:
        return (self.bytes[:start] + new.encode() + self.bytes[end:]).decode()

    def lines(self, start: int, end: int, new: str) -> tuple[int, str, str]:
        """Number of the first line of a change, and the changed lines before and after, each on one line."""
        first = self.bytes.rfind(b"\n", 0, start) + 1
        last = self.bytes.find(b"\n", end)
        last = len(self.bytes) if last < 0 else last
        before = self.bytes[first:last].decode()
        after = (self.bytes[first:start] + new.encode() + self.bytes[end:last]).decode()
        number = self.bytes.count(b"\n", 0, first) + 1
        return number, " ".join(before.split()), " ".join(after.split())


class _Changes(ast.NodeVisitor):
    """Collects changes (start, end, new text, kind, scope) of a tree."""

    def __init__(self, text: _Text, defaults: Defaults) -> None:
        self.changes: list[tuple[int, int, str, str, str]] = []
        self._text, self._defaults = text, defaults
        self._scope: list[str] = []
        self._in_function = False
        self._inner: set[ast.AST] = set()
        "Operands that belong to a longer chain of products or sums."

    # -- what is left alone --

    def visit_Import(self, node: ast.Import) -> None:
        pass

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        pass

    def visit_Raise(self, node: ast.Raise) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arguments(self, node: ast.arguments) -> None:
        for default in (*node.defaults, *node.kw_defaults):
            if default is not None:
                self.visit(default)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outermost, self._in_function = not self._in_function, True
        self._scope += [node.name] * outermost
        for part in (node.args, *node.body):
            self.visit(part)
        if outermost:
            self._scope.pop()
            self._in_function = False

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._scope.pop()

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._condition(node.test)
        self.generic_visit(node)

    # -- what is changed --

    def visit_While(self, node: ast.While) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value, text = node.value, self._text.of(node)
        if isinstance(value, bool):
            self._replace(node, str(not value), "truth")
        elif isinstance(value, int):
            self._replace(node, str(value + 1), "number")
            self._replace(node, "-1" if value == 0 else "0", "number")
        elif isinstance(value, float):
            self._replace(node, f"(2 * {text})" if value else "1.0", "number")
            self._replace(node, "0.0" if value else "-1.0", "number")

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        start = self._text.start(node)
        length = len("not ") if isinstance(node.op, ast.Not) else 1
        self._edit(start, start + length, "", "sign")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _BINARY:
            old, others = _BINARY[type(node.op)]
            self._operator(node.left, node.right, old, others, "operator")
        chain = (ast.Mult, ast.Div, ast.Add, ast.Sub)
        if isinstance(node.op, chain):
            if node not in self._inner and not isinstance(node.left, ast.UnaryOp | ast.List | ast.Tuple):
                self._edit(start := self._text.start(node), start, "-", "sign")
            if isinstance(node.left, ast.BinOp) and isinstance(node.left.op, chain):
                self._inner.add(node.left)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in _BINARY:
            old, others = _BINARY[type(node.op)]
            self._operator(node.target, node.value, f"{old}=", tuple(f"{other}=" for other in others), "operator")
        self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            old, others = _COMPARISONS[type(op)]
            self._operator(left, right, old, others, "comparison")
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in itertools.pairwise(node.values):
            self._operator(left, right, old, (new,), "boolean")
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "strict":  # of zip: an assertion
            self.visit(node.value)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in _NAMES:
            end = self._text.end(node)
            self._edit(end - len(node.attr.encode()), end, _NAMES[node.attr], "function")
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in ("Field", "field", "key", "shared"):  # descriptions and bounds are no behaviour of a loss
            for argument in node.args[: called != "shared"]:
                self.visit(argument)
            return
        if isinstance(node.func, ast.Name) and called in _CALLED_BARE:
            new = {"sum": "max"}.get(called, _NAMES[called])
            self._replace(node.func, new, "function")
        if isinstance(node.func, ast.Attribute) and called in _DROPPED:
            self._drop_call(node)
        if called in _BOUNDED:
            self._bounds(node)
        else:
            self._arguments(node, called)
        self.generic_visit(node)

    def _drop_call(self, node: ast.Call) -> None:
        func = node.func
        if not node.args:  # x.detach() -> x
            self._edit(self._dot(func), self._text.end(node), "", "dropped call")
        elif len(node.args) == 1:  # np.abs(x) -> (x)
            self._edit(self._text.start(node), self._text.end(func), "", "dropped call")

    def _bounds(self, node: ast.Call) -> None:
        bounds = [k for k in node.keywords if k.arg in ("min", "max")]
        for keyword in bounds:
            start = self._text.start(keyword)
            self._edit(start, start + 3, {"min": "max", "max": "min"}[keyword.arg], "bound")
            self._replace(keyword.value, "None", "bound") if len(bounds) > 1 else None
        first = 1 if isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "np" else 0
        limits = node.args[first:]
        if len(limits) > 1:
            for limit in limits:
                self._replace(limit, "None", "bound")
        if not bounds and len(limits) <= 1:
            return
        if isinstance(node.func, ast.Attribute) and not first:
            self._edit(self._dot(node.func), self._text.end(node), "", "bound")

    def _arguments(self, node: ast.Call, called: str) -> None:
        """Neighbours exchanged, and what has a default not handed on."""
        for left, right in itertools.pairwise(node.args):
            if called not in _SYMMETRIC and _is_name(left) and _is_name(right):
                one, other = self._text.of(left), self._text.of(right)
                between = self._text.bytes[self._text.end(left) : self._text.start(right)].decode()
                self._edit(self._text.start(left), self._text.end(right), other + between + one, "exchange")
        known = self._defaults.get(called)
        last = len(node.args) - 1
        if known and last >= 0 and str(last) in known and not isinstance(node.args[last], ast.Starred):
            start = self._text.end(node.args[last - 1]) if last else self._text.start(node.args[0])
            self._edit(start, self._text.end(node.args[last]), "", "not handed on")
        for keyword in node.keywords:
            if keyword.arg in (None, "strict") or (known is not None and keyword.arg not in known):
                continue
            others = [*node.args, *node.keywords]
            ahead = [one for one in others if self._text.end(one) <= self._text.start(keyword)]
            behind = [one for one in others if self._text.start(one) >= self._text.end(keyword)]
            start = max(map(self._text.end, ahead)) if ahead else self._text.start(keyword)
            end = self._text.end(keyword) if ahead or not behind else min(map(self._text.start, behind))
            self._edit(start, end, "", "not handed on")

    def _dot(self, attribute: ast.Attribute) -> int:
        """Where the dot of an attribute stands, behind the brackets around what it belongs to."""
        return self._text.bytes.rindex(b".", self._text.end(attribute.value), self._text.end(attribute))

    def _condition(self, test: ast.expr) -> None:
        if isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.NamedExpr):
            self._replace(test, f"not ({self._text.of(test)})", "condition")

    def _operator(self, left: ast.AST, right: ast.AST, old: str, others: tuple[str, ...], kind: str) -> None:
        start, end = self._text.end(left), self._text.start(right)
        pattern = rb"\s+".join(re.escape(word.encode()) for word in old.split())
        found = re.search(pattern, self._text.bytes[start:end])
        if found is None:
            raise ValueError(f"mutants: no {old!r} was found between line {left.lineno} and line {right.lineno}")
        for new in others:
            self._edit(start + found.start(), start + found.end(), new, kind)

    def _replace(self, node: ast.AST, new: str, kind: str) -> None:
        self._edit(self._text.start(node), self._text.end(node), new, kind)

    def _edit(self, start: int, end: int, new: str, kind: str) -> None:
        self.changes.append((start, end, new, kind, ".".join(self._scope)))


def _is_name(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def main() -> None:
    """Print the mutants of files."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("files", nargs="+", type=Path, help="Python sources")
    known, total, kinds = defaults_in(PACKAGE), 0, dict[str, int]()
    for path in parser.parse_args().files:
        for one in mutants(path, defaults=known):
            print(f"{one.file}:{one.line} {one.kind}\n    - {one.before}\n    + {one.after}")
            total, kinds[one.kind] = total + 1, kinds.get(one.kind, 0) + 1
    print(f"\n{'kind':16}{'mutants':>8}")
    for kind, count in sorted(kinds.items()):
        print(f"{kind:16}{count:8}")
    print(f"{'all':16}{total:8}")


if __name__ == "__main__":
    main()
