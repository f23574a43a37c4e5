"""Pictures of the page on schedules are made of what logs tell, and the page names the commands that make them."""

import sys
import xml.etree.ElementTree as ET

import pytest
from log_lines import folder_of, generate, learn, memorize, publish, run_start, short_run
from pages import ROOT

sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))
import architecture
import timelines

SVG = "{http://www.w3.org/2000/svg}"


def parsed(text):
    return ET.fromstring(text)  # noqa: S314 - a picture of our own


def test_each_phase_of_a_log_is_a_bar_in_the_lane_of_its_process():
    lanes = timelines.bars_of([run_start(), generate(100, 400, 1, 9, 9), memorize(400, 410, 9), learn(410, 500, 9, 1)])
    assert list(lanes) == ["executor 1", "learner"]
    assert lanes["executor 1"] == [(0.0, pytest.approx(0.3), "generate")]
    assert [name for _, _, name in lanes["learner"]] == ["memorize", "learn"]


def test_bars_lie_where_they_were_within_the_moment_that_is_drawn():
    lanes = {"executor 0": [(0.0, 1.0, "generate"), (1.5, 2.5, "generate"), (9.0, 9.5, "generate")]}
    drawn = parsed(timelines.picture({"a < b": (lanes, (0.5, 2.5))}))
    bars = [one for one in drawn.iter(f"{SVG}rect") if one.get("fill") and one.get("y") == "34"]
    scale = (timelines.WIDTH - timelines.LEFT) / 2
    expected = [(timelines.LEFT, 0.5 * scale), (timelines.LEFT + scale, scale)]
    assert [(float(bar.get("x")), float(bar.get("width"))) for bar in bars] == [pytest.approx(one) for one in expected]
    assert any(one.text == "a < b" for one in drawn.iter(f"{SVG}text"))


def test_runs_that_there_are_become_a_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = folder_of("runs", [*short_run(), publish(99, 100, 3)])
    timelines.main(["--out", "a.svg", f"oa={folder}"])
    drawn = parsed((tmp_path / "a.svg").read_text())
    assert {one.get("fill") for one in drawn.iter(f"{SVG}rect")} >= {timelines.COLOURS["generate"]}
    with pytest.raises(ValueError, match="without phases"):
        timelines.bars_of([run_start()])
    capsys.readouterr()


def test_what_a_run_consists_of_is_drawn_with_its_counts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    architecture.main([str(folder_of("runs", short_run())), "--out", "a.svg"])
    capsys.readouterr()
    said = [one.text for one in parsed((tmp_path / "a.svg").read_text()).iter(f"{SVG}text")]
    assert {"executor 0", "90 steps", "lane 0", "90 rows kept", "1 updates", "2 versions", "1 tests"} <= set(said)
    with pytest.raises(ValueError, match="without its first line"):
        architecture.counts_of([publish(1, 2, 1)])


@pytest.mark.parametrize("picture", [timelines.PICTURE, architecture.PICTURE], ids=lambda path: path.stem)
def test_the_page_shows_it_beside_its_command_and_it_is_small(picture):
    page = (picture.parent / "README.md").read_text()
    assert f"]({picture.name})" in page
    assert f"python tests/benchmarks/{picture.stem}.py" in page
    assert parsed(picture.read_text()).tag == f"{SVG}svg"
    assert picture.stat().st_size < 50_000


def test_the_picture_of_the_page_has_every_schedule_that_it_names():
    drawn = parsed(timelines.PICTURE.read_text())
    said = " ".join(one.text for one in drawn.iter(f"{SVG}text"))
    assert all(title in said for title in timelines.KINDS.values())
