"""Keys that are fine alone and not together: both are named, with their places."""

import pytest
from settings_tools import minimal, problems_of, write

from mlxe_async import Supervisor
from mlxe_async.errors import SettingsError
from mlxe_async.settings import Settings, load_settings

CONTRADICTIONS = [
    ({"schedule": {"executors": 2, "min_executors": 3}}, "schedule.min_executors", "schedule.executors"),
    ({"schedule": {"envs_per_executor": 4, "sync": "episode"}}, "schedule.sync", "schedule.envs_per_executor"),
    ({"schedule": {"kind": "istb", "memorizer": "own"}}, "schedule.memorizer", "schedule.kind"),
    ({"memory": {"capacity_rows": 200, "keep_rows": 201}}, "memory.keep_rows", "memory.capacity_rows"),
    ({"memory": {"capacity_rows": 300, "block_rows": 301}}, "memory.block_rows", "memory.capacity_rows"),
    ({"schedule": {"executors": 1}, "memory": {"keep_rows": 1025}}, "memory.keep_rows", "memory.capacity_rows"),
    ({"supervision": {"backoff_s": 6.0}}, "supervision.backoff_s", "supervision.backoff_max_s"),
    (
        {"evaluation": {"screen_steps": 600, "max_episode_steps": 500}},
        "evaluation.screen_steps",
        "evaluation.max_episode_steps",
    ),
    ({"evaluation": {"rule": "cap", "threshold": 1.0}}, "evaluation.threshold", "evaluation.rule"),
    ({"stop": {"solved": True}}, "stop.solved", "evaluation.enabled"),
    ({"stop": {"steps_after_solved": 1000}}, "stop.steps_after_solved", "stop.solved"),
    (
        {"schedule": {"kind": "oa"}, "run": {"record": True}, "learner": {"promote_best": 3}},
        "run.record",
        "learner.promote_best",
    ),
    ({"learner": {"promote_by": "steps"}}, "learner.promote_by", "learner.promote_best"),
    (
        {"schedule": {"kind": "is", "simulated_lag": 5, "max_policy_lag": 4}},
        "schedule.simulated_lag",
        "schedule.max_policy_lag",
    ),
    (
        {"schedule": {"kind": "serial", "simulated_lag": 1}, "learner": {"promote_best": 3}},
        "learner.promote_best",
        "schedule.simulated_lag",
    ),
    ({"schedule": {"kind": "is", "max_policy_lag": 4}}, "schedule.max_policy_lag", "schedule.simulated_lag"),
]


@pytest.mark.parametrize(("tables", "key", "other"), CONTRADICTIONS, ids=[key for _, key, _ in CONTRADICTIONS])
def test_both_keys_of_a_contradiction_are_named(tables, key, other):
    lines = problems_of(minimal(**tables))
    assert any(line.split(": ")[1] == key and other in line for line in lines), lines


def test_the_places_of_both_keys_are_told(tmp_path):
    text = '[task]\nenv = "A-v0"\n[schedule]\nexecutors = 2\n\nmin_executors = 3\n'
    assert problems_of(write(tmp_path, text)) == [
        "run.toml:6: schedule.min_executors: got 3, expected at most schedule.executors = 2 (run.toml:4)"
    ]


def test_all_contradictions_are_told_at_once_and_beside_other_mistakes():
    lines = problems_of(
        minimal(run={"seed": "x"}, schedule={"min_executors": 9}, stop={"solved": True}, evaluation={"rule": "capp"})
    )
    assert sorted(line.split(": ")[1] for line in lines) == [
        *("evaluation.rule", "run.seed", "schedule.min_executors", "stop.solved")
    ]


def test_a_contradiction_with_a_key_that_is_wrong_itself_is_not_told():
    [line] = problems_of(minimal(schedule={"executors": "2", "min_executors": 3}))
    assert "schedule.executors" in line


def test_agreeing_keys_are_accepted():
    load_settings(
        minimal(
            stop={"solved": True},
            evaluation={"enabled": True, "rule": "mean_return", "threshold": 195.0},
            schedule={"executors": 3, "min_executors": 3, "envs_per_executor": 2, "sync": "rollout"},
            memory={"capacity_rows": 256, "keep_rows": 256, "block_rows": 256},
        )
    )


@pytest.mark.parametrize(
    ("memory", "kept"),
    [({}, 256), ({"capacity_rows": 100, "block_rows": 50}, 100), ({"capacity_rows": 2000}, 256), ({"keep_rows": 9}, 9)],
)
def test_an_algorithm_keeps_as_many_rows_of_an_episode_as_it_recommends_and_the_memory_holds(memory, kept):
    merged = load_settings(minimal(memory=memory)).with_defaults({"memory": {"keep_rows": 256}})
    assert merged.memory.keep_rows == kept


def test_settings_made_by_hand_are_refused_before_anything_starts():
    by_hand = Settings.model_validate(minimal(schedule={"kind": "oa", "executors": 1, "min_executors": 4}))
    with pytest.raises(SettingsError, match=r"schedule.min_executors: got 4, expected at most schedule.executors = 1"):
        Supervisor(by_hand)
