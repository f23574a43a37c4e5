"""Faults between the command and the first step: limits of the host, own modules, what lies about from before."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from fault_runs import newest_first, row

ENDLESS = {"stop": {"env_steps": 10_000_000}}


@row(
    "B1",
    "more executors than a channel takes requests for, than a message takes descriptors",
    "all start; the soft limit on descriptors is raised; else exit 4 with the number that fits",
    ci=1,
)
def _(case):
    """64 under a soft limit of 256 and 100 under 512 (hour: 300, day: 1,024); then 64 under a hard limit of 256."""
    rows = {"memory": {"capacity_rows": 20_000, "lane_slots": 4}}
    for count, soft in ((64, 256), (case.amount(100, 300, 1024), 512)):
        run = case.start(
            {},
            {**rows, **ENDLESS, "schedule": {"kind": "oa", "executors": count}},
            prefix=["prlimit", f"--nofile={soft}:16384"],
        )
        case.want(run.told("proc_start", count, 600, role="executor"), f"{count} executors start")
        case.want(run.reached(count * 2, 300), f"steps are taken ({run.steps()})")
        deaths = run.all("proc_exit", expected=False)
        case.want(not deaths, f"nobody dies ({deaths[:1]})")
        case.stops(run, seconds=5.0 + count / 20)
        case.saw(f"{count} executors under a soft limit of {soft}")
    tables = {**rows, "schedule": {"kind": "oa", "executors": 64}}
    run = case.start({}, tables, prefix=["prlimit", "--nofile=256:256"])
    got, error = run.ended(), run.error()
    case.want(got == 4 and "would fit" in error, f"exit 4 with the number that fits ({got}: {error[-300:]})")
    case.want("Traceback" not in error, "no traceback")
    case.nothing_left(run)


@row("B2", "ulimit -n of 8, 12, 16, 24, 48, hard, then soft", "exit 4 with the limit; the soft one is raised", ci=1)
def _(case):
    """`prlimit --nofile`, and a run with one executor."""
    one = {"stop": {"env_steps": 200}, "schedule": {"kind": "oa", "executors": 1}}
    for most in (8, 12, 16, 24, 48):
        run = case.start({}, one, prefix=["prlimit", f"--nofile={most}:{most}"])
        got, said = run.ended(), run.error().splitlines()
        case.want(got == 4, f"{most}: exit code 4 ({got})")
        case.want(len(said) == 1 and f"{most} (ulimit -Hn)" in said[0], f"{most}: one line with the limit ({said})")
        case.nothing_left(run)
    for soft in (8, 20):
        run = case.start({}, one, prefix=["prlimit", f"--nofile={soft}:4096"])
        case.want(run.ended() == 0, f"soft limit of {soft}: exit code 0 ({run.ended()}: {run.error()[-300:]})")


BAD_UPDATE = """
import os
from mlxe_async.algorithms.mlxe.paper import MLxE


class Mine(MLxE):
    def update(self, batch, clock):
        raise ValueError(f"the loss of {os.getpid()} has a wrong shape")
"""


@row(
    "B3", "an own algorithm whose update always raises; one that cannot be imported", "exit 3 and why; --check: 2", ci=1
)
def _(case):
    """The run is given up at once; then `--check`; then modules with an error in line 3."""
    (case.folder / "mine.py").write_text(BAD_UPDATE)
    (case.folder / "broken.py").write_text("import math\n\nimport no_such_package\n")
    own = {"run": {"name": "own", "python_path": [str(case.folder)]}, "stop": {"env_steps": 10**6}}
    learning = {"min_updates": 1, "batch": 16}
    tables = {**own, "algorithm": {"name": "mine:Mine", **learning}, "schedule": {"kind": "is", "executors": 1}}
    run = case.start({}, tables)
    case.checks(run, 3, last="update raised in the first phase of learning")
    case.want("has a wrong shape" in run.error(), f"it says why ({run.error()[-300:]})")
    file = str(run.folder / "settings.toml")
    checked = case.start({}, tables, program=["-m", "mlxe_async", file.replace("/0/", "/1/"), "--check"])
    case.checks(checked, 2, has_log=False)
    case.want(f"{case.folder}/mine.py:8" in checked.error(), f"--check names the line ({checked.error()[-300:]})")
    run = case.start({}, {**own, "algorithm": {"name": "broken:Mine"}})
    case.checks(run, 2, has_log=False)
    case.want(f"{case.folder}/broken.py:3" in run.error(), f"the line of the import ({run.error()[-300:]})")


TWICE = """
import asyncio, sys
from mlxe_async import Supervisor, load_settings

async def main():
    supervisor = Supervisor(load_settings(sys.argv[1]))
    await supervisor.run()
    try:
        await supervisor.run()
    except RuntimeError as error:
        print(error)

asyncio.run(main())
"""


@row("B4", "the supervisor's name; a second run() of one Supervisor", "mlxe-sup; one sentence", ci=1)
def _(case):
    """`/proc/PID/comm` of a run, and a program that embeds one."""
    run = case.start({}, ENDLESS)
    run.reached(50)
    name = Path(f"/proc/{run.pid}/comm").read_text().strip()
    case.want(name == "mlxe-sup", f"it is called mlxe-sup ({name})")
    case.stops(run)
    twice = case.driver(TWICE, {"stop": {"env_steps": 200}})
    case.want(twice.ended() == 0, f"exit code 0 ({twice.ended()}: {twice.error()[-300:]})")
    said = twice.output().splitlines()
    case.want(len(said) == 1 and "make another one" in said[0], f"one sentence ({said})")
    case.nothing_left(twice)


@row("B5", "--resume RUN --check; a run killed before any checkpoint", "which, which not and why; begun anew", ci=1)
def _(case):
    """A stopped run is looked at, whole, with its newest checkpoint cut off, with all; then one without any goes on."""
    chosen = {"stop": {"env_steps": 10_000_000}, "checkpoint": {"interval_s": 0.3}}
    run = case.start({}, chosen)
    run.told("checkpoint", 3)
    case.stops(run)
    newest = newest_first((run.runs / "latest").resolve())
    whole = [path for path in newest if "files" in json.loads((path / "manifest.json").read_text())["body"]]
    log = run.log.read_bytes()
    looked = case.resumed(run, "--check")
    case.want(looked.ended() == 0, f"exit code 0 ({looked.ended()}: {looked.error()[-300:]})")
    case.want(f"goes on from  checkpoint {whole[0].name}:" in looked.output(), f"which ({looked.output()[-300:]})")
    (whole[0] / "manifest.json").write_bytes(b"")
    looked = case.resumed(run, "--check")
    said = looked.output() if looked.ended() == 0 else looked.error()
    case.want(f"goes on from  checkpoint {whole[1].name}:" in said, f"the one before ({said[-300:]})")
    case.want(f"spoilt        checkpoint {whole[0].name}:" in said and "lost    " in said, f"why ({said[-300:]})")
    for path in newest:
        (path / "manifest.json").write_bytes(b"")
    looked = case.resumed(run, "--check")
    case.want(looked.ended() == 3, f"all spoilt: exit code 3 ({looked.ended()}: {looked.error()[-300:]})")
    case.want(all(f"{path.name} (" in looked.error() for path in newest), f"all are named ({looked.error()[-300:]})")
    case.want(run.log.read_bytes() == log, "the log is untouched")
    unsaved = case.start({}, {**ENDLESS, "schedule": {"kind": "is"}})
    unsaved.reached(50)
    unsaved.signal(signal.SIGKILL)
    unsaved.ended()
    again = case.resumed(unsaved, "--set", "stop.env_steps=300")
    case.checks(again, 0)
    case.want("it begins anew" in again.error(), f"it says so ({again.error()[-300:]})")
