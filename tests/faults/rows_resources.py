"""Faults of the host: memory, descriptors, disks, folders, clocks, and whoever reads what we write."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import leaks
from fault_runs import (
    PYTHON,
    PYTHON_PATH,
    SLOW_START_S,
    cpu_seconds,
    kill,
    loadable,
    loaded,
    loaded_version,
    newest_first,
    out_of_reach,
    pause,
    row,
)

ENDLESS = {"stop": {"env_steps": 10_000_000}}


def refused(case, run, code, words="", seconds=SLOW_START_S):
    got = run.ended()
    case.within(time.monotonic() - run.began, seconds, "refused")
    case.want(got == code, f"exit code {code} ({got})")
    error = run.error()
    case.want(words in error and "Traceback" not in error, f"one sentence that names {words!r} ({error[-300:]})")
    case.want(not run.all("proc_start", role="executor"), "no role was started")
    case.nothing_left(run)


@row(
    "R1",
    "two runs in one folder at once",
    "the second exits 75 naming pid, host and start of the first, which is untouched",
    ci=1,
)
def _(case):
    """--resume of the folder of a run that lives."""
    run = case.start({}, ENDLESS)
    run.reached(100)
    second = case.resumed(run)
    case.want(second.ended() == 75, f"exit code 75 ({second.ended()}: {second.error()[-200:]})")
    said = second.error().splitlines()[-1]
    began = json.loads((run.runs / "latest" / "lock").read_text())["since"]
    for name, word in (("pid", str(run.pid)), ("host", socket.gethostname()), ("start", began)):
        case.want(word in said, f"the {name} of the first is named ({said})")
    case.want(run.reached(run.steps() + 100), "the first is untouched")
    run.signal(signal.SIGTERM)
    case.want(run.ended(30) == 143, "the first ends as asked")


@row("R1.2", "two runs of one name in one second", "both work, each in a folder of its own", ci=1)
def _(case):
    """Two commands at once over one folder of runs."""
    first = case.start({}, {"stop": {"env_steps": 200}})
    second = case.start({}, {"stop": {"env_steps": 200}}, runs=first.runs)
    case.want((first.ended(), second.ended()) == (0, 0), f"both end with 0 ({first.ended()}, {second.ended()})")
    case.nothing_left(first)


@row("R2", "leftovers of an older crash", "start; own leftovers are removed, nothing foreign is touched", ci=1)
def _(case):
    """A dead lock, half-made files, segments of others in /dev/shm and /tmp."""
    run = case.start({}, {"stop": {"env_steps": 200}})
    run.ended()
    old = (run.runs / "latest").resolve()
    (old / "checkpoints" / ".staged-7").mkdir()
    (run.runs / ".staged-20200101T000000Z-old").symlink_to("nowhere")
    foreign = run.runs / "mine.txt"
    foreign.write_text("mine")
    again = case.start({}, {"stop": {"env_steps": 200}}, runs=run.runs)
    case.want(again.ended() == 0, f"exit code 0 ({again.ended()})")
    case.want(foreign.read_text() == "mine", "foreign files are untouched")
    left = [p.name for p in run.runs.rglob(".staged-*")]
    case.want(not left, f"own leftovers are removed ({left})")


@row(
    "R3",
    "the folder for shared memory is tiny, full or missing",
    "irrelevant: the memory has no name there",
    needs=("mount namespaces",),
    ci=1,
)
def _(case):
    """A tmpfs of 4 KiB over /dev/shm."""
    run = case.start(
        {}, {}, prefix=["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=4k tmpfs /dev/shm && exec "$@"', "sh"]
    )
    case.checks(run, 0)


@row(
    "R4",
    "a buffer larger than the machine, than 2^63",
    "exit 4 (or 2) with the plan per segment, before anything starts",
)
def _(case):
    """capacity_rows of 10^10 and 10^30."""
    run = case.start({}, {"memory": {"capacity_rows": 10**10}})
    refused(case, run, 4, "memory")
    run = case.start({}, {"memory": {"capacity_rows": 10**30}})
    refused(case, run, 2, "capacity_rows", seconds=2.0)


@row(
    "R5",
    "too few descriptors",
    "counted up front; the soft limit is raised to the hard one; else exit 4 with the number that would fit",
    ci=1,
)
def _(case):
    """16 executors with a soft limit of 40; a hard limit of 24; no more descriptors while an executor dies."""
    sixteen = {"schedule": {"executors": 16, "kind": "oa"}, "memory": {"capacity_rows": 5000}}
    run = case.start({}, {**sixteen, "stop": {"env_steps": 1000}}, prefix=["prlimit", "--nofile=40:4096"])
    case.want(run.ended() == 0, f"soft limit raised: exit 0 ({run.ended()}: {run.error()[-300:]})")
    run = case.start({}, sixteen, prefix=["prlimit", "--nofile=24:24"])
    refused(case, run, 4, "descriptors")
    run = case.start({}, ENDLESS)
    run.reached(200)
    allowed = resource.prlimit(run.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(run.pid, resource.RLIMIT_NOFILE, (3, allowed[1]))
    kill(run.living("mlxe-exe-0"))
    told = run.told("warning", 1, 20)
    resource.prlimit(run.pid, resource.RLIMIT_NOFILE, allowed)
    case.want(told, "that nothing can be opened is told")
    case.want(run.told("proc_start", 2, 20, process="mlxe-exe-0"), "the executor comes back once there is room")
    steps = run.steps()
    case.want(run.reached(steps + 200, 30), "steps are taken")
    case.stops(run)


@row(
    "R6",
    "no more processes may be started",
    "degrade or exit 4; nothing half started",
    needs=("root", "setpriv"),
    ci=2,
)
def _(case):
    """As a user without other processes, who may have N processes and threads in all: 1 to 10, each in turn."""
    most = case.amount((2, 5)[case.seed % 2], 1 + case.seed % 10)
    rights = "+dac_override,+dac_read_search"  # to read this interpreter and to write this folder
    user = ["setpriv", "--reuid=54321", "--clear-groups", f"--inh-caps={rights}", f"--ambient-caps={rights}"]
    run = case.start({}, {}, prefix=["prlimit", f"--nproc={most}:{most}", *user])
    got = run.ended()
    error = run.error()
    if got == 0:
        case.saw(f"{most} suffice")
        case.checks(run, 0)
        return
    case.saw(f"{most} do not suffice")
    case.want(got == 4, f"exit code 4 ({got})")
    case.want(f"may have {most} processes" in error and "ulimit -u" in error, f"the limit is named ({error[-300:]})")
    case.want("Traceback" not in error, "no traceback")
    case.nothing_left(run)


def on_small_disk(case, size, kwargs, tables, *, then=""):
    """A run whose run folder is on a tmpfs of this size; `then` runs inside the namespace beside it."""
    folder = case.folder / "disk"
    folder.mkdir()
    then = then.replace("$DISK", str(folder))
    script = f'mount -t tmpfs -o size={size} tmpfs "{folder}" && {then} exec "$@"'
    run = case.start(kwargs, tables, runs=folder / "runs", prefix=["unshare", "-m", "sh", "-c", script, "sh"])
    return run, Path(f"/proc/{run.pid}/root{folder}")


def logged(disk):
    """The log on a disk that only the run's own namespace shows."""
    with contextlib.suppress(OSError):
        return "".join(path.read_text() for path in disk.glob("runs/2*/log.jsonl"))
    return ""


def steps_told(disk):
    """How many steps the status of the run on such a disk tells of."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        return json.loads(next(disk.glob("runs/2*/status.json")).read_text())["env_steps"]
    return 0


@row(
    "R7",
    "the disk of the log is full",
    "training goes on; lines are dropped and counted; log_gap when there is room again",
    needs=("mount namespaces",),
    ci=1,
)
def _(case):
    """A tmpfs of 1 MiB; a file of 896 KiB on it is removed after a while."""
    filler = 'head -c 917504 /dev/zero > "$DISK/filler" &&'
    run, disk = on_small_disk(case, "1m", {}, {**ENDLESS, "checkpoint": {"interval_s": 0}}, then=filler)
    run.until(lambda: len(logged(disk)) > 60_000, 60)
    pause(2.0)
    with contextlib.suppress(OSError):
        (disk / "filler").unlink()
    run.until(lambda: "log_gap" in logged(disk), 20)
    case.want("log_gap" in logged(disk), "a log_gap tells how many lines are missing")
    gaps = re.findall(r'"log_gap".*?"dropped": (\d+)', logged(disk))

    def counted():
        with contextlib.suppress(OSError, StopIteration, ValueError):
            return json.loads(next(disk.glob("runs/2*/status.json")).read_text())["log_lines_dropped"]
        return 0

    missing = sum(map(int, gaps))
    case.want(run.until(lambda: counted() >= missing > 0, 10), f"status.json counts them ({counted()} of {missing})")
    run.signal(signal.SIGTERM)
    got = run.ended()
    case.want(got == 143, f"it goes on until asked to stop: exit 143 ({got}: {run.error()[-300:]})")
    case.want("Traceback" not in run.error(), "no traceback")
    said = run.error().count("cannot be written")
    case.want(said == 1, f"one warning on stderr, as it took less than a minute ({said})")


@row(
    "R8",
    "the disk of the checkpoints is full",
    "event; nothing half done is left; the old one kept; the run goes on",
    needs=("mount namespaces",),
    ci=1,
)
def _(case):
    """A network of 1 MB, so that all there is of the run takes some 6 MB, every 0.3 s, on a tmpfs of 16 MB."""
    small = {"memory": {"capacity_rows": 2000, "keep_rows": 200}}
    tables = {"algorithm": {"common": [500, 500]}, "checkpoint": {"interval_s": 0.3}, **small}
    run, disk = on_small_disk(case, "16m", {}, {**ENDLESS, **tables})
    run.until(lambda: "checkpoint_rejected" in logged(disk), 60)
    case.want("checkpoint_rejected" in logged(disk), "it is told that one could not be saved")
    gone = run.until(lambda: not list(disk.glob("runs/2*/checkpoints/.staged-*")), 5)
    case.want(gone, "nothing half done is left")
    reached = steps_told(disk)
    case.want(run.until(lambda: steps_told(disk) > reached + 500, 30), f"training goes on after {reached} steps")
    run.signal(signal.SIGSTOP)  # so that none is written or removed while they are copied
    copied = case.folder / "copied"
    shutil.copytree(next(disk.glob("runs/2*/checkpoints")), copied / "checkpoints")
    run.signal(signal.SIGCONT)
    older = newest_first(copied)
    case.want(older, "older ones are kept")
    for path in older:
        case.want(loaded(copied) == loaded_version(path), f"checkpoint {path.name} is whole ({loaded(copied)})")
        shutil.rmtree(path)
    case.saw(f"{len(older)} older checkpoints whole, {logged(disk).count('checkpoint_rejected')} rejected")
    run.signal(signal.SIGTERM)
    got = run.ended()
    case.want(got == 143, f"it goes on until asked to stop: exit 143 ({got}: {run.error()[-300:]})")


@row("R9", "the run folder cannot be made", "exit 4 before anything starts", ci=1)
def _(case):
    """A file in its place, a folder in /proc, a read-only one."""
    (case.folder / "file").write_text("mine")
    places = [str(case.folder / "file"), "/proc/nothing", "/sys/nothing"]
    for place in places:
        refused(case, case.start({}, {"run": {"dir": place}}), 4, "run folder")


@row("R10", "the run folder is removed or renamed while it runs", "told loudly; no crash; exit 4 at the end", ci=1)
def _(case):
    """The whole folder of one run, and that of another renamed, with checkpoints every 0.3 s."""
    for way in ("removed", "renamed"):
        run = case.start({}, {"stop": {"env_steps": 4000}, "checkpoint": {"interval_s": 0.3}})
        run.reached(100)
        folder = (run.runs / "latest").resolve()
        case.want(folder.exists(), "there was one")
        if way == "removed":
            while folder.exists():  # it goes on writing there meanwhile
                shutil.rmtree(folder, ignore_errors=True)
        else:
            folder.rename(folder.with_name("elsewhere"))
        got = run.ended()
        case.want(got == 4, f"{way}: exit code 4 ({got})")
        case.want("Traceback" not in run.error(), f"{way}: no traceback ({run.error()[-300:]})")
        case.want("cannot be" in run.error(), f"{way}: the loss is told on stderr")
        if way == "renamed":
            told = [json.loads(line)["event"] for line in (folder.with_name("elsewhere") / "log.jsonl").open()]
            case.want("checkpoint_rejected" in told, "renamed: so it is in the log, which is written on")
            case.want(told[-1] == "run_end", f"renamed: to the end ({told[-3:]})")
        left = leaks.processes_after(3.0)
        case.want(not left, f"{way}: no process is left ({left})")


@row(
    "R11",
    "EIO on fsync",
    "that file is given up, the next one is written anew; the run goes on",
    needs=("strace",),
    ci=1,
)
def _(case):
    """The n-th fsync of each thread fails, for n up to 10: those of run folder, settings and checkpoints."""
    for number in case.amount((1, 6), range(1, 11)):
        fails = ["-e", "trace=fsync", "-e", f"inject=fsync:error=EIO:when={number}"]
        trace = ["strace", "-f", "-qq", "-o", "/dev/null", "--seccomp-bpf", *fails]
        run = case.start({}, {**ENDLESS, "checkpoint": {"interval_s": 0.3}}, prefix=trace)
        # A failure to save is told, one to begin ends it; how soon a thread comes to its n-th fsync is chance.
        run.until(lambda run=run: run.all("checkpoint_rejected") or "Input/output error" in run.error())
        saved = len(run.all("checkpoint"))
        again = run.until(lambda run=run, saved=saved: len(run.all("checkpoint")) > saved)
        supervisor = run.until(lambda run=run: run.status().get("pid"))
        if run.process.poll() is None:  # strace, which lives as long as what it traces
            kill(supervisor, signal.SIGTERM)
        got, error = run.ended(), run.error()
        case.want(got in (143, 4), f"{number}: 143 when stopped, or 4 with a sentence ({got}: {error[-300:]})")
        case.want("Traceback" not in error, f"{number}: no traceback ({error[-300:]})")
        if got == 4:
            case.want("Input/output error" in error.splitlines()[-1], f"{number}: the cause is told ({error[-300:]})")
        else:
            told = run.all("checkpoint_rejected") or "Input/output error" in error
            case.want(told, f"{number}: the failure is told ({error[-300:]})")
            case.want(again and loadable(run), f"{number}: the next checkpoint is saved and can be loaded")
        case.saw(f"{number}: exit {got}")
        case.nothing_left(run)


@row(
    "R12",
    "SIGKILL between fsync and rename, and between rename and fsync of the folder",
    "the old one or the new one, never neither",
    needs=("strace",),
    ci=3,
)
def _(case):
    """strace kills the supervisor at its n-th rename or fsync."""
    call, number = (("rename", 4), ("fsync", 5), ("fsync", 8), ("rename", 6))[case.seed % 4]
    trace = [
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        f"trace={call}",
        "-e",
        f"inject={call}:signal=KILL:when={number}",
    ]
    run = case.start(
        {}, {**ENDLESS, "checkpoint": {"interval_s": 0.2}, "stop": {"seconds": 10.0, "env_steps": None}}, prefix=trace
    )
    got = run.ended()
    case.want(got == 137, f"it was killed ({got})")
    case.saw(f"{len(run.all('checkpoint'))} checkpoints")
    if run.all("checkpoint"):
        case.want(loadable(run), "a checkpoint can be loaded")
    case.want(not leaks.processes_after(5.0), "no process is left")


@row("R13", "whoever reads our output stops reading", "lines are dropped; the run goes on to its end")
def _(case):
    """stderr (with a line of progress every few ms) is a full pipe that nobody reads."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 4096)
    os.set_blocking(write, True)
    run = case.start({}, {"logs": {"ledger_interval_s": 0.1}}, stderr=write, stdout=write)
    os.close(write)
    got = run.ended(60)
    os.close(read)
    case.want(got == 0, f"exit code 0 although nobody reads ({got})")
    if got is not None:
        case.reads(run, 0)


@row("R14", "run | head -1", "goes on to its end; exit 0; no message of a broken pipe")
def _(case):
    """stdout and stderr are a pipe whose reader goes away."""
    read, write = os.pipe()
    run = case.start({}, {}, stderr=write, stdout=write)
    os.close(write)
    run.told("proc_start")
    os.close(read)
    got = run.ended()
    case.want(got == 0, f"exit code 0 ({got})")
    case.reads(run, 0)
    case.nothing_left(run)


@row("R15", "the log is rotated or deleted", "a new one within 5 s; cut to nothing it goes on", ci=1)
def _(case):
    """Renamed away; then deleted; then truncated."""
    run = case.start({}, ENDLESS)
    run.reached(100)
    log = (run.runs / "latest").resolve() / "log.jsonl"
    for number, spoil in enumerate(
        (lambda: log.rename(log.with_suffix(".old")), log.unlink, lambda: os.truncate(log, 0))
    ):
        spoil()
        appeared = run.until(lambda: log.exists() and log.stat().st_size > 0, 12.0)
        case.want(appeared, f"way {number}: the log goes on")
    run.signal(signal.SIGTERM)
    case.want(run.ended(30) == 143, f"exit code 143 ({run.ended()})")
    case.want('"run_end"' in log.read_text(), "its end is told")


# Found by Python as each process of a run starts; its wall clock jumps when the file is there.
CLOCK = """
import datetime, os, time
FILE, OFFSET = os.environ["JUMP_FILE"], float(os.environ["JUMP_S"])
real, real_ns = time.time, time.time_ns
time.time = lambda: max(0.0, real() + OFFSET * os.path.exists(FILE))
time.time_ns = lambda: max(0, real_ns() + int(OFFSET) * 10**9 * os.path.exists(FILE))
class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)
datetime.datetime = Clock
"""
JUMPS_S = (3600, -3600, 20 * 365 * 86400, -(10**12), -1)


@row("R16", "the wall clock jumps", "no false kill; nothing is overwritten; order by number", ci=2)
def _(case):
    """Python's clock, an hour forth or back, by 20 years, to 1970 or by a second, in a run and for the next one."""
    jump_s = JUMPS_S[case.seed % len(JUMPS_S)]
    (shim := case.folder / "shim").mkdir()
    (shim / "sitecustomize.py").write_text(CLOCK)
    path = os.pathsep.join(filter(None, [str(shim), PYTHON_PATH, os.environ.get("PYTHONPATH", "")]))
    clock = {"PYTHONPATH": path, "JUMP_FILE": str(shim / "jump"), "JUMP_S": str(jump_s), "TZ": "Europe/Berlin"}
    often = {**ENDLESS, "checkpoint": {"interval_s": 0.3}}
    run = case.start({}, often, env=clock)
    case.want(run.reached(200), "the run began")
    saved = len(run.all("checkpoint"))
    (shim / "jump").touch()
    case.want(run.reached(run.steps() + 600), f"the run went on ({run.steps()} steps)")
    case.want(run.told("checkpoint", saved + 2), "checkpoints are saved as before")
    first = (run.runs / "latest").resolve()
    case.stops(run)
    lines = run.lines()
    case.want(not run.all("hang") and not run.all("proc_exit", expected=False), "nobody was killed for it")
    clocks = [line["mono_ns"] for line in lines]
    case.want(clocks == sorted(clocks), "the order of the lines is that of the monotonic clock")
    walls = [dt.datetime.fromisoformat(line["ts"]).timestamp() for line in lines]
    seen_s = max(abs(b - a) for a, b in itertools.pairwise(walls))
    case.want(abs(jump_s) == 1 or seen_s > 3500, f"the jump is seen in the lines' times ({seen_s:.0f} s)")
    names = [line["number"] for line in run.all("checkpoint")]
    case.want(names == sorted(set(names)), "checkpoints are named by a counter")
    case.want(loadable(run), "the newest can be loaded")
    before = (first / "log.jsonl").read_bytes()
    again = case.start({}, {}, env=clock, runs=run.runs)
    case.checks(again, 0)
    case.want((run.runs / "latest").resolve() != first, "the next run has a folder of its own")
    case.want((first / "log.jsonl").read_bytes() == before, "the first one's log is untouched")
    case.saw(f"by {jump_s:,} s, seen as {seen_s:,.0f}")


BUSY = "import os\nos.nice(19)\nfor _ in range(7):\n  os.fork()\nwhile True:\n  pass\n"  # 2^7 processes


@row("R17", "no processor time: 200 busy processes on one core", "at most one false restart an hour", ci=1)
def _(case):
    """256 endless loops and all of the run's processes at nice 19 on one core, for 40 s (hour: ten minutes)."""
    run = case.start({}, ENDLESS)
    case.want(run.reached(200), "the run began")
    core = {min(os.sched_getaffinity(0))}
    family = [run.pid, *{line["pid"] for line in run.all("proc_start")}]
    for pid in family:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - numbers, no paths
            os.sched_setaffinity(int(thread), core)
            os.setpriority(os.PRIO_PROCESS, int(thread), 19)
        with contextlib.suppress(FileNotFoundError):  # where sessions share a core, theirs gets as little
            Path(f"/proc/{pid}/autogroup").write_text("19")
    busy = [
        subprocess.Popen([PYTHON, "-c", BUSY], start_new_session=True, preexec_fn=lambda: os.sched_setaffinity(0, core))
        for _ in range(2)
    ]
    began, steps, cpu = time.monotonic(), run.steps(), sum(map(cpu_seconds, family))
    try:
        pause(case.amount(40, 600))
    finally:
        for each in busy:
            os.killpg(each.pid, signal.SIGKILL)
            each.wait()
    starved_s = time.monotonic() - began
    made = run.steps() - steps
    ended = [line["sentence"] for line in run.all("proc_exit")]
    if not case.want(not ended, f"all of them still live ({ended[:2]})"):
        return
    share = (sum(map(cpu_seconds, family)) - cpu) / starved_s
    case.want(share < 0.2, f"they had next to no processor time ({share:.1%} of a core)")
    case.want(run.reached(run.steps() + 600), f"the run went on ({run.steps()} steps)")
    case.stops(run, seconds=10.0)
    false = [line["sentence"] for line in run.all("proc_exit", expected=False)]
    case.want(not false, f"nobody was killed for it ({false[:2]})")
    case.saw(f"{len(family)} processes had {share:.1%} of a core for {starved_s:.0f} s; {made} steps")


@row("R18", "locale C, paths that are no UTF-8, with a line break; names of 255 bytes", "works, or exit 2")
def _(case):
    """Folders of runs with such names, LC_ALL=C, and long names."""
    for number, name in enumerate(("with\nline break", "caf\udce9", "sp ace 'quote\" $HOME", "ü" * 60)):
        if number % 2 != case.seed % 2:
            continue
        folder = case.folder / name
        folder.mkdir()
        run = case.start({}, {"stop": {"env_steps": 200}}, env={"LC_ALL": "C"}, folder=folder)
        got = run.ended()
        case.want(
            got in (0, 2) and "Traceback" not in run.error(), f"{name!r}: works or exit 2 ({got}: {run.error()[-99:]})"
        )
        case.nothing_left(run)
    run = case.start({}, {"run": {"name": "x" * 255}})
    case.want(run.ended() == 2 and "name" in run.error(), f"a name of 255 letters: exit 2 ({run.ended()})")


out_of_reach("R19", "24 h of work", "no growth of memory, descriptors, threads, log", "scale day")
