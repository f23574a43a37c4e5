"""A Supervisor in a program that has a loop of its own."""

import asyncio
from pathlib import Path

import pytest
import uvloop

import mlxe_async
from mlxe_async.settings import load_settings
from mlxe_async.supervisor import Supervisor

PACKAGE = Path(mlxe_async.__file__).parent
SETTINGS = load_settings({"task": {"env": "CartPole-v1"}})


def test_run_sync_says_what_to_do_in_a_running_loop():
    async def in_a_notebook():
        Supervisor(SETTINGS).run_sync()

    with pytest.raises(RuntimeError, match=r"write `result = await supervisor.run\(\)` instead"):
        asyncio.run(in_a_notebook())


def test_run_sync_runs_in_a_loop_of_uvloop_and_a_callers_own_is_left_alone(monkeypatch):
    async def its_loop(_self):
        return type(asyncio.get_running_loop())

    monkeypatch.setattr(Supervisor, "run", its_loop)
    assert Supervisor(SETTINGS).run_sync() is uvloop.Loop
    assert asyncio.run(Supervisor(SETTINGS).run()) is not uvloop.Loop
    assert type(asyncio.get_event_loop_policy()) is not uvloop.EventLoopPolicy


def test_no_part_of_the_program_runs_a_loop_of_its_own_without_uvloop():
    assert not [path for path in PACKAGE.rglob("*.py") if "asyncio.run(" in path.read_text()]
