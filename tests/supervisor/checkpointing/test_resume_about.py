"""What a run's `run.json` says of its former sittings, whatever stands in it."""

import json
from types import SimpleNamespace

import pytest

from mlxe_async.supervisor.checkpointing.log_end import LogEnd
from mlxe_async.supervisor.checkpointing.resume_point import ResumePoint
from mlxe_async.supervisor.plan.provenance import about_run, versions


def point_with(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    return ResumePoint(None, None, LogEnd(0, 0, False), about=about_run(tmp_path))


def test_a_run_of_one_sitting_that_an_older_program_began_is_compared(tmp_path):
    former = {**versions(), "numpy": "1.0"}
    point = point_with(tmp_path, json.dumps({"name": "x", "versions": former, "host": {"cores": 2}}))
    assert point.former_sittings == [{"versions": former, "host": {"cores": 2}}]
    assert point.other_versions == [f"numpy 1.0 -> {versions()['numpy']}"]


def test_the_last_sitting_is_compared(tmp_path):
    sittings = [{"versions": {"numpy": "1.0"}}, {"versions": versions()}]
    assert point_with(tmp_path, json.dumps({"sittings": sittings})).other_versions == []


@pytest.mark.parametrize(
    ("text", "sittings"),
    [
        ("", []),
        ("[]", []),
        ("{}", []),
        ("[" * 100_000, []),
        ('{"sittings": 3}', [{}]),
        ('{"sittings": [3]}', []),
        ('{"sittings": [{"versions": 3}]}', [{"versions": 3}]),
        ('{"versions": []}', [{"versions": []}]),
    ],
)
def test_what_says_nothing_of_versions_is_no_change(tmp_path, text, sittings):
    point = point_with(tmp_path, text)
    assert (point.former_sittings, point.other_versions) == (sittings, [])


def test_odd_versions_are_shown_as_text(tmp_path):
    point = point_with(tmp_path, json.dumps({"versions": {**versions(), "numpy": [1, "\x1b"], "\x1bx": 3}}))
    assert all(told.isprintable() for told in point.other_versions)
    assert len(point.other_versions) == 2


@pytest.mark.parametrize(
    ("sittings", "otherwise"),
    [
        ([{"checkpoint": 4, "exact": False}], True),
        ([{"checkpoint": 5, "exact": False}, {"checkpoint": 4, "exact": True}], True),
        ([{"checkpoint": 3, "exact": False}], False),  # the fourth was made in that sitting
        ([{"checkpoint": 4, "exact": True}], False),
        ([{"checkpoint": "4", "exact": False}, {"exact": False}, {}], False),
    ],
)
def test_a_checkpoint_that_the_run_went_on_from_as_another_is_no_exact_one_any_more(tmp_path, sittings, otherwise):
    point = point_with(tmp_path, json.dumps({"sittings": sittings}))
    point.whole = SimpleNamespace(number=4)
    assert point.went_otherwise == otherwise
