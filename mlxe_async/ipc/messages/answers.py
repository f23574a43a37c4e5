"""What an answer must look like. A process that answers anything else has lost step, like one that sends garbage.

Kinds are written as data: a type that JSON knows; `None`; a tuple of kinds of which one must fit; a list of one kind
that all its entries must be of; a dict of kinds by name, besides which there may be others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from mlxe_async.errors import ProtocolError

Kind: TypeAlias = type | tuple["Kind", ...] | list["Kind"] | dict[str, "Kind"] | None

LARGEST = 2**64


class Form:
    """A kind of object that is looked at again and again: by one function without a call or a loop for its entries.

    Such a look comes seldom enough that its code is not in the processor's caches, and costs by its length.

    Args:
        kind: what an answer must be.
        what: how it is called.
    """

    def __init__(self, kind: dict[str, Kind], what: str = "answer") -> None:
        self.kind, self._what = kind, what
        known: dict[str, Any] = {"MOST": LARGEST, "MISSING": object(), "all_fit": _all_fit, "fits": _fits}
        lines = ["def look(answer):", *_tests("answer", kind, known), " return True"]
        exec("\n".join(lines), known)  # noqa: S102 - written below, of the package's own kinds alone
        self.fits: Callable[[Any], bool] = known["look"]

    def require(self, answer: Any) -> None:
        """Refuse what is not of this kind; see `require`.

        Raises:
            ProtocolError: so it is.
        """
        if not self.fits(answer):
            _explain(answer, self.kind, self._what)


def _tests(value: str, kind: Kind, known: dict[str, Any]) -> Iterator[str]:
    """Write the lines that return False where the variable `value` is of another kind."""
    whole, expected = f"type({value}) is int and -MOST < {value} < MOST", f"kind_of_{value}"
    known[expected] = kind[0] if isinstance(kind, list) else kind
    if kind is int:
        test = whole
    elif kind == (int, None):
        test = f"{value} is None or {whole}"
    elif kind is float:
        test = f"type({value}) is float or {whole}"
    elif kind == (float, None):
        test = f"{value} is None or type({value}) is float or {whole}"
    elif isinstance(kind, type):
        test = f"type({value}) is {expected}"
    elif isinstance(kind, list):
        test = f"type({value}) is list and (not {value} or all_fit({value}, {expected}))"
    else:
        test = f"type({value}) is dict" if isinstance(kind, dict) else f"fits({value}, {expected})"
    yield f" if not ({test}): return False"
    for name, part_kind in kind.items() if isinstance(kind, dict) else ():
        entry = f"{value}_{name}"
        yield f" {entry} = {value}.get({name!r}, MISSING)"
        yield from _tests(entry, part_kind, known)


def require(answer: Any, kind: Kind, what: str = "answer") -> None:
    """Refuse what is not of this kind. Whole numbers count as numbers, truth values do not.

    Args:
        answer: plain JSON that a child sent.
        kind: what it must be.
        what: how it is called.

    Raises:
        ProtocolError: it is something else, or holds a whole number of 2^64 or more; the text says where.
    """
    if not _fits(answer, kind):
        _explain(answer, kind, what)


def _fits(answer: Any, kind: Kind) -> bool:
    """Return whether it is of this kind."""
    if kind is int or kind is float:
        found = type(answer)
        return (found is int and -LARGEST < answer < LARGEST) or (found is float and kind is float)
    if kind is None:
        return answer is None
    if isinstance(kind, type):
        return isinstance(answer, kind)
    if isinstance(kind, dict):
        return isinstance(answer, dict) and all(
            name in answer and _fits(answer[name], part) for name, part in kind.items()
        )
    if isinstance(kind, tuple):
        return any(_fits(answer, part) for part in kind)
    return isinstance(answer, list) and _all_fit(answer, kind[0])


def _explain(answer: Any, kind: Kind, what: str) -> None:
    """Raise what tells where it is of another kind."""
    match kind:
        case dict():
            if not isinstance(answer, dict):
                raise _not(what, "an object", answer)
            for name, part in kind.items():
                if name not in answer:
                    raise ProtocolError(f"{what}: {name} is missing")
                _explain(answer[name], part, f"{what}: {name}")
        case [one]:
            if not isinstance(answer, list):
                raise _not(what, "a list", answer)
            for place, entry in enumerate(answer):
                _explain(entry, one, f"{what}[{place}]")
        case tuple():
            if not any(_fits(answer, part) for part in kind):
                raise _not(what, " or ".join(map(_name, kind)), answer)
        case _:
            if not _fits(answer, kind):
                raise _not(what, _name(kind), answer)


def _all_fit(answer: list[Any], kind: Kind) -> bool:
    """Return whether all entries are of a kind; they may be many, and are of one type, nearly always."""
    if isinstance(kind, type) and set(map(type, answer)) <= {kind}:
        return kind is not int or not answer or (min(answer) > -LARGEST and max(answer) < LARGEST)
    return all(_fits(entry, kind) for entry in answer)


def _name(kind: Kind) -> str:
    return kind.__name__ if isinstance(kind, type) else "null" if kind is None else "an object of another form"


def _not(what: str, expected: str, answer: Any) -> ProtocolError:
    return ProtocolError(f"{what}: expected {expected}, got {str(answer)[:100]!r}")
