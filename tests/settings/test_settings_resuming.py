"""Which settings may be others when a run goes on: every key has its class, and the difference is told."""

from typing import get_args

import pytest
from settings_tools import minimal

from mlxe_async.settings import Settings, load_settings
from mlxe_async.settings.resuming import CLASSES, changes


def keys_of_the_schema():
    for table, field in Settings.model_fields.items():
        if table == "algorithm":
            yield table, "name"
            continue
        for model in get_args(field.annotation) or (field.annotation,):
            for key in model.model_fields:
                yield table, key


def test_every_key_has_a_class_and_no_class_is_of_a_key_that_is_no_more():
    assert set(CLASSES) == set(keys_of_the_schema())


@pytest.mark.parametrize(
    ("override", "value", "kind"),
    [
        ("logs.progress", False, "cosmetic"),
        ("stop.env_steps", 77, "cosmetic"),
        ("schedule.executors", 3, "allowed"),
        ("schedule.kind", "oa", "allowed"),
        ("algorithm.learning_rate", 0.5, "allowed"),
        ("algorithm.policy", [8], "forbidden"),
        ("task.env", "Acrobot-v1", "forbidden"),
        ("algorithm.name", "ppo", "forbidden"),
        ("run.seed", 9, "forbidden"),
        ("task.observe", ["image"], "forbidden"),
        ("task.action_mask", True, "forbidden"),
    ],
)
def test_a_change_is_found_with_its_class_and_both_values(override, value, kind):
    old = load_settings(minimal())
    new = load_settings(minimal(), {override: value})
    (change,) = changes(old, new, forbidden=["policy"])
    assert (".".join(change.path), change.kind, change.new) == (override, kind, value)
    assert str(change).startswith(f"{override}: ")


def test_the_same_settings_have_no_changes_and_secrets_are_not_compared():
    settings = load_settings(minimal())
    assert list(changes(settings, settings)) == []
    first, second = (load_settings(minimal(), {"task.kwargs": {"api_key": key}}) for key in ("one", "two"))
    assert list(changes(first, second)) == []
