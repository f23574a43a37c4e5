"""What an answer must look like. A process that answers anything else has lost step, like one that sends garbage.

Kinds are written as data: a type that JSON knows; `None`; a tuple of kinds of which one must fit; a list of one kind
that all its entries must be of; a dict of kinds by name, besides which there may be others.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from mlxe_async.errors import ProtocolError

Kind: TypeAlias = type | tuple["Kind", ...] | list["Kind"] | dict[str, "Kind"] | None

LARGEST = 2**64


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
    """Return whether it is of this kind: a look without texts, because it is taken at each answer."""
    if kind is int or kind is float:
        found = type(answer)
        return (found is int and -LARGEST < answer < LARGEST) or (found is float and kind is float)
    if kind is None:
        return answer is None
    if type(kind) is list and type(answer) is list and _all_fit(answer, kind[0]):
        return True
    if isinstance(kind, dict):
        if not isinstance(answer, dict):
            return False
        for name, part in kind.items():
            if name not in answer:
                return False
            value = answer[name]
            if part is int or part is float:  # nearly all are: no call for each
                found = type(value)
                if (found is not int or not -LARGEST < value < LARGEST) and (found is not float or part is int):
                    return False
            elif not value and type(part) is type(value) is list:  # of few rollouts there is anything to list
                continue
            elif not _fits(value, part):
                return False
        return True
    if isinstance(kind, tuple):
        for part in kind:  # noqa: SIM110 - a generator for each would cost more than the looks
            if _fits(answer, part):
                return True
        return False
    if isinstance(kind, type):
        return isinstance(answer, kind)
    return isinstance(answer, list) and all(_fits(entry, kind[0]) for entry in answer)


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
    """A quick look at a list, which may be long and holds entries of one type, nearly always; False says nothing."""
    for found in set(map(type, answer)):
        if found is not kind:
            return False
    return kind is not int or not answer or (min(answer) > -LARGEST and max(answer) < LARGEST)


def _name(kind: Kind) -> str:
    return kind.__name__ if isinstance(kind, type) else "null" if kind is None else "an object of another form"


def _not(what: str, expected: str, answer: Any) -> ProtocolError:
    return ProtocolError(f"{what}: expected {expected}, got {str(answer)[:100]!r}")
