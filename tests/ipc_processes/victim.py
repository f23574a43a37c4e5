"""A supervisor to be killed: `python victim.py HERE [process|preload]` prints the pids below it and waits."""

import asyncio
import json
import sys

import uvloop

from mlxe_async.ipc.nursery import Nursery
from mlxe_async.ipc.process import Process


async def main(here, moment):
    nursery = Nursery()
    await nursery.start(["numpy"] if moment == "running" else ["slow_to_import"], [here])
    pids = [nursery.pid]
    if moment == "running":
        for i in range(2):
            process = Process(lambda: nursery, f"mlxe-exe-{i}", "entries:echo", lambda epoch: {})
            await process.start()
            pids.append(process.pid)
            for verb, args in (("grandchildren", {}), ("grandchildren", {"session": True}), ("daemon", {})):
                pids.append((await process.call(verb, **args))["pid"])
    print(json.dumps(pids), flush=True)
    await asyncio.Event().wait()


uvloop.run(main(*sys.argv[1:]))
