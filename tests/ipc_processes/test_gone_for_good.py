"""A process that is gone for good: its callers leave the loop its turn, and what it printed stays within its limit."""

import asyncio
import contextlib

import pytest
from conftest import house

from mlxe_async.errors import ProcessDied, RunFailed
from mlxe_async.ipc.processes.nursery_main import OUTPUT_LIMIT
from mlxe_async.ipc.processes.restarts import RestartPolicy

TRIES = 50


async def goes_on_trying(process, turns):
    """What the handles of a run do: a call that failed is made again. Bounded, so that a test can fail."""
    for _ in range(TRIES):
        with contextlib.suppress(ProcessDied):
            await process.call("echo")
        if turns.is_set():
            return True
    return False


@pytest.mark.parametrize("way", ["stopped", "given up"])
def test_a_caller_that_tries_for_ever_lets_the_others_have_their_turn(run_both, way):
    async def main():
        async with house() as made:
            process = await made.process(policy=RestartPolicy(limit=0))
            if way == "stopped":
                await process.stop()
            else:
                with contextlib.suppress(ProcessDied):
                    await process.call("die_in_call")
                with pytest.raises(RunFailed):
                    await process.watcher
            turns = asyncio.Event()
            trying = asyncio.create_task(goes_on_trying(process, turns))
            await asyncio.sleep(0)
            turns.set()
            assert await trying

    run_both(main)


def test_what_a_process_printed_last_is_kept_within_its_limit_too(run, tmp_path):
    async def main():
        async with house() as made:
            output = tmp_path / "output"
            process = await made.process(stdout_path=str(output))
            await process.call("printing", text="begin")
            with output.open("ab") as file:
                file.write(b"y" * (OUTPUT_LIMIT + 1))
            await process.stop()
            assert output.stat().st_size == 0
            assert (tmp_path / "output.1").stat().st_size == OUTPUT_LIMIT

    run(main)
