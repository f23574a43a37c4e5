"""Pictures of a study can be read: each is whole, and nothing global is touched."""

import dataclasses
import xml.etree.ElementTree as ET

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure
from study_runs import story, write_run

from mlxe_async.analysis.outcomes import failure, outcome
from mlxe_async.analysis.pictures import _whisker, all_pictures, bars, learning_curves, survival_curves, timelines
from mlxe_async.analysis.study import group


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    runs = [outcome(write_run(base, story("is", seed, solved_at=4 + 2 * seed))) for seed in range(3)]
    runs += [outcome(write_run(base, story("oa <1>", 0, solved_at=6), folder="20260101T000009Z-oa"))]
    return group([*runs, failure("oa <1>", 4, "killed", 3.0)])


@pytest.fixture(scope="module")
def pictures(groups):
    """Drawn once; matplotlib keeps the files of its fonts open for good."""
    before = dict(mpl.rcParams)
    drawn = all_pictures(groups)
    assert dict(mpl.rcParams) == before
    return drawn


@pytest.mark.long
def test_every_picture_is_written_as_svg_and_png(pictures):
    assert [picture.name for picture in pictures] == ["learning", "survival", "bars", "timeline"]
    for picture in pictures:
        assert picture.png.startswith(b"\x89PNG")
        ET.fromstring(picture.svg)  # noqa: S314 - made here


def test_without_anything_to_show_there_is_no_picture(tmp_path):
    lost = {"x": [failure("x", 1, "killed", 1.0)]}
    assert learning_curves(lost) is bars(lost) is timelines(lost) is None
    free = group([outcome(write_run(tmp_path, story("free", 1, solved_at=None, tested=False)))])
    assert bars(free) is survival_curves(free) is None


def test_an_interval_that_reaches_to_failure_is_an_arrow():
    axes = Figure().subplots()
    assert _whisker(axes, 0, [1.0, 2.0, 4.0]) == 4
    assert axes.lines[-1].get_marker() == "None"
    assert _whisker(axes, 0, [1.0, 2.0, 4.0, float("inf")]) > 4
    assert axes.lines[-1].get_marker() == ">"


@pytest.mark.long
def test_captions_say_what_solved_means_and_how_curves_are_made(pictures):
    told = {picture.name: picture.caption for picture in pictures}
    assert "3 tested versions in a row passed (D1c)" in told["survival"]
    assert "of more than 200 episodes" in told["learning"]
    assert all("D1c" not in picture.title for picture in pictures)


@pytest.mark.long
def test_published_figures_are_no_easier_where_the_goal_is_theirs(groups):
    assert "easier goal than D1c" in bars(groups).caption
    goal = {n: [dataclasses.replace(r, facts={**r.facts, "episode_steps": 9}) for r in g] for n, g in groups.items()}
    assert "easier" not in bars(goal).caption


@pytest.mark.long
@pytest.mark.usefixtures("pictures")
def test_the_published_figures_stand_only_beside_their_task(tmp_path, groups):
    assert "8 cores" in bars(groups).caption
    theirs = bars(group([outcome(write_run(tmp_path, story("is", 1, env="Acrobot-v1")))]))
    assert "8 cores" not in theirs.caption
