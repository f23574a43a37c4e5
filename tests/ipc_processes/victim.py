"""A supervisor to be killed: `python victim.py HERE running|importing|weak` prints the pids below it and waits.

First comes the nursery's, then its guard's, then those of two children and of what they have started. Under `weak` the
kernel makes nobody a subreaper.
"""

import asyncio
import json
import sys

import uvloop
import weak_guard

from mlxe_async.ipc.processes import nursery as nursery_module
from mlxe_async.ipc.processes.nursery import Nursery
from mlxe_async.ipc.processes.process import Process


async def main(here, moment):
    nursery = Nursery()
    if moment == "weak":
        nursery_module.PROGRAM = weak_guard.NO_ADOPTION
    await nursery.start(["slow_to_import"] if moment == "importing" else ["numpy"], [here])
    while nursery.pid == nursery.guard_pid:  # noqa: ASYNC110 - nobody else wants to hear of it
        await asyncio.sleep(0.005)
    pids = [nursery.pid, nursery.guard_pid]
    if moment != "importing":
        for i in range(2):
            process = Process(lambda: nursery, f"mlxe-exe-{i}", "entries:echo", lambda epoch: {})
            await process.start()
            pids.append(process.pid)
            for verb, args in (("grandchildren", {}), ("grandchildren", {"session": True}), ("daemon", {})):
                pids.append((await process.call(verb, **args))["pid"])
    print(json.dumps(pids), flush=True)
    await asyncio.Event().wait()


uvloop.run(main(*sys.argv[1:]))
