"""The pictures of a study, drawn by matplotlib's Agg and SVG backends; its global state is left as it was.

Each picture is drawn once and written as SVG and as PNG, both on white, for documents.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from mlxe_async.analysis import breakout_study, scores
from mlxe_async.analysis.outcomes import CURVE_POINTS, Groups, Outcome, is_timed
from mlxe_async.analysis.statistics import band, bootstrap, median
from mlxe_async.analysis.tables import number, solved_means, survival

# Okabe & Ito 2008: told apart by the colour-blind, and readable on light and dark.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#a6761d", "#7570b3")
INK, FAINT, GRID, PAPER = "#101112", "#717273", "#d0d1d2", "#ffffff"
PHASES = {
    "generate": "#0072b2",
    "memorize": "#cc79a7",
    "learn": "#e69f00",
    "publish": "#d55e00",
    "evaluate": "#009e73",
    "checkpoint": "#7570b3",
}
TIMELINE_S = 1.5
GRID_POINTS = 120
LONG = 6.0
SMOOTHED = 5
ARROW = 1.5

# The published figures of MLxE (github.com/sebtac/MLxE): episodes, updates, seconds, on 8 cores, and counted at the
# first training episode that reaches 50,000 steps.
PUBLISHED = {
    "MLxE ISTB": (440, 2490, 1067),
    "MLxE IS": (345, 1525, 480),
    "MLxE IA": (570, 1740, 811),
    "MLxE OA, 1e-4": (6970, 2940, 576),
    "MLxE OA, 1e-3": (4160, 2090, 363),
    "MLxE final": (140, 1180, 540),
}
PUBLISHED_CAVEAT = (
    "Hatched: as published by MLxE, on 8 cores, and counted at the first training episode of 50,000 steps{}; its OA "
    "counts episodes more than once."
)

_DASHES: Any = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)), (0, (9, 3)))
_STYLE: Any = {
    "svg.fonttype": "path",
    "svg.hashsalt": "mlxe",
    "font.size": 10.0,
    "text.color": INK,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
}


@dataclass(frozen=True)
class Picture:
    """A finished picture.

    Args:
        name: of its files.
        title: what it shows.
        caption: how to read it.
        svg: a file on white.
        png: the same in pixels.
    """

    name: str
    title: str
    caption: str
    svg: bytes
    png: bytes


def all_pictures(groups: Groups) -> list[Picture]:
    """Every picture for which there is something to show."""
    makers = [learning_curves, test_curves]
    if is_timed(_runs(groups)):  # all others show seconds
        makers += [survival_curves, bars, timelines]
    return [picture for make in makers if (picture := make(groups)) is not None]


def learning_curves(groups: Groups) -> Picture | None:
    """Returns of training episodes against episodes, steps and, of runs that were made one at a time, seconds."""
    curves = {name: [one.curve for one in runs if len(one.curve) > 1] for name, runs in groups.items()}
    curves = {name: members for name, members in curves.items() if members}
    if not curves:
        return None
    axes_of = [("training episodes", 0), ("environment steps", 1)]
    axes_of += [(_clock_label(groups), 2)] if is_timed(_runs(groups)) else []
    with drawing(3.7 * len(axes_of), 3.6, columns=len(axes_of), sharey=True) as (figure, axes):
        for ax, (label, column) in zip(axes[0], axes_of, strict=True):
            for colour, (_, members) in zip(colours(), curves.items(), strict=False):
                x, rows = _on_one_grid(members, column)
                mean, low, high = band(rows)
                ax.plot(x, mean, color=colour, linewidth=1.8)
                ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
            ax.set_xlabel(label)
            ax.set_xlim(left=0)
            ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
            _plain_numbers(ax.xaxis)
        axes[0][0].set_ylabel("return of training episodes")
        legend(figure, curves)
        return picture_of(
            figure,
            "learning",
            "Learning curves",
            f"Mean over the seeds, with 95 % bootstrap bands, whole runs drawn, of the mean return of the last "
            f"{SMOOTHED} points. A point is one training episode, or, of a run of more than {CURVE_POINTS} episodes, "
            f"the mean of one of {CURVE_POINTS} equal parts of them. Exploration is on. Before its first point a run "
            "stands at that, and after its end at its last value: where a curve goes on, some of its runs may be over.",
        )


def test_curves(groups: Groups) -> Picture | None:
    """Returns of tests against environment steps, of tasks that are never solved; with those published of Breakout."""
    unjudged = scores.never_judged(groups)
    curves = {name: [one.test_curve for one in runs if len(one.test_curve) > 1] for name, runs in unjudged.items()}
    curves = {name: members for name, members in curves.items() if members}
    if not curves:
        return None
    published = breakout_study.CURVES if scores.is_breakout(unjudged) else {}
    with drawing(7.6, 4.2) as (figure, axes):
        ax = axes[0][0]
        for colour, members in zip(colours(), curves.values(), strict=False):
            # The grid reads steps at 1 and returns at 3, as points of training have them.
            x, rows = _on_one_grid([[(0, steps, 0, value) for steps, value in curve] for curve in members], 1)
            mean, low, high = band(rows)
            ax.plot(x, mean, color=colour, linewidth=1.8)
            ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        for style, (name, curve) in zip(_DASHES, published.items(), strict=False):
            middles = [(place + 0.5) * breakout_study.MILLION for place in range(len(curve.means))]
            ax.plot(middles, curve.means, color=FAINT, linewidth=1.1, linestyle=style, label=f"published: {name}")
        if published:
            ax.legend(loc="upper left", fontsize=8)
        ax.set_xlabel("environment steps")
        ax.set_ylabel("return of tests")
        ax.set_xlim(left=0)
        ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
        _plain_numbers(ax.xaxis)
        legend(figure, curves)
        caption = (
            f"Mean over the seeds of the mean of the last {SMOOTHED} tests, with 95 % bootstrap bands, whole runs "
            "drawn. A test is greedy games of a frozen version, at the steps at which it was published."
        )
        return picture_of(
            figure, "tests", "Tests on the way", f"{caption} {breakout_study.CAVEAT}" if published else caption
        )


def moving_average(values: Sequence[float], games: int) -> list[float]:
    """Means of the newest `games` values at each of them from the `games`-th on; nothing of fewer."""
    sums = np.cumsum([0.0, *values])
    return [float(mean) for mean in (sums[games:] - sums[:-games]) / games]


def moving_averages(lengths: Mapping[str, Sequence[Sequence[int]]], games: int) -> Picture | None:
    """Steps of training episodes by their number, averaged over `games` of them, a line for each run.

    Args:
        lengths: of each name, for each of its runs, the steps of its episodes in the order in which they ended.
        games: episodes that are averaged.
    """
    known = {name: [run for run in runs if len(run) >= games] for name, runs in lengths.items()}
    known = {name: runs for name, runs in known.items() if runs}
    if not known:
        return None
    with drawing(7.4, 4.2) as (figure, axes):
        ax = axes[0][0]
        for colour, runs in zip(colours(), known.values(), strict=False):
            for run in runs:
                means = moving_average(run, games)
                ax.plot(range(games, games + len(means)), means, color=colour, linewidth=1.2, alpha=0.8)
        ax.set_yscale("log")
        ax.set_xlabel("training episodes")
        ax.set_ylabel(f"steps, mean of {games} episodes")
        ax.set_xlim(left=0)
        _plain_numbers(ax.xaxis)
        legend(figure, known)
        caption = f"Steps of training episodes, exploration on, each point the mean of the last {games}; a line a run."
        return picture_of(figure, "moving", "Moving averages", caption)


def survival_curves(groups: Groups) -> Picture | None:
    """Share of runs that are not there yet, against episodes and seconds."""
    shown = {name: runs for name, runs in groups.items() if any(one.tested for one in runs)}
    if not shown:
        return None
    with drawing(9.0, 3.6, columns=2) as (figure, axes):
        clocks = (("training episodes", "episodes"), (_clock_label(shown), "seconds_to_publication"))
        for ax, (label, quantity) in zip(axes[0], clocks, strict=True):
            ends = [survival(runs, quantity) for runs in shown.values()]
            times = [t for curve in ends for t in (*curve.times, *curve.censored)]
            last = max([*times, 1.0]) * 1.05
            # A few that were given up late would squeeze all others into the first tenth.
            is_long = last > LONG * median([*times, 1.0])
            for colour, curve in zip(colours(), ends, strict=False):
                end = max([0.0, *curve.times, *curve.censored])
                shares = [1.0, *curve.shares]
                x = [0.0, *curve.times, end]
                ax.step(x, [*shares, shares[-1]], where="post", color=colour, linewidth=1.8)
                at = [_share_at(curve.times, curve.shares, time) for time in curve.censored]
                ax.plot(curve.censored, at, linestyle="none", marker="|", markersize=9, color=colour)
            ax.axhline(0.5, color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)))
            ax.set_xlabel(label)
            ax.set_ylim(-0.02, 1.04)
            if is_long:
                ax.set_xscale("log")
                ax.set_xlim(max(min(times) * 0.8, 0.1), last)
                ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                ax.xaxis.set_major_formatter(FuncFormatter(_short))
                ax.xaxis.set_minor_formatter(NullFormatter())
            else:
                ax.set_xlim(0, last)
                _plain_numbers(ax.xaxis)
        axes[0][0].set_ylabel("share not solved yet")
        legend(figure, shown)
        return picture_of(
            figure,
            "survival",
            "How long until it is solved",
            "Kaplan-Meier estimate; the dashed line is the median, a tick a failure, censored where it was given up. "
            f"{solved_means(_runs(shown))}.",
        )


def bars(groups: Groups) -> Picture | None:
    """Medians beside the published figures of the study that this one repeats, on logarithmic axes."""
    kinds = (("training episodes", "episodes"), ("updates", "updates"), ("seconds", "seconds_to_publication"))
    shown = {name: runs for name, runs in groups.items() if any(not one.failed and one.tested for one in runs)}
    if not shown:
        return None
    tasks = {str(one.facts["env"]) for runs in shown.values() for one in runs if "env" in one.facts}
    is_cartpole = all(task.startswith("CartPole") for task in tasks)
    published = PUBLISHED if is_cartpole else {}
    names = [f"{name} ({sum(not one.failed for one in runs)} of {len(runs)})" for name, runs in shown.items()]
    names += published
    with drawing(11.0, 1.5 + 0.34 * len(names), columns=3, sharey=True) as (figure, axes):
        for index, (ax, (label, quantity)) in enumerate(zip(axes[0], kinds, strict=True)):
            texts = []
            for row, (colour, (_, runs)) in enumerate(zip(colours(), shown.items(), strict=False)):
                values = [one.needed(quantity) for one in runs]
                middle = median(values)
                if math.isfinite(middle):
                    ax.barh(row, middle, color=colour, height=0.66)
                    reach = _whisker(ax, row, values)
                    texts.append((max(middle, reach), row, number(middle)))
                else:
                    texts.append((0.0, row, "half of them failed"))
            for row, figures in enumerate(published.values(), len(shown)):
                ax.barh(row, figures[index], facecolor="none", edgecolor=FAINT, hatch="////", height=0.66, linewidth=1)
                texts.append((figures[index], row, number(figures[index])))
            ends = [end for end, _, _ in texts if end]
            low = 10 ** math.floor(math.log10(min([*ends, 10]) * 0.7))
            ax.set_xscale("log")
            ax.set_xlim(low, max([*ends, 10]) * 4.5)
            for end, row, text in texts:
                ax.annotate(text, (max(end, low), row), (4, 0), textcoords="offset points", va="center", fontsize=9)
            ax.set_title(label)
            ax.grid(visible=False, axis="y")
            ax.tick_params(axis="y", length=0)
            ax.xaxis.set_major_formatter(
                FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
            )
        axes[0][0].set_yticks(range(len(names)), names)
        axes[0][0].invert_yaxis()
        return picture_of(
            figure,
            "bars",
            "Episodes, updates and seconds until it is solved",
            "Medians of all runs, with 95 % bootstrap intervals, arrows where these reach to failure; how many solved "
            f"it stands behind the name. {solved_means(_runs(shown))}, and everything is counted until then; where "
            "versions are tested, until the first of those that passed was published. Seconds are those from typing "
            "the command. Logarithmic axes. "
            + (
                PUBLISHED_CAVEAT.format("" if _all_by_episode(shown) else ", an easier goal than D1c")
                if published
                else ""
            ),
        )


def timelines(groups: Groups) -> Picture | None:
    """Who did what in the first moments, one run of each settings."""
    shown = {name: one for name, runs in groups.items() if (one := _typical(runs)) is not None}
    if not shown:
        return None
    lanes = {name: _lanes(one) for name, one in shown.items()}
    heights = [len(of) for of in lanes.values()]
    with drawing(
        11.0, 1.3 + sum(0.30 * height + 0.62 for height in heights), rows=len(shown), heights=heights, sharex=True
    ) as (figure, axes):
        for (ax,), (name, one) in zip(axes, shown.items(), strict=True):
            order = lanes[name]
            for row, _ in enumerate(order):
                ax.barh(row, TIMELINE_S, color=GRID, height=0.2, alpha=0.55, linewidth=0)
            for lane, phase, start, seconds, waited in one.spans:
                end = min(start + seconds, TIMELINE_S)
                if lane in order and end > max(start, 0.0):
                    row, begin = order.index(lane), max(start, 0.0)
                    # What it waited inside its phase is told as a sum; it is drawn at the end, where lanes fill up.
                    worked = max(begin, min(end, start + seconds - waited))
                    width = max(worked - begin, TIMELINE_S / 1100)
                    tall = 0.9 if phase == "publish" else 0.72
                    ax.barh(row, width, left=begin, height=tall, color=PHASES.get(phase, FAINT), linewidth=0)
            ax.set_yticks(range(len(order)), order)
            ax.set_ylim(len(order) - 0.4, -0.6)
            ax.grid(visible=False, axis="y")
            ax.tick_params(axis="y", length=0)
            ax.spines["left"].set_visible(False)
            ax.set_title(f"{name}  (seed {one.seed})")
        axes[-1][0].set_xlim(0, TIMELINE_S)
        axes[-1][0].set_xlabel("seconds since the first rollout began")
        phases = {span[1] for one in shown.values() for span in one.spans}
        handles = [Patch(color=colour, label=phase) for phase, colour in PHASES.items() if phase in phases]
        handles.append(Patch(color=GRID, label="waits"))
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize=9)
        return picture_of(
            figure,
            "timeline",
            "Who works and who waits",
            "Measured, from the log of the run whose time is nearest to the median; as far as it lasted. Where roles "
            "share cores their phases hold the waiting for a core.",
        )


# -- parts ----------------------------------------------------------------------------------------------------------


@contextmanager
def drawing(
    width: float,
    height: float,
    *,
    rows: int = 1,
    columns: int = 1,
    heights: Sequence[float] | None = None,
    **sharing: Any,
) -> Iterator[tuple[Any, Any]]:
    """A figure of some inches, and its axes (rows, columns), in the style of all pictures."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, gridspec_kw={"height_ratios": heights}, **sharing)
        yield figure, axes


def picture_of(figure: Any, name: str, title: str, caption: str) -> Picture:
    """A figure as a finished picture."""
    svg = _saved(figure, "svg", metadata={"Date": None, "Title": title})
    return Picture(name, title, caption, svg, _saved(figure, "png", dpi=150))


def _saved(figure: Any, kind: str, **how: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, **how)
    return buffer.getvalue()


def colours() -> Iterator[str]:
    """Colours for one line after another, without end."""
    while True:
        yield from COLOURS


def legend(figure: Any, names: Mapping[str, Sized]) -> None:
    """Put a legend above: names, and how many runs each has."""
    handles = [
        Patch(color=colour, label=f"{name} ({len(runs)})")
        for colour, (name, runs) in zip(colours(), names.items(), strict=False)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5), fontsize=9)


def _plain_numbers(axis: Any) -> None:
    axis.set_major_locator(MaxNLocator(nbins=6, min_n_ticks=3))
    axis.set_major_formatter(FuncFormatter(_short))


def _short(value: float, _: Any = None) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e3 else f"{value:g}"


def _on_one_grid(curves: Sequence[Sequence[Sequence[float]]], column: int) -> tuple[Any, list[Any]]:
    """All curves (points, 4) as rows on the same places: between points the value before, after the end the last."""
    last = max(curve[-1][column] for curve in curves)
    x = np.linspace(0, last, GRID_POINTS)
    rows = []
    for curve in curves:
        data = np.asarray(curve, dtype=np.float64)
        sums = np.cumsum(np.insert(data[:, 3], 0, 0.0))
        ends = np.arange(1, len(data) + 1)
        starts = np.maximum(0, ends - SMOOTHED)
        smooth = (sums[ends] - sums[starts]) / (ends - starts)
        rows.append(smooth[np.clip(np.searchsorted(data[:, column], x, side="right") - 1, 0, None)])
    return x, rows


def _share_at(times: Sequence[float], shares: Sequence[float], time: float) -> float:
    return next((share for t, share in reversed(list(zip(times, shares, strict=True))) if t <= time), 1.0)


def _whisker(ax: Any, row: int, values: Sequence[float]) -> float:
    """Draw the interval of the median, as an arrow if it reaches to failure, and return where it ends."""
    if len(values) < 2:
        return 0.0
    low, high = bootstrap(values)
    if math.isfinite(high):
        ax.plot([low, high], [row, row], color=INK, linewidth=1.4, solid_capstyle="butt")
        return high
    # It has no end: beyond the last run that did not fail it points to where failures are.
    end = ARROW * max(value for value in values if math.isfinite(value))
    ax.plot([low, end], [row, row], color=INK, linewidth=1.4, marker=">", markevery=[1], markersize=6)
    return end


def _typical(runs: Sequence[Outcome]) -> Outcome | None:
    """The run whose time to the end is nearest to the median, of those that have spans."""
    able = [one for one in runs if one.spans]
    solved = [one for one in able if one.solved] or able
    if not solved:
        return None
    middle = median([_clock(one) for one in solved])
    return min(solved, key=lambda one: (abs(_clock(one) - middle), one.seed))


def _runs(groups: Groups) -> list[Outcome]:
    return [one for runs in groups.values() for one in runs]


def _all_by_episode(groups: Groups) -> bool:
    return all(one.facts.get("episode_steps") for one in _runs(groups) if one.facts)


def _clock_label(groups: Groups) -> str:
    begins = {"command": "seconds from the command", "run": "seconds from the start of the run"}
    clocks = {one.clock for one in _runs(groups)}
    return begins.get(clocks.pop(), "seconds") if len(clocks) == 1 else "seconds"


def _clock(one: Outcome) -> float:
    return one.seconds_to_publication or one.seconds_to_exit or 0.0


def _lanes(one: Outcome) -> list[str]:
    present = {span[0] for span in one.spans}
    executors = sorted((lane for lane in present if lane.startswith("executor")), key=lambda lane: int(lane.split()[1]))
    return [*executors, *(lane for lane in ("memorizer", "learner", "evaluator") if lane in present)]
