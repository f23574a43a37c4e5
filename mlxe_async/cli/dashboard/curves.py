"""The curves of a run's page: series on common axes, by environment steps or by time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mlxe_async.analysis.report.chart import Line, chart, ends_of, middle_of
from mlxe_async.analysis.report.markup import NOTHING, Markup, element
from mlxe_async.analysis.report.scales import counts, times, values
from mlxe_async.cli.dashboard.run_now import RunNow
from mlxe_async.cli.dashboard.series import Across, Series

_ACROSS: dict[Across, str] = {"env_steps": "environment steps", "seconds": "time since the start"}


def returns(run: RunNow) -> Markup:
    """Draw returns of training episodes by steps and by time, with two averages of them."""
    lines = (("mean of the last 100", 0, run.returns), ("moving average (0.99, 0.01)", 1, run.averages))
    return _pair(curves("return", lines, across, run, has_dots=True) for across in _ACROSS)


def tests(run: RunNow) -> Markup:
    """Draw mean returns of tested versions."""
    lines = [("mean return of a test", 2, run.tests)]
    return _pair(curves("mean return of a test", lines, across, run, has_dots=True) for across in _ACROSS)


def lag_and_memory(run: RunNow) -> Markup:
    """Draw policy lag, the memory's fill and the rows that wait in lanes."""
    lag = (("mean", 0, run.lag_mean), ("largest", 1, run.lag_max))
    return _pair(
        [
            curves("policy lag, versions", lag, "env_steps", run, from_zero=True),
            curves("memory full, %", [("memory full, %", 2, run.fill)], "seconds", run, from_zero=True),
            curves("rows waiting in lanes", [("rows", 3, run.backlog)], "seconds", run, from_zero=True),
        ]
    )


def speed(run: RunNow) -> Markup:
    """Draw steps and updates per second."""
    named = (("env_steps", "environment steps per second"), ("updates", "updates per second"))
    return _pair(curves(title, [(title, 5, run.rates[name])], "seconds", run, from_zero=True) for name, title in named)


def losses(run: RunNow) -> Markup:
    """Draw each quantity that the algorithm measured while learning."""
    return _each(run, run.losses)


def metrics(run: RunNow) -> Markup:
    """Draw each number that environments told of themselves."""
    return _each(run, run.metrics)


def curves(
    title: str,
    lines: Sequence[tuple[str, int, Series]],
    across: Across,
    run: RunNow,
    *,
    from_zero: bool = False,
    has_dots: bool = False,
) -> Markup:
    """A chart of series on the same axes; empty where there is no value yet.

    Args:
        title: what is drawn.
        lines: label, style and values of each.
        across: the lower axis.
        run: whose they are.
        from_zero: whether the upright axis begins at 0 in any case.
        has_dots: whether few values are drawn as points too, of the first line.
    """
    drawn = [
        Line(label, style, series.curve(across), series.dots(across) if has_dots and not number else None)
        for number, (label, style, series) in enumerate(lines)
        if series.count
    ]
    around = ends_of(drawn)
    if around is None:
        return NOTHING
    reached = max(run.seconds if across == "seconds" else run.env_steps, *(float(one.curve.x[-1]) for one in drawn))
    lower = times(reached) if across == "seconds" else counts(reached)
    upper = values(*around, middle=middle_of(drawn), from_zero=from_zero)
    return chart(title, drawn, lower, upper, _ACROSS[across])


def _pair(figures: Iterable[Markup]) -> Markup:
    shown = [figure for figure in figures if figure]
    return element("div", *shown, class_="figures") if shown else NOTHING


def _each(run: RunNow, table_: Mapping[str, Series]) -> Markup:
    drawn = _pair(curves(name, [(name, 1, series)], "env_steps", run) for name, series in sorted(table_.items()))
    return drawn or element("p", "The log tells of none so far.")
