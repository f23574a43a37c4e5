"""The supervisor looks at itself: stacks, lateness, starvation, descriptors."""

import asyncio
import resource
import time
from types import SimpleNamespace

import pytest

from mlxe_async.errors import ResourceError
from mlxe_async.settings import load_settings
from mlxe_async.supervisor import Supervisor, descriptors, watching

SETTINGS = load_settings({"task": {"env": "CartPole-v1"}, "schedule": {"executors": 16}})


class Listening:
    def __init__(self):
        self.told = []

    def emit(self, event):
        self.told.append(event)


async def told_by(watch, story, meanwhile):
    task = asyncio.create_task(watch)
    try:
        for _ in range(1000):
            meanwhile()
            await asyncio.sleep(0.005)
            if story.told:
                return story.told[0]
    finally:
        task.cancel()
    return None


def test_the_stacks_of_all_threads_and_tasks_are_shown():
    async def waiting():
        task = asyncio.create_task(asyncio.sleep(60), name="sleeper")
        await asyncio.sleep(0)
        text = watching.stacks()
        task.cancel()
        return text

    text = asyncio.run(waiting())
    assert "Thread MainThread:" in text
    assert "in waiting" in text
    assert "Task sleeper:" in text


def test_a_loop_that_was_blocked_is_told(monkeypatch):
    monkeypatch.setattr(watching, "LAG_LOOK_S", 0.01)
    monkeypatch.setattr(watching, "LAG_TOLD_S", 0.05)
    story = Listening()
    event = asyncio.run(told_by(watching.watch_lag(story), story, lambda: time.sleep(0.1)))
    assert event.name == "loop_lag"
    assert event.seconds > 0.05


def test_it_is_told_who_is_waited_for(monkeypatch):
    monkeypatch.setattr(watching, "STARVED_LOOK_S", 0.005)
    monkeypatch.setattr(watching, "STARVED_TOLD_S", 0.02)
    executors = [
        SimpleNamespace(index=index, busy=busy, lost=None, process=SimpleNamespace(alive=alive))
        for index, busy, alive in ((0, True, True), (1, False, True), (2, True, False))
    ]
    staff = SimpleNamespace(
        crew=SimpleNamespace(counters=SimpleNamespace(env_steps=5, updates=1)),
        memorizer=SimpleNamespace(rows_ingested=5),
        learner=SimpleNamespace(busy=False),
        executors=executors,
    )
    story = Listening()
    event = asyncio.run(told_by(watching.starved(staff, story), story, lambda: None))
    assert (event.name, event.waits_for) == ("starved", "executor 0, executor 2 (being restarted)")


@pytest.mark.parametrize(
    ("limits", "raised"), [((10_000, 10_000), None), ((resource.RLIM_INFINITY,) * 2, None), ((40, 10_000), True)]
)
def test_the_soft_limit_is_raised_only_if_it_is_too_low(monkeypatch, limits, raised):
    calls = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: calls.append(new))
    descriptors.reserve_descriptors(SETTINGS)
    assert len(calls) == bool(raised)
    assert all(40 < soft < hard == 10_000 for soft, hard in calls)


def test_too_few_descriptors_are_refused_with_the_number_that_would_fit(monkeypatch):
    used = descriptors.used_now()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, used + 100))
    with pytest.raises(ResourceError, match=r"schedule.executors = 16 needs \d+ descriptors.* = \d+ would fit"):
        descriptors.reserve_descriptors(SETTINGS)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, used))
    with pytest.raises(ResourceError, match="not even one executor fits"):
        descriptors.reserve_descriptors(SETTINGS)


def test_run_sync_says_what_to_do_in_a_running_loop():
    async def in_a_notebook():
        Supervisor(SETTINGS).run_sync()

    with pytest.raises(RuntimeError, match=r"write `result = await supervisor.run\(\)` instead"):
        asyncio.run(in_a_notebook())
