"""Axes have few plain numbers, charts are drawn within their frame, and every text is escaped."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import HOSTILE

from mlxe_async.analysis.report.chart import HEIGHT, WIDTH, Line, chart, ends_of
from mlxe_async.analysis.report.markup import LONGEST_TEXT, Markup, broken, details, element, join, section, table, text
from mlxe_async.analysis.report.scales import MOST_TICKS, counts, short, times, values
from mlxe_async.analysis.report.shares import Sample, histogram, stack
from mlxe_async.analysis.report.thinning import Curve
from mlxe_async.storage.safe_text import visible

X = np.array([0.0, 50.0, 100.0])


def line(label="a", style=0, y=(1.0, 2.0, 3.0), **how):
    return Line(label, style, Curve(X, np.array(y)), **how)


def drawn(markup):
    return ET.fromstring(str(markup))  # noqa: S314 - made here


def paths(markup, kind):
    return [one.get("d") for one in drawn(markup).iter("path") if kind in one.get("class", "").split()]


@given(st.floats(0, 1e17))
def test_axes_from_0_reach_any_end(last):
    for axis in (counts(last), times(last)):
        assert 0 < len(axis.ticks) <= MOST_TICKS + 1
        assert 0 <= axis.at(last) <= 1


@given(st.floats(-1e17, 1e17), st.floats(0, 1e17))
def test_any_axis_has_a_few_ticks_within_it(low, width):
    axis = values(low, low + width)
    assert axis.low < axis.high
    assert len(axis.ticks) <= MOST_TICKS + 1
    assert all(axis.low <= place <= axis.high or place == pytest.approx(axis.high) for place, _ in axis.ticks)
    assert 0 <= axis.at(low) <= axis.at(low + width) <= 1


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (-0.0, "0"),
        (0.25, "0.25"),
        (1500, "1.5k"),
        (2e7, "20M"),
        (-3e9, "-3G"),
        (1e-5, "1e-05"),
        (999_999, "1M"),
    ],
)
def test_numbers_on_axes_are_short(value, said):
    assert short(value) == said


@pytest.mark.parametrize(
    ("last", "unit", "ticks"),
    [
        (30.0, "s", ["0", "5", "10", "15", "20", "25", "30"]),
        (600.0, "min", ["0", "2", "4", "6", "8", "10"]),
        (7200.0, "h", ["0", "0.5", "1", "1.5", "2"]),
        (864_000.0, "days", ["0", "2", "4", "6", "8", "10"]),
        (0.0, "s", ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
    ],
)
def test_time_axes_have_the_unit_that_suits_them(last, unit, ticks):
    axis = times(last)
    assert axis.unit == unit
    assert [label for _, label in axis.ticks] == ticks


def test_ticks_that_lie_close_have_digits_enough_to_tell_them_apart():
    labels = [label for _, label in values(100_000.0, 100_004.0).ticks]
    assert labels == ["100k", "100.001k", "100.002k", "100.003k", "100.004k"]


def test_values_of_very_different_sizes_get_a_logarithmic_axis():
    axis = values(0.01, 1000.0)
    assert axis.logarithmic
    assert [label for _, label in axis.ticks] == ["0.01", "0.1", "1", "10", "100", "1k"]
    assert not values(0.0, 1000.0).logarithmic
    assert not values(0.01, 1000.0, from_zero=True).logarithmic
    assert values(0.01, 1000.0, middle=1.0).logarithmic
    assert not values(0.01, 1000.0, middle=900.0).logarithmic  # the least alone are small


def test_a_chart_has_its_title_axes_line_and_numbers():
    markup = chart("return", [line()], counts(100.0), values(1.0, 3.0), "steps")
    assert "<b>return</b>" in markup
    assert "return by steps: a from 1 to 3, between 1 and 3" in markup
    assert len(paths(markup, "line")) == 1
    assert '<span class="x" style="left:100.00%">100</span>' in markup
    cells = [cell.text for cell in drawn(markup).iter("td")]
    assert cells == ["1", "2", "3"]


def test_lines_start_and_end_where_their_values_are():
    (path,) = paths(chart("t", [line(y=(0.0, 5.0, 10.0))], counts(100.0), values(0.0, 10.0), "x"), "line")
    places = [tuple(map(float, place.split())) for place in path.removeprefix("M").split("L")]
    assert places[0] == (0, HEIGHT)
    assert places[-1][0] == WIDTH
    assert places[0][1] > places[1][1] > places[2][1] >= 0


def test_several_lines_have_a_legend_and_further_colours_have_dashes():
    markup = chart("t", [line("one", 0), line("two", 9)], counts(100.0), values(0.0, 3.0), "x")
    root = drawn(markup)
    assert [item[-1].tail for item in root.iter("li")] == ["one", "two"]
    dashes = [one.get("stroke-dasharray") for one in root.iter("path") if "line" in one.get("class").split()]
    assert dashes == [None, "7 4", None, "7 4"]


def test_bands_and_points_are_drawn_and_count_for_the_axis():
    banded = Line("a", 0, Curve(X, np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.0, 0.0]), np.array([9.0, 2.0, 3.0])))
    dotted = line(dots=(X, np.array([-5.0, 0.0, 1.0])))
    assert ends_of([banded, dotted]) == (-5, 9)
    assert len(paths(chart("t", [banded], counts(100.0), values(0.0, 9.0), "x"), "band")) == 1
    (spots,) = paths(chart("t", [dotted], counts(100.0), values(-5.0, 9.0), "x"), "dots")
    assert spots.count("h0") == 3


def test_a_curve_of_one_point_is_a_point():
    one = Line("a", 0, Curve(np.array([5.0]), np.array([1.0])))
    assert paths(chart("t", [one], counts(100.0), values(1.0, 1.0), "x"), "strong") == [f"M50.0 {HEIGHT / 2:.1f}h0"]


def test_a_curve_in_steps_holds_each_value_until_the_next():
    (path,) = paths(chart("t", [line(y=(4.0, 2.0, 0.0))], counts(100.0), values(0.0, 4.0), "x", steps=True), "line")
    assert re.fullmatch(r"M0\.0 [\d.]+(H[\d.]+V[\d.]+){2}", path)


def test_nothing_to_draw_is_nothing():
    assert chart("t", [], counts(1.0), values(0.0, 1.0), "x") == ""
    assert histogram("t", [Sample("a", 0, np.array([np.nan]), np.array([1.0]))], "x") == ""
    assert stack("a", {"x": 0.0}, {}) == ""
    assert section("title", "note", Markup(""), "") == ""
    assert ends_of([]) is None


def test_a_histogram_counts_values_by_their_weight():
    sample = Sample("a", 0, np.array([0.0, 1.0, 1.4, 3.0, np.nan]), np.array([1.0, 2.0, 1.0, 4.0, 9.0]))
    markup = histogram("lag", [sample], "versions", whole=True)
    rows = [[cell.text for cell in row] for row in drawn(markup).iter("tr")]
    assert rows == [["versions", "share"], ["0", "12.5 %"], ["1", "37.5 %"], ["3", "50.0 %"]]
    assert "lag: most often 3, 50 % of a" in markup


def test_many_whole_numbers_share_bins_and_several_samples_share_their_edges():
    many = Sample("a", 0, np.arange(1000.0), np.ones(1000))
    assert "0 to 24" in histogram("t", [many], "steps", whole=True)
    both = histogram("t", [many, Sample("b", 1, np.array([5.0]), np.ones(1))], "steps", whole=True)
    assert len(paths(both, "line")) == 4  # two of them in the legend


@given(st.lists(st.floats(0, 1e18), min_size=1, max_size=20), st.booleans())
def test_any_lengths_can_be_counted(lengths, whole):
    sample = Sample("a", 0, np.array(lengths), np.ones(len(lengths)))
    rows = list(drawn(histogram("t", [sample], "steps", whole=whole)).iter("tr"))
    assert len(rows) > 1


def test_a_stack_is_drawn_by_shares_and_said_in_words():
    markup = stack("learner", {"learn": 3.0, "publish": 1.0, "rest": 0.0}, {"learn": 1, "publish": 4, "rest": -1})
    widths = [float(one.get("width")) for one in drawn(markup).iter("rect")]
    assert widths == [750, 250]
    assert 'aria-label="learner: learn 75.0 %, publish 25.0 %"' in markup


@pytest.mark.parametrize(
    "made",
    [
        text(HOSTILE),
        element("p", HOSTILE, title=HOSTILE),
        table([HOSTILE], [[HOSTILE]], HOSTILE),
        section(HOSTILE, HOSTILE, HOSTILE),
        details(HOSTILE, HOSTILE),
        join([HOSTILE, HOSTILE]),
        broken(HOSTILE),
        chart(HOSTILE, [line(HOSTILE), line(HOSTILE, 1)], counts(100.0), values(0.0, 3.0), HOSTILE, note=HOSTILE),
        histogram(HOSTILE, [Sample(HOSTILE, 0, X, X)], HOSTILE, note=HOSTILE),
        stack(HOSTILE, {HOSTILE: 1.0}, {}),
    ],
    ids=["text", "element", "table", "section", "details", "join", "broken", "chart", "histogram", "stack"],
)
def test_no_text_becomes_markup(made):
    assert "<script" not in made
    assert "<img" not in made
    assert "\u202e" not in made
    assert "\"'" not in made
    assert "alert(1)" in made.replace("<wbr>", "")


@given(st.text())
def test_any_text_is_read_as_the_text_it_was(any_text):
    root = drawn(element("p", any_text, title=any_text))
    assert (root.text or "") == visible(any_text, LONGEST_TEXT)
    assert root.get("title") == visible(any_text)
    assert len(root) == 0


def test_what_was_made_here_is_not_escaped_again():
    assert element("p", element("b", "a & b")) == "<p><b>a &amp; b</b></p>"
