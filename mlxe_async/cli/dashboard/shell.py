"""The frame of each page: its head, the places of its parts, style and script; no text of a run goes into a script."""

from __future__ import annotations

import functools
from importlib.resources import files
from urllib.parse import quote

from mlxe_async.analysis.report.markup import NOTHING, Markup, element, join
from mlxe_async.analysis.report.style import STYLE
from mlxe_async.cli.dashboard.panels import PANELS

LIST = "runs"
"""The part of the list's page that holds it."""


def page_of_run(name: str) -> str:
    """The page of one run, empty but for the places of its parts."""
    whole = [_part(key, panel.title, panel.note) for key, panel in PANELS.items() if not panel.is_on_demand]
    folded = [
        element(
            "details",
            element("summary", panel.title),
            element("div", id=key),
            data_more=key,
        )
        for key, panel in PANELS.items()
        if panel.is_on_demand
    ]
    on_demand = element("section", element("h2", "More"), *folded)
    numbers = element("a", "as numbers", href=f"/run/{quote(name, safe='')}/state.json")
    above = element("nav", element("a", "All runs", href="/"), " · ", numbers)
    return _page(name, above, [*whole, on_demand], f"/run/{quote(name, safe='')}/stream")


def page_of_list(folder: str) -> str:
    """The page of all runs."""
    return _page(f"Runs in {folder}", NOTHING, [element("div", id=LIST)], "/stream")


@functools.cache
def script() -> str:
    """The page's script."""
    return _file("page.js")


@functools.cache
def style() -> str:
    """The style of reports, and what is the page's own."""
    return STYLE + _file("page.css")


ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="3" fill="#0067a5"/>'
    '<path d="M2 12 6 7l3 3 5-7" fill="none" stroke="#fff" stroke-width="2"/></svg>'
)


def _file(name: str) -> str:
    return (files("mlxe_async.cli.dashboard") / name).read_text(encoding="utf-8")


def _part(key: str, title: str, note: str) -> Markup:
    head = element("h2", title) if title else NOTHING
    about = element("p", note, class_="note") if note else NOTHING
    return element("section", head, about, element("div", id=key), class_="part", data_part=key)


def _page(title: str, above: Markup, inside: list[Markup], stream: str) -> str:
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        Markup('<link rel="icon" href="/icon.svg"><link rel="stylesheet" href="/style.css">'),
        Markup('<script src="/page.js" defer></script>'),
    )
    state = element("p", "connecting", id="connection", role="status")
    noscript = element("noscript", element("p", "The page fills itself by a script of its own, which is switched off."))
    header = element("header", above, element("h1", title), state, noscript)
    body = element("body", element("main", join([header, *inside])), data_stream=stream)
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"
