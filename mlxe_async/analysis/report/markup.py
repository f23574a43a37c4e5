"""HTML from texts that come from anywhere: each is escaped, unless it was made here."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from mlxe_async.storage.safe_text import visible

LONGEST_TEXT = 2000
_EMPTY = {"path", "meta"}


class Markup(str):
    """HTML that is safe as it stands: made of elements and of escaped texts only."""

    __slots__ = ()


NOTHING = Markup("")


def text(value: object) -> Markup:
    """Any text, escaped; control characters and those that turn the direction of reading are made visible."""
    return value if isinstance(value, Markup) else Markup(html.escape(visible(str(value), LONGEST_TEXT)))


def broken(name: str) -> Markup:
    """A name that may be broken after each point and underscore, where a line is too short for it."""
    return Markup("".join(f"{part}<wbr>" if part in "._" else text(part) for part in re.split("([._])", name) if part))


def join(parts: Iterable[object]) -> Markup:
    """All parts, one after the other, each on its own line of the file."""
    return Markup("\n".join(shown for part in parts if (shown := text(part))))


def element(name: str, /, *inside: object, **attributes: object) -> Markup:
    """`element("a", "x < y", class_="b", aria_label="c")`: an element, its content and attributes escaped.

    An attribute that is None is left out; an underscore at the end of a name is dropped, others become hyphens.
    """
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(visible(str(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _EMPTY:
        return Markup(f"<{name}{told}>" if name == "meta" else f"<{name}{told}/>")
    return Markup(f"<{name}{told}>{''.join(map(text, inside))}</{name}>")


def table(head: Sequence[object], rows: Iterable[Sequence[object]], caption: str, *, numeric: bool = True) -> Markup:
    """A table that scrolls within itself where it is too wide; the first cell of a row is its head.

    Args:
        head: titles of the columns.
        rows: cells, as many in each.
        caption: what it shows, for those who cannot see where it stands.
        numeric: whether all columns but the first are numbers, and stand to the right.
    """
    top = element("tr", *(element("th", cell, scope="col") for cell in head))
    body = join(
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in rows
    )
    return element(
        "div",
        element(
            "table",
            element("caption", caption),
            element("thead", top),
            element("tbody", body),
            class_="numbers" if numeric else "words",
        ),
        class_="wide",
        role="region",
        aria_label=caption,
        tabindex=0,
    )


def details(summary: str, *inside: object) -> Markup:
    """A part that is folded away until it is asked for; it needs no script."""
    return element("details", element("summary", summary), *inside)


def section(title: str, note: str, *inside: object) -> Markup:
    """A part of the page under its title; empty where there is nothing inside."""
    if not any(inside):
        return NOTHING
    about = element("p", note, class_="note") if note else NOTHING
    return element("section", element("h2", title), about, *inside)
