"""A Supervisor in a program that has a loop of its own."""

import asyncio

import pytest

from mlxe_async.settings import load_settings
from mlxe_async.supervisor import Supervisor

SETTINGS = load_settings({"task": {"env": "CartPole-v1"}})


def test_run_sync_says_what_to_do_in_a_running_loop():
    async def in_a_notebook():
        Supervisor(SETTINGS).run_sync()

    with pytest.raises(RuntimeError, match=r"write `result = await supervisor.run\(\)` instead"):
        asyncio.run(in_a_notebook())
