"""File descriptors are counted before a run begins, and the soft limit is raised where that suffices."""

import resource

import pytest

from mlxe_async.errors import ResourceError
from mlxe_async.settings import load_settings
from mlxe_async.supervisor.startup import host_limits

SETTINGS = load_settings({"task": {"env": "CartPole-v1"}, "schedule": {"executors": 16}})


@pytest.mark.parametrize(
    ("limits", "raised"), [((10_000, 10_000), None), ((resource.RLIM_INFINITY,) * 2, None), ((40, 10_000), True)]
)
def test_the_soft_limit_is_raised_only_if_it_is_too_low(monkeypatch, limits, raised):
    calls = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: calls.append(new))
    host_limits.reserve_descriptors(SETTINGS)
    assert len(calls) == bool(raised)
    assert all(40 < soft < hard == 10_000 for soft, hard in calls)


def test_too_few_descriptors_are_refused_with_the_number_that_would_fit(monkeypatch):
    used = host_limits.used_now()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, used + 100))
    with pytest.raises(ResourceError, match=r"schedule.executors = 16 needs \d+ descriptors.* = \d+ would fit"):
        host_limits.reserve_descriptors(SETTINGS)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, used))
    with pytest.raises(ResourceError, match="not even one executor fits"):
        host_limits.reserve_descriptors(SETTINGS)
