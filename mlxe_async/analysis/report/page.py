"""The whole page: style, summary and sections in one file that needs nothing else, light or dark as asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlxe_async.analysis.report import about, faults, learning, rows, speed
from mlxe_async.analysis.report.ending import top
from mlxe_async.analysis.report.groups import Group, all_runs, of_group
from mlxe_async.analysis.report.markup import Markup, element, join
from mlxe_async.analysis.report.style import STYLE

GENERATOR = "mlxe_async report"
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # no script, no picture, no request: whatever stands in it
MOST_SUMMARIES = 4

# In the order in which they stand; each is empty where there is nothing to show.
SECTIONS: tuple[Callable[[Sequence[Group]], Markup], ...] = (
    about.results,
    learning.returns,
    learning.tests,
    learning.losses,
    learning.metrics,
    learning.quantiles,
    speed.time_spent,
    speed.speeds,
    rows.policy_lag,
    rows.memory,
    rows.episodes,
    faults.faults,
    about.settings,
    about.machine,
    about.reading,
)


def page(groups: Sequence[Group], tables: Sequence[Markup] = ()) -> str:
    """The file.

    Args:
        groups: runs of the same settings each.
        tables: further ones, which stand before the sections.
    """
    runs = all_runs(groups)
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs: {', '.join(one.title for one in groups)}"
    told = [top(run) for run in runs] if len(runs) <= MOST_SUMMARIES else [of_group(one) for one in groups]
    said = [element("p", one, class_="summary") for one in told]
    body = join([element("header", element("h1", title), *said), *tables, *(make(groups) for make in SECTIONS)])
    return (
        "<!doctype html>\n"
        + element(
            "html",
            element(
                "head",
                element("meta", charset="utf-8"),
                element("meta", http_equiv="Content-Security-Policy", content=POLICY),
                element("meta", name="viewport", content="width=device-width, initial-scale=1"),
                element("meta", name="generator", content=GENERATOR),
                element("title", title),
                element("style", Markup(STYLE)),
            ),
            element("body", element("main", body)),
            lang="en",
        )
        + "\n"
    )
