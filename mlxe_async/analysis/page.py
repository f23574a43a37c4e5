"""The report of a study as one HTML file that needs nothing else: no network, no scripts, light or dark as asked."""

from __future__ import annotations

import html
from collections.abc import Sequence

from mlxe_async.analysis.pictures import Picture
from mlxe_async.analysis.tables import Table

STYLE = """
:root { color-scheme: light dark; --ink: #1b1c1e; --paper: #ffffff; --faint: #6a6c70; --grid: #d9dbde; --row: #f4f5f6 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e5e7; --paper: #17181a; --faint: #9b9ea4; --grid: #3b3e43; --row: #212327 }
}
body { color: var(--ink); background: var(--paper); font: 15px/1.5 system-ui, sans-serif;
  max-width: 1180px; margin: 2rem auto; padding: 0 1.2rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--grid) }
th { white-space: normal; vertical-align: bottom; font-weight: 600; min-width: 3.4rem }
th:first-child, td:first-child { text-align: left }
tbody tr:nth-child(even) { background: var(--row) }
.note, figcaption { color: var(--faint); font-size: .85rem; max-width: 62rem }
figure { margin: 0 } svg { max-width: 100%; height: auto }
"""


def page(title: str, about: str, tables: Sequence[Table], pictures: Sequence[Picture]) -> str:
    """The whole file.

    Args:
        title: of the study.
        about: one paragraph: what was run, where.
        tables: the first one stands above the pictures, the others below.
        pictures: in order.
    """
    figures = [
        f"<h2>{html.escape(picture.title)}</h2>\n<figure>{picture.inline}"
        f"<figcaption>{html.escape(picture.caption)}</figcaption></figure>"
        for picture in pictures
    ]
    body = [table.html for table in tables[:1]] + figures + [table.html for table in tables[1:]]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{html.escape(title)}</h1>\n<p>{html.escape(about)}</p>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )
