"""The settings file that advice comes to: what was asked for stands in it as it was."""

from mlxe_async.advice import settings_file


def values(written, threshold=475.0):
    tables = settings_file(written, "ppo", (), steps=1000, threshold=threshold)
    return {table: {key: value for key, (value, _) in keys.items()} for table, keys in tables.items()}


def test_what_is_written_wins():
    found = values({"stop": {"seconds": 60.0}, "evaluation": {"interval_steps": 777, "episodes": 7}})
    assert found["stop"] == {"seconds": 60.0, "env_steps": 1000, "solved": True}
    assert found["evaluation"] == {"interval_steps": 777, "episodes": 7, "enabled": True}


def test_who_wants_no_end_and_no_tests_has_none():
    assert values({"stop": {"solved": False}})["stop"] == {"solved": False, "env_steps": 1000}
    found = values({"evaluation": {"enabled": False}})
    assert found["evaluation"] == {"enabled": False}
    assert found["stop"] == {"env_steps": 1000}
