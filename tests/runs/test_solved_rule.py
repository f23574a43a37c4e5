"""When a run calls its task solved if its file says nothing of how: by the task's own threshold, or not at all."""

import pytest

from mlxe_async.errors import SettingsError

STILL = {"name": "mlxe", "min_updates": 1, "learning_rate": 1e-9, "learning_rate_min": 0.0, "batch": 16}
CLIFF = {
    "env": "CliffWalking-v1",  # registered without a threshold and without a limit
    "wrappers": ["gymnasium.wrappers:FlattenObservation"],
    "max_episode_steps": 50,
}
SERIAL = {"kind": "serial", "executors": 1}
ASKED = {"enabled": True, "episodes": 3, "passes": 2}


@pytest.mark.long
def test_a_policy_that_never_learned_is_not_solved(live):
    result, run = live(
        task={"env": "MountainCar-v0", "max_episode_steps": None},
        algorithm=STILL,
        schedule=SERIAL,
        stop={"env_steps": 800, "solved": True},
        evaluation=ASKED,
    )
    assert (result.reason, result.solved, result.exit_code) == ("env_steps", False, 0)
    tests = run.all("evaluation")
    assert tests
    assert all((line["passed"], line["return_mean"]) == (False, -200) for line in tests)


def test_being_solved_is_refused_where_nothing_says_what_that_is(live):
    with pytest.raises(SettingsError) as refused:
        live(
            task=CLIFF,
            algorithm=STILL,
            schedule=SERIAL,
            stop={"env_steps": 800, "solved": True},
            evaluation=ASKED,
        )
    [line] = refused.value.problems
    assert line == (
        "settings: stop.solved: got true, expected false: CliffWalking-v1 has no threshold of its own that says when "
        'it is solved; set evaluation.threshold = RETURN, or evaluation.rule = "cap" and evaluation.max_episode_steps '
        "= STEPS"
    )


def test_a_task_without_a_threshold_is_tested_and_not_judged(live):
    result, run = live(
        task=CLIFF,
        algorithm=STILL,
        schedule=SERIAL,
        stop={"env_steps": 150},
        evaluation=ASKED,
    )
    assert result.exit_code == 0
    tests = run.all("evaluation")
    assert tests
    assert all(line["passed"] is None and 3 <= line["steps"] <= 150 and line["streak"] == 0 for line in tests)


def test_a_mean_return_to_reach_must_come_from_somewhere(live):
    with pytest.raises(SettingsError, match=r"evaluation\.threshold: got nothing, expected a number with"):
        live(task=CLIFF, algorithm=STILL, schedule=SERIAL, evaluation={**ASKED, "rule": "mean_return"})


def test_tests_shorter_than_the_threshold_was_registered_for_are_told(live):
    _, run = live(
        schedule=SERIAL, stop={"env_steps": 50}, evaluation={**ASKED, "max_episode_steps": 300, "screen_steps": 300}
    )
    assert any("may be out of reach" in line["message"] for line in run.all("warning"))


def test_a_cap_is_odd_where_episodes_that_last_are_bad_ones(live):
    _, run = live(
        task={"env": "MountainCar-v0"},
        algorithm=STILL,
        schedule=SERIAL,
        stop={"env_steps": 50},
        evaluation={**ASKED, "rule": "cap"},
    )
    assert any("leave the rule out" in line["message"] for line in run.all("warning"))
