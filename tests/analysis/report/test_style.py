"""Texts and curves stand out from the paper, light and dark, by the contrast that the W3C's guidelines ask for."""

import re

import pytest

from mlxe_async.analysis.report.chart import COLOURS
from mlxe_async.analysis.report.speed import FILLS, FIRST_WAIT, WAITS
from mlxe_async.analysis.report.style import STYLE

LIGHT, DARK = (dict(re.findall(r"--(\w+): (#\w+)", part)) for part in STYLE.split("@media", 2)[:2])
TEXT, CURVE = 4.5, 3.0


def luminance(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_texts_and_curves_stand_out(theme):
    for paper in (theme["paper"], theme["row"]):
        assert contrast(theme["ink"], paper) >= TEXT
        assert contrast(theme["faint"], paper) >= TEXT
    for colour in [*(f"c{number}" for number in range(COLOURS)), "bad", "edge"]:
        assert contrast(theme[colour], theme["paper"]) >= CURVE, colour


def test_every_class_of_a_curve_and_of_an_area_has_its_colour():
    for number in range(COLOURS):
        assert f".line.c{number}, " in STYLE
        assert f".band.c{number}, .bar.c{number}, .f{number} " in STYLE
    assert FILLS == FIRST_WAIT == COLOURS
    for number in range(WAITS):
        assert f".f{FIRST_WAIT + number} " in STYLE
    assert set(LIGHT) == set(DARK)
