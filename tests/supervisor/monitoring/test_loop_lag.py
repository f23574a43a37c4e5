"""The supervisor looks at itself: stacks, lateness, starvation."""

import asyncio
import time
from types import SimpleNamespace

from mlxe_async.supervisor.monitoring import loop_lag


class Listening:
    def __init__(self):
        self.told = []

    def emit(self, event):
        self.told.append(event)


async def told_by(watch, log, meanwhile):
    task = asyncio.create_task(watch)
    try:
        for _ in range(1000):
            meanwhile()
            await asyncio.sleep(0.005)
            if log.told:
                return log.told[0]
    finally:
        task.cancel()
    return None


def test_the_stacks_of_all_threads_and_tasks_are_shown():
    async def waiting():
        task = asyncio.create_task(asyncio.sleep(60), name="sleeper")
        await asyncio.sleep(0)
        text = loop_lag.stacks()
        task.cancel()
        return text

    text = asyncio.run(waiting())
    assert "Thread MainThread:" in text
    assert "in waiting" in text
    assert "Task sleeper:" in text


def test_a_loop_that_was_blocked_is_told(monkeypatch):
    monkeypatch.setattr(loop_lag, "LAG_LOOK_S", 0.01)
    monkeypatch.setattr(loop_lag, "LAG_TOLD_S", 0.05)
    log = Listening()
    event = asyncio.run(told_by(loop_lag.watch_lag(log), log, lambda: time.sleep(0.1)))
    assert event.name == "loop_lag"
    assert event.seconds > 0.05


def test_it_is_told_who_is_waited_for(monkeypatch):
    monkeypatch.setattr(loop_lag, "STARVED_LOOK_S", 0.005)
    monkeypatch.setattr(loop_lag, "STARVED_TOLD_S", 0.02)
    executors = [
        SimpleNamespace(index=index, busy=busy, lost=None, process=SimpleNamespace(alive=alive))
        for index, busy, alive in ((0, True, True), (1, False, True), (2, True, False))
    ]
    staff = SimpleNamespace(
        context=SimpleNamespace(counters=SimpleNamespace(env_steps=5, updates=1)),
        memorizer=SimpleNamespace(rows_ingested=5),
        learner=SimpleNamespace(busy=False),
        executors=executors,
    )
    log = Listening()
    event = asyncio.run(told_by(loop_lag.starved(staff, log), log, lambda: None))
    assert (event.name, event.waits_for) == ("starved", "executor 0, executor 2 (being restarted)")
