"""Bars: how often values occur, and how a time is made up of parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlxe_async.analysis.report.chart import HEIGHT, WIDTH, Line, chart, colour, framed
from mlxe_async.analysis.report.markup import NOTHING, Markup, details, element, table
from mlxe_async.analysis.report.points import Doubles
from mlxe_async.analysis.report.scales import Axis, short, values
from mlxe_async.analysis.report.thinning import Curve

MOST_BARS = 40
MOST_WHOLE = 1e9  # counts beyond have no bins of their own
BAR_HEIGHT = 100
LEAST_SHARE = 1e-4  # of a stack: what takes less is left out of the picture, not of the table


@dataclass(frozen=True)
class Sample:
    """Values of one settings, and how much each counts."""

    label: str
    style: int
    values: Doubles
    weights: Doubles


def histogram(title: str, samples: Sequence[Sample], label: str, *, whole: bool = False, note: str = "") -> Markup:
    """Shares of values in bins that all samples have in common: bars of one, steps of several.

    Args:
        title: what is counted.
        samples: of each settings; those without weight are left out.
        label: what the values are.
        whole: whether they are counts, which have bins of their own as far as there are few.
        note: how to read it.
    """
    known = [_known(one) for one in samples]
    known = [one for one in known if one.weights.sum() > 0]
    if not known:
        return NOTHING
    edges = _edges(min(one.values.min() for one in known), max(one.values.max() for one in known), whole=whole)
    shares = [100 * np.histogram(one.values, edges, weights=one.weights)[0] / one.weights.sum() for one in known]
    up = values(0.0, max(float(share.max()) for share in shares), from_zero=True)
    bins = values(float(edges[0]), float(edges[-1]))
    across = Axis(float(edges[0]), float(edges[-1]), tuple(t for t in bins.ticks if edges[0] <= t[0] <= edges[-1]))
    if len(known) > 1:
        lines = [
            Line(one.label, one.style, Curve(edges, np.append(share, share[-1])))
            for one, share in zip(known, shares, strict=True)
        ]
        return chart(title, lines, across, up, label, note=f"shares in %. {note}".strip(), steps=True)
    one, share = known[0], shares[0]
    rows = [[_bin(edges, index, whole=whole), f"{value:.1f} %"] for index, value in enumerate(share) if value > 0]
    most = int(share.argmax())
    said = f"{title}: most often {_bin(edges, most, whole=whole)}, {share[most]:.0f} % of {one.label}"
    bars = "".join(_bar(edges, share, index, across, up) for index in range(len(share)) if share[index] > 0)
    picture = element(
        "svg",
        element("title", said),
        element("path", d="".join(f"M0 {HEIGHT * (1 - up.at(at)):.1f}H{WIDTH}" for at, _ in up.ticks), class_="mesh"),
        element("path", d=bars, class_=f"bar {colour(one.style)}"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=said,
    )
    return element(
        "figure",
        element("figcaption", element("b", title), f" shares in %. {note}".rstrip()),
        framed(picture, across, up, label),
        details("Numbers", table([label, "share"], rows, f"{title}: numbers")),
    )


def stack(label: str, parts: Mapping[str, float], styles: Mapping[str, int]) -> Markup:
    """One bar that is made up of parts.

    Args:
        label: what the bar is of.
        parts: how much each takes, by name.
        styles: the number of each name's colour.
    """
    whole = sum(parts.values())
    if whole <= 0:
        return NOTHING
    said = f"{label}: " + ", ".join(f"{name} {100 * part / whole:.1f} %" for name, part in parts.items() if part > 0)
    drawn, at = [], 0.0
    for name, part in parts.items():
        width = WIDTH * part / whole
        if part / whole > LEAST_SHARE:
            drawn.append(
                element(
                    "rect",
                    element("title", f"{name} {100 * part / whole:.1f} %"),
                    x=f"{at:.1f}",
                    y=0,
                    width=f"{width:.1f}",
                    height=BAR_HEIGHT,
                    class_=fill(styles.get(name, 0)),
                )
            )
        at += width
    picture = element(
        "svg",
        *drawn,
        viewBox=f"0 0 {WIDTH} {BAR_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=said,
        class_="stack",
    )
    return element("div", element("span", label), picture, class_="stacked")


def keys(names: Sequence[str], styles: Mapping[str, int]) -> Markup:
    """Which colour stands for which part."""
    samples = [
        element(
            "li",
            element(
                "svg",
                element("rect", x=0, y=0, width=14, height=14, class_=fill(styles.get(name, 0))),
                viewBox="0 0 14 14",
                class_="key",
                aria_hidden="true",
            ),
            name,
        )
        for name in names
    ]
    return element("ul", *samples, class_="legend")


def fill(style: int) -> str:
    """The class of an area in the colour of a style; below 0: the colour of what is not told."""
    return "f-rest" if style < 0 else f"f{style}"


def _known(one: Sample) -> Sample:
    is_known = np.isfinite(one.values) & np.isfinite(one.weights) & (one.weights > 0)
    return Sample(one.label, one.style, one.values[is_known], one.weights[is_known])


def _edges(least: float, greatest: float, *, whole: bool) -> Doubles:
    if whole and greatest < MOST_WHOLE:
        first, last = int(np.floor(least + 0.5)), int(np.floor(greatest + 0.5))
        step = -(-(last - first + 1) // MOST_BARS)
        return np.arange(first, last + step + 1, step, dtype=np.float64) - 0.5
    room = max(0.5, 1e-6 * abs(greatest)) if greatest - least < 1e-9 * abs(greatest) or greatest <= least else 0.0
    return np.linspace(least - room, greatest + room, MOST_BARS + 1)


def _bin(edges: Doubles, index: int, *, whole: bool) -> str:
    low, high = float(edges[index]), float(edges[index + 1])
    if not whole:
        return f"{short(low)} to {short(high)}"
    first, last = int(low + 0.5), int(high - 0.5)
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _bar(edges: Doubles, share: Doubles, index: int, across: Axis, up: Axis) -> str:
    left, right = WIDTH * across.at(float(edges[index])), WIDTH * across.at(float(edges[index + 1]))
    gap = 0.08 * (right - left)
    top = HEIGHT * (1 - up.at(float(share[index])))
    return f"M{left + gap:.1f} {HEIGHT}V{top:.1f}H{right - gap:.1f}V{HEIGHT}Z"
