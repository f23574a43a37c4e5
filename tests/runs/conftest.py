"""`live(body, **tables)`: a real run in this process while `body(run)` happens."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from command import Command
from live_runs import TESTED, LiveRun, on_loop, settings
from resume_tools import run_here


@pytest.fixture
def live(tmp_path):
    """`live(body, **tables)`: start a run, let `body(run)` happen meanwhile, return (result, run)."""

    def start(body=None, overrides=None, env=None, **tables):
        async def main():
            run = LiveRun(settings(overrides, **tables), tmp_path, env=env)
            task = asyncio.create_task(run.supervisor.run())
            try:
                if body is not None:
                    happening = asyncio.create_task(body(run))
                    await asyncio.wait([happening, task], return_when=asyncio.FIRST_COMPLETED)
                    if happening.done():
                        happening.result()
                    else:
                        await asyncio.wait([task])
                        happening.cancel()
                return await task, run
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

        return on_loop(main)

    return start


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """(result, run) of a short run under `is` with tests, which others are compared with."""
    return run_here(settings(**TESTED), tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture
def command(tmp_path):
    """`command(toml, *arguments)`: a run as a process of its own; none is left at the end."""
    started = []

    def start(toml, *arguments):
        started.append(Command(tmp_path, toml, "--no-progress", *arguments))
        return started[-1]

    yield start
    for one in started:
        one.close()
