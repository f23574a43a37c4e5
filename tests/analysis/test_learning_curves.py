"""Learning curves on a page are drawn from logs: the mean over seeds, and a band from the lowest to the highest."""

import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from log_lines import episode, folder_of, run_end, run_start, short_run
from pages import ROOT

sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))
import learning_curves

SVG = "{http://www.w3.org/2000/svg}"


def lines(*returns):
    ended = [episode(n, value, env_steps=10 * n) for n, value in enumerate(returns, 1)]
    return [run_start(), *ended, run_end(99)]


def test_each_place_has_the_mean_of_the_last_episodes(monkeypatch):
    monkeypatch.setattr(learning_curves, "LAST", 2)
    found = learning_curves.curve_of(lines(1.0, 3.0, 8.0), np.array([5.0, 10.0, 25.0, 40.0]))
    assert np.isnan(found[0])
    assert found[1:].tolist() == [1.0, 2.0, 5.5]
    with pytest.raises(ValueError, match="got one without"):
        learning_curves.curve_of([run_start()], np.array([1.0]))


def test_bands_go_from_the_lowest_seed_to_the_highest(monkeypatch):
    runs = np.array([[np.nan, 2.0, -4.0], [1.0, 4.0, 8.0]])
    drawn = ET.fromstring(learning_curves.picture({"a < b": runs}, np.array([0.0, 5.0, 10.0]), "x"))  # noqa: S314 - ours
    band, line = [one.get("d") for one in drawn.iter(f"{SVG}path") if one.get("stroke") != "#ddd"][:2]
    places = [float(place.split()[1]) for place in band.strip("MZ").split("L")]
    middle = [float(place.split()[1]) for place in line.strip("M").split("L")]
    assert len(places) == 4  # of the two places that both seeds have
    assert middle[0] == pytest.approx((places[0] + places[3]) / 2, abs=0.1)
    assert middle[1] == pytest.approx((places[1] + places[2]) / 2, abs=0.1)
    assert any(one.text == "a < b (2)" for one in drawn.iter(f"{SVG}text"))


@pytest.mark.parametrize(("low", "high"), [(0.0, 500.0), (-1600.0, 0.0), (0.0, 20_000.0), (-3.0, 7.0)])
def test_axes_have_some_round_numbers(low, high):
    ticks = learning_curves.ticks_of(low, high)
    assert 4 <= len(ticks) <= 12
    assert low <= min(ticks)
    assert max(ticks) <= high


def test_runs_that_there_are_become_a_picture(tmp_path, monkeypatch, capsys):
    folder = folder_of(tmp_path / "runs", short_run())
    out = tmp_path / "a.svg"
    monkeypatch.setattr(sys, "argv", ["learning_curves.py", "--out", str(out), f"ppo={folder},{folder}"])
    learning_curves.main()
    assert ET.parse(out).getroot().tag == f"{SVG}svg"  # noqa: S314 - a picture of our own
    assert str(out) in capsys.readouterr().out


def test_the_page_shows_the_picture_and_the_command():
    page = (ROOT / "settings" / "README.md").read_text()
    assert "](curves.svg)" in page
    assert "python tests/benchmarks/learning_curves.py" in page
    assert learning_curves.PICTURE.stat().st_size < 150_000
