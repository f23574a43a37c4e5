"""The closer look of a check is told in a few lines, also where parts of it could not be had."""

import pytest

from mlxe_async.settings import load_settings
from mlxe_async.supervisor.startup import surveying

FACTS = {"memory_kind": "rollouts", "off_policy": "corrects", "bootstraps": True}
FOUND = {
    "conformance": [["spaces", True, "fine"], ["seeding", True, "fine"], ["ends", True, "9 episodes; limit 500 steps"]],
    "step_s": 1e-5,
    "act_s": 8e-5,
    "reset_s": 2e-5,
    "update_s": 0.03,
    "updates_per_row": 1 / 512,
    "is_estimated": False,
    "rows": 512,
    "is_fast": True,
    "envs": 8,
    "steps": 32,
    "accelerator": "",
}


@pytest.fixture
def settings(monkeypatch):
    monkeypatch.setattr(surveying, "usable_cores", lambda: 2)
    return load_settings("settings/ppo-cartpole.toml")


def lines(settings, facts=FACTS, **found):
    return list(surveying.told(settings, facts, {**FOUND, **found}, 1 << 20))


def test_all_of_it_is_a_few_lines(settings):
    told = lines(settings)
    assert len(told) <= 12
    assert max(map(len, told)) <= surveying.WIDTH
    text = " ".join(" ".join(told).split())
    assert "host 2 cores" in text
    assert "no accelerator" in text
    assert "environment spaces, seeding as they should be; 9 episodes; limit 500 steps" in text
    assert "a step 10 us, a reset 20 us, the policy 80 us for 8 environments" in text
    assert "an update of 512 rows 30 ms, one in 512 rows" in text
    assert "by schedule.kind: serial 12,724, is 14,579" in text
    assert "now is" in text
    assert "tune FILE measures such changes" in text


def test_a_broken_promise_has_a_line_of_its_own(settings):
    told = lines(settings, conformance=[["seeding", False, "two resets differ"], ["ends", None, "none ended"]])
    assert "environment   NOT AS IT SHOULD BE: two resets differ" in told
    assert "environment   not certain: none ended" in told


def test_a_schedule_that_the_algorithm_cannot_learn_under_is_not_predicted(settings):
    assert " oa " not in " ".join(lines(settings, {**FACTS, "off_policy": "ignores"}))
    assert " oa " in " ".join(lines(settings))


def test_too_many_executors_and_a_gpu_that_is_not_used_are_advised_on(settings):
    many = settings.with_executors(8)
    assert "8 executors share 2 cores: schedule.executors = 2" in " ".join(" ".join(lines(many)).split())
    told = " ".join(lines(settings, accelerator="a GPU", update_s=3.0))
    assert 'try learner.device = "cuda"' in " ".join(told.split())


def test_what_failed_is_told_and_the_rest_too(settings):
    told = list(surveying.told(settings, FACTS, {"failed": "ValueError: no"}, 1))
    assert told[-1] == "costs         could not be measured: ValueError: no"
    assert told[0].startswith("host")
    assert (
        lines(settings, fault="the environment raised")[-1]
        == "costs         could not be measured: the environment raised"
    )


def test_an_estimate_and_rare_updates_are_told_as_such(settings):
    text = " ".join(" ".join(lines(settings, is_estimated=True, updates_per_row=0.0)).split())
    assert "an update of 512 rows about 30 ms, none due yet" in text
