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
    match kind:
        case dict():
            if not isinstance(answer, dict):
                raise _not(what, "an object", answer)
            for name, part in kind.items():
                if name not in answer:
                    raise ProtocolError(f"{what}: {name} is missing")
                require(answer[name], part, f"{what}: {name}")
        case [one]:
            if not isinstance(answer, list):
                raise _not(what, "a list", answer)
            if not _all_fit(answer, one):
                for place, entry in enumerate(answer):
                    require(entry, one, f"{what}[{place}]")
        case tuple():
            if not any(_fits(answer, part) for part in kind):
                raise _not(what, " or ".join(map(_name, kind)), answer)
        case _:
            if not _fits(answer, kind):
                raise _not(what, _name(kind), answer)


def _all_fit(answer: list[Any], kind: Kind) -> bool:
    """A quick look at a list, which may be long and holds entries of one type, nearly always; False says nothing."""
    if any(found is not kind for found in set(map(type, answer))):
        return False
    return kind is not int or not answer or (min(answer) > -LARGEST and max(answer) < LARGEST)


def _fits(answer: Any, kind: Kind) -> bool:
    if kind is None:
        return answer is None
    if kind is int or kind is float:
        is_whole = type(answer) is int and -LARGEST < answer < LARGEST
        return is_whole or (kind is float and type(answer) is float)
    if isinstance(kind, type):
        return isinstance(answer, kind)
    try:
        require(answer, kind)
    except ProtocolError:
        return False
    return True


def _name(kind: Kind) -> str:
    return kind.__name__ if isinstance(kind, type) else "null" if kind is None else "an object of another form"


def _not(what: str, expected: str, answer: Any) -> ProtocolError:
    return ProtocolError(f"{what}: expected {expected}, got {str(answer)[:100]!r}")
