"""Pairs of algorithm and schedule: refused before anything is started, or told once."""

import live_runs
import pytest

from mlxe_async.errors import SettingsError


@pytest.mark.parametrize(
    ("algorithm", "schedule", "said"),
    [
        ("unsound:Uncorrected", {"kind": "oa"}, 'schedule.kind: got "oa", where rollouts may be 8 versions old'),
        ("unsound:MonteCarlo", {"kind": "ia"}, 'schedule.unfinished: got "keep", which cuts episodes in the middle'),
    ],
)
def test_a_pair_that_is_not_sound_is_refused_before_anything_is_started(
    live, monkeypatch, tmp_path, algorithm, schedule, said
):
    monkeypatch.setitem(live_runs.QUICK, "algorithm", {"name": algorithm})
    with pytest.raises(SettingsError) as refused:
        live(schedule=schedule)
    (line,) = refused.value.problems
    assert said in line
    assert list(tmp_path.iterdir()) == []


def test_an_ablation_is_told_once_and_runs(live):
    result, run = live(algorithm={"correction": "none"}, stop={"env_steps": 200})
    assert result.reason == "env_steps"
    (told,) = [line for line in run.all("warning") if "does not correct" in line["message"]]
    assert told["count"] == 1


def test_what_is_sound_is_told_of_nothing(live):
    _, run = live(schedule={"kind": "ia"}, stop={"env_steps": 200})
    assert run.all("warning") == []
