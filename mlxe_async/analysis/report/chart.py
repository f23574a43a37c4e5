"""A chart of curves: lines and bands as SVG that stretches, with its numbers as text that does not.

The picture has no fixed proportions, so that it fits a phone and a wide screen; strokes keep their width, and what is
written on the axes is HTML of a readable size, placed by shares of the picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mlxe_async.analysis.report.markup import NOTHING, Markup, details, element, table
from mlxe_async.analysis.report.points import Doubles
from mlxe_async.analysis.report.scales import Axis, short
from mlxe_async.analysis.report.thinning import Curve

WIDTH, HEIGHT = 1000, 400
COLOURS = 8
DASHES = (None, "7 4", "2 3", "9 3 2 3", "14 4")
MOST_ROWS = 12
FEW_DOTS = 60


@dataclass(frozen=True)
class Line:
    """One curve of a chart.

    Args:
        label: in the legend.
        style: number of its colour and dashes.
        curve: what is drawn.
        dots: single values, drawn as points; the line may be left out for them.
        is_joined: whether the line is drawn.
    """

    label: str
    style: int
    curve: Curve
    dots: tuple[Doubles, Doubles] | None = None
    is_joined: bool = True


def chart(
    title: str, lines: Sequence[Line], across: Axis, up: Axis, across_label: str, *, note: str = "", steps: bool = False
) -> Markup:
    """A figure with legend, axes and a table of its numbers.

    Args:
        title: what is drawn, on the upright axis.
        lines: the curves.
        across: the lower axis.
        up: the upright one.
        across_label: what stands below the lower axis.
        note: how to read it.
        steps: whether a value holds until the next.
    """
    if not lines:
        return NOTHING
    unit = f" ({across.unit})" if across.unit else ""
    said = f"{title} by {across_label}{unit}: " + "; ".join(map(_described, lines))
    drawn = [shape for line in lines for shape in _shapes(line, across, up, is_stepped=steps)]
    picture = element(
        "svg",
        element("title", said),
        *_grid(across, up),
        *drawn,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=said,
    )
    numbers = details("Numbers", _numbers(title, lines, f"{across_label}{unit}"))
    return element(
        "figure",
        element("figcaption", element("b", title), f" {note}" if note else ""),
        framed(picture, across, up, f"{across_label}{unit}"),
        legend((line.label, line.style) for line in lines) if len(lines) > 1 else NOTHING,
        numbers,
    )


def framed(picture: Markup, across: Axis, up: Axis | None, across_label: str) -> Markup:
    """A picture with the texts of its axes around it."""
    below = [
        element("span", label, class_="x", style=f"left:{100 * across.at(place):.2f}%") for place, label in across.ticks
    ]
    beside = (
        [element("span", label, class_="y", style=f"bottom:{100 * up.at(at):.2f}%") for at, label in up.ticks]
        if up
        else []
    )
    # The texts are said by the picture's own label and the table; read aloud one by one they would say nothing.
    return element(
        "div",
        element("div", picture, element("span", *beside, *below, aria_hidden="true"), class_="plot"),
        element("div", across_label, class_="label", aria_hidden="true"),
        class_="frame" if up else "frame flat",
        style=f"--room:{max(len(label) for _, label in up.ticks)}ch" if up and up.ticks else None,
    )


def legend(names: Iterable[tuple[str, int]]) -> Markup:
    """Names with a sample of their lines."""
    samples = [
        element(
            "li",
            element(
                "svg",
                _path("M0 5H26", style, "line"),
                viewBox="0 0 26 10",
                class_="sample",
                aria_hidden="true",
            ),
            name,
        )
        for name, style in names
    ]
    return element("ul", *samples, class_="legend")


def ends_of(lines: Iterable[Line]) -> tuple[float, float] | None:
    """The least and the greatest value that is drawn; None if none is."""
    parts = [
        part
        for line in lines
        for part in (line.curve.y, line.curve.low, line.curve.high, line.dots[1] if line.dots else None)
        if part is not None and len(part)
    ]
    every = np.concatenate(parts) if parts else np.empty(0)
    every = every[np.isfinite(every)]
    return (float(every.min()), float(every.max())) if len(every) else None


def middle_of(lines: Iterable[Line]) -> float:
    """The median of all values of lines that are drawn."""
    return float(np.nanmedian(np.concatenate([line.curve.y for line in lines])))


def colour(style: int) -> str:
    """The class of an element in the colour of a style."""
    return f"c{style % COLOURS}"


def _shapes(line: Line, across: Axis, up: Axis, *, is_stepped: bool) -> Iterable[Markup]:
    curve = line.curve
    if curve.low is not None and curve.high is not None and len(curve.x) > 1 and line.dots is None:
        above, below = _places(curve.x, curve.high, across, up), _places(curve.x, curve.low, across, up)
        yield element("path", d=f"M{'L'.join([*above, *reversed(below)])}Z", class_=f"band {colour(line.style)}")
    if line.dots is not None:
        dots = "dots few" if len(line.dots[0]) <= FEW_DOTS else "dots"
        spots = "".join(f"M{place}h0" for place in _places(*line.dots, across, up))
        yield element("path", d=spots, class_=f"{dots} {colour(line.style)}")
    if not line.is_joined or not len(curve.x):
        return
    places = _places(curve.x, curve.y, across, up)
    if is_stepped:
        path = places[0] + "".join(f"H{place.split()[0]}V{place.split()[1]}" for place in places[1:])
    elif len(places) == 1:
        yield element("path", d=f"M{places[0]}h0", class_=f"dots strong {colour(line.style)}")
        return
    else:
        path = "L".join(places)
    yield _path(f"M{path}", line.style, "line")


def _path(d: str, style: int, kind: str) -> Markup:
    dashes = DASHES[style // COLOURS % len(DASHES)]
    return element("path", d=d, class_=f"{kind} {colour(style)}", stroke_dasharray=dashes)


def _places(x: Doubles, y: Doubles, across: Axis, up: Axis) -> list[str]:
    return [
        f"{WIDTH * across.at(a):.1f} {HEIGHT * (1 - up.at(b)):.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True)
    ]


def _grid(across: Axis, up: Axis) -> Iterable[Markup]:
    level = [f"M0 {HEIGHT * (1 - up.at(place)):.1f}H{WIDTH}" for place, _ in up.ticks]
    upright = [f"M{WIDTH * across.at(place):.1f} 0V{HEIGHT}" for place, _ in across.ticks]
    yield element("path", d="".join([*level, *upright]), class_="mesh")


def _described(line: Line) -> str:
    y = line.curve.y[np.isfinite(line.curve.y)]
    around = ends_of([line])
    if not len(y) or around is None:
        return f"{line.label}: nothing"
    first, last, least, most = (short(float(one)) for one in (y[0], y[-1], *around))
    return f"{line.label} from {first} to {last}, between {least} and {most}"


def _numbers(title: str, lines: Sequence[Line], across_label: str) -> Markup:
    """A few rows of what is drawn, at places that all curves share."""
    last = max(float(line.curve.x[-1]) for line in lines if len(line.curve.x))
    first = min(float(line.curve.x[0]) for line in lines if len(line.curve.x))
    most = max(len(line.curve.x) for line in lines)
    places = np.linspace(first, last, min(MOST_ROWS, most)) if len(lines) > 1 or most > MOST_ROWS else lines[0].curve.x
    rows = [[short(float(place)), *(_value(line.curve, float(place)) for line in lines)] for place in places]
    return table([across_label, *(line.label for line in lines)], rows, f"{title}: numbers")


def _value(curve: Curve, place: float) -> str:
    """The last value at a place or before it, with the ends of its band."""
    index = int(np.searchsorted(curve.x, place * (1 + 1e-12), side="right")) - 1
    if index < 0 or not len(curve.x):
        return ""
    value = short(float(curve.y[index]))
    if curve.low is None or curve.high is None:
        return value
    return f"{value} [{short(float(curve.low[index]))}, {short(float(curve.high[index]))}]"
