"""Faults of the supervisor and of whoever starts it: signals, embedding, closed streams, crash storms."""

from __future__ import annotations

import ast
import os
import pty
import random
import signal
import time
from pathlib import Path

import killed_at_once
import leaks
from fault_runs import PYTHON, ROOT, cpu_seconds, kill, loadable, parent_of, pause, row

ENDLESS = {"stop": {"env_steps": 10_000_000}}


def stopped_by(case, number, code, *, group):
    run = case.start({"pause_s": 0.001}, ENDLESS)
    run.reached(200)
    began = time.monotonic()
    (os.killpg if group else os.kill)(run.pid, number)
    run.ended(60)
    case.within(time.monotonic() - began, 5.0, "stops")
    case.checks(run, code)
    case.want(run.all("checkpoint"), "a checkpoint is saved")
    case.want(run.all("stop_requested", reason=signal.Signals(number).name), "it is told what was asked")


@row("S1", "SIGINT, also to the whole group", "drain, checkpoint, summary; exit 130 within 5 s", quick=True)
def _(case):
    """To the process, and to its group as a terminal does."""
    stopped_by(case, signal.SIGINT, 130, group=case.seed % 2 == 0)


@row("S2", "SIGINT twice, thrice", "ends within 1 s of the second; no orphan; the old checkpoint intact")
def _(case):
    """While an executor hangs in a step with a limit of 60 s."""
    run = case.start(
        {"fault": "sleep", "step": 200, "executor": -1},
        {**ENDLESS, "schedule": {"step_timeout_s": 60.0}, "checkpoint": {"interval_s": 0.3}},
    )
    run.told("checkpoint")
    run.until(lambda: run.steps() >= 200, 10)
    run.signal(signal.SIGINT)
    pause(0.1)
    began = time.monotonic()
    run.signal(signal.SIGINT)
    if case.seed % 2:
        pause(0.1)
        run.signal(signal.SIGINT)
    run.ended(30)
    case.within(time.monotonic() - began, 1.0, "ends after the second")
    case.checks(run, 130)
    case.want(loadable(run), "a checkpoint can be loaded")


@row("S3", "SIGTERM", "as S1, exit 143")
def _(case):
    """To the process, and to its group."""
    stopped_by(case, signal.SIGTERM, 143, group=case.seed % 2 == 0)


@row("S4", "SIGHUP", "exit 129 after an orderly stop")
def _(case):
    """To the process, and to its group."""
    stopped_by(case, signal.SIGHUP, 129, group=case.seed % 2 == 0)


@row(
    "S4.2",
    "SIGHUP under nohup; the terminal goes away",
    "an ignored SIGHUP stays ignored; writing to a dead terminal never raises",
    ci=1,
)
def _(case):
    """Started with SIGHUP ignored, its stderr on a terminal whose other end is closed."""
    master, slave = pty.openpty()
    run = case.start({}, {"stop": {"env_steps": 1500}}, prefix=["nohup"], stderr=slave)
    os.close(slave)
    run.reached(100)
    run.signal(signal.SIGHUP)
    os.close(master)
    case.want(run.ended() == 0, f"exit code 0 ({run.ended()})")
    case.reads(run, 0)
    case.nothing_left(run)


@row(
    "S5",
    "SIGKILL of the supervisor at a random time",
    "all children gone and the memory back within 1 s; a checkpoint can be loaded",
    ci=3,
    quick=True,
)
def _(case):
    """Also while it starts."""
    chance = random.Random(case.seed)  # noqa: S311 - chooses moments
    run = case.start({}, {**ENDLESS, "checkpoint": {"interval_s": 0.3}})
    if case.seed % 3:
        run.told(("weights", "proc_start")[case.seed % 2])
    pause(chance.random())
    run.signal(signal.SIGKILL)
    run.ended()
    began = time.monotonic()
    left = leaks.processes_after(10.0)
    case.within(time.monotonic() - began, 1.0, "all is gone")
    case.want(not left, f"no process is left ({left})")
    if run.all("checkpoint"):
        case.want(loadable(run), "a checkpoint can be loaded")


@row(
    "S5.2",
    "the start after a SIGKILL of the supervisor",
    "reports previous_run_died, removes what was half done, resumes",
    ci=1,
)
def _(case):
    """--resume of the killed run, with something half done in its folder."""
    run = case.start({}, {**ENDLESS, "checkpoint": {"interval_s": 0.3}})
    run.told("checkpoint")
    run.signal(signal.SIGKILL)
    run.ended()
    folder = (run.runs / "latest").resolve()
    (folder / "checkpoints" / ".staged-99").mkdir()
    (folder / ".staged-status.json").write_text("half")
    steps = run.steps()
    again = case.resumed(run, "--set", f"stop.env_steps={steps + 1000}")
    case.checks(again, 0)
    case.want(not list(folder.rglob(".staged-*")), "what was half done is removed")
    for told in again.all("run_resume")[:1]:
        case.want(told["previous_run_died"], "it is told that the previous run died")
    case.want(again.all("run_resume"), "it resumes")
    case.want((run.runs / "latest").resolve() == folder, "in the same folder")


@row("S6", "SIGKILL of the whole process group at once", "as S5, by the parent-death signals")
def _(case):
    """killpg of the command's group."""
    run = case.start({}, ENDLESS)
    run.told("weights", 2)
    os.killpg(run.pid, signal.SIGKILL)
    run.ended()
    began = time.monotonic()
    left = leaks.processes_after(10.0)
    case.within(time.monotonic() - began, 1.0, "all is gone")
    case.want(not left, f"no process is left ({left})")


@row("S7", "SIGSTOP of the supervisor for longer than every limit, then SIGCONT", "no false kill")
def _(case):
    """Stopped for 6 s (30 s at larger scales) with limits of 2 s."""
    run = case.start({}, {**ENDLESS, "schedule": {"step_timeout_s": 2.0, "update_timeout_s": 2.0}})
    run.reached(200)
    run.signal(signal.SIGSTOP)
    pause(case.amount(6.0, 30.0))
    run.signal(signal.SIGCONT)
    case.want(run.reached(run.steps() + 200), "it goes on")
    case.proves(run)
    case.stops(run)
    case.want(not run.all("proc_restart"), f"no restart ({[e['reason'] for e in run.all('proc_restart')]})")


@row("S8", "SIGQUIT, SIGUSR1", "stacks and status are dumped, the run goes on")
def _(case):
    """One of them to the supervisor."""
    run = case.start({}, ENDLESS)
    run.reached(100)
    run.signal((signal.SIGQUIT, signal.SIGUSR1)[case.seed % 2])
    goes_on = case.want(run.reached(run.steps() + 200), f"it goes on (exit code {run.process.poll()})")
    if goes_on:
        dumped = run.error() + "".join(p.read_text() for p in (run.runs / "latest" / "crash").glob("*sup*"))
        case.want("Thread" in dumped or "stack" in dumped, "the stacks are dumped")
        case.stops(run)


PATCHED = """
import asyncio, sys, time
from mlxe_async.supervisor import run as module
{patch}
from mlxe_async.cli import main
sys.exit(main([sys.argv[1], "--no-progress"]))
"""


@row("S9", "an unhandled exception in a task of the supervisor", "orderly stop, exit 3, traceback in the log")
def _(case):
    """The task that writes the status (or the ledger) raises after a while."""
    name = ("keep_status", "keep_ledger")[case.seed % 2]
    patch = f"""
async def broken(self):
    await asyncio.sleep(1.0)
    raise ZeroDivisionError("a mistake of ours")
from mlxe_async.supervisor.monitoring.periodic import Periodic

Periodic.{name} = broken
"""
    run = case.driver(PATCHED.format(patch=patch), ENDLESS)
    got = run.ended(60)
    case.want(got == 3, f"exit code 3 ({got})")
    case.want("a mistake of ours" in run.error().splitlines()[-1], "the last line names the cause")
    case.reads(run, got)
    told = [line for line in run.lines() if "Traceback" in str(line) and "a mistake of ours" in str(line)]
    case.want(told, "the traceback is in the log")
    case.want(run.all("checkpoint"), "a checkpoint is saved")
    case.nothing_left(run)


@row("S10", "the supervisor's loop is blocked for 3 s", "no false kill; the lag is told")
def _(case):
    """A listener of the log sleeps 3 s, with limits of 1 s."""
    patch = """
began = module.Supervisor._start
async def start(self):
    await began(self)
    slept = []
    def slow(line):
        if line["event"] == "weights" and line["version"] >= 3 and not slept:
            slept.append(1)
            time.sleep(3.0)
    self.subscribe(slow)
module.Supervisor._start = start
"""
    run = case.driver(
        PATCHED.format(patch=patch),
        {**ENDLESS, "schedule": {"step_timeout_s": 1.0, "update_timeout_s": 1.0, "kind": case.kind}},
    )
    case.want(run.reached(600), "it goes on")
    case.stops(run)
    case.want(not run.all("proc_restart"), "no restart")
    case.want(run.all("loop_lag"), "the lag of the loop is told")


EMBEDDED = """
import asyncio, gc, os, sys, threading, tempfile
import uvloop
from mlxe_async import Supervisor, load_settings
FILE = sys.argv[1]
def fds(): return len(os.listdir("/proc/self/fd"))
{body}
"""


def embedded(case, body, says="fine", tables=None):
    run = case.driver(EMBEDDED.format(body=body), tables or {"stop": {"env_steps": 300}})
    code = run.ended()
    case.want(code == 0 and says in run.output(), f"the program ends well ({code}: {run.error()[-300:]})")
    case.nothing_left(run)
    case.saw(run.output().strip().replace("\n", ", ")[-200:])


@row(
    "S11",
    "wait_for, cancel, cancel twice, cancel while it starts",
    "CancelledError after a clean stop within 5 s; nothing left",
)
def _(case):
    """At chance moments of start, work and stop, one after the other in a loop of its own program."""
    limit = 5.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    embedded(
        case,
        f"""
import random
chance = random.Random({case.seed})
def held():
    gc.collect()
    return fds(), threading.active_count()
async def cancelled(after, times, pause):
    task = asyncio.create_task(Supervisor(load_settings(FILE, {{"stop.env_steps": 10**7}})).run())
    await asyncio.sleep(after)
    began = asyncio.get_running_loop().time()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(pause)
    try:
        await task
    except asyncio.CancelledError:
        took = asyncio.get_running_loop().time() - began
    else:
        sys.exit(f"no CancelledError, cancelled after {{after:.2f}} s")
    if took > {limit}:
        sys.exit(f"{{took:.1f}} s to stop, cancelled after {{after:.2f}} s")
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return took
    sys.exit(f"a child is left, cancelled {{times}} times after {{after:.2f}} s")
async def main():
    await cancelled(6.0, 1, 0)
    before, longest = held(), 0.0
    moments = [(0.0, 1, 0), (0.0, 2, 0), (0.05, 1, 0), (6.0, 2, 0.01)]
    moments += [(chance.uniform(0, 3), 1 + n % 2, chance.uniform(0, 0.5)) for n in range({case.amount(3, 10)})]
    for moment in moments:
        longest = max(longest, await cancelled(*moment))
    try:
        await asyncio.wait_for(Supervisor(load_settings(FILE, {{"stop.env_steps": 10**7}})).run(), 3)
    except TimeoutError:
        if held() != before:
            sys.exit(f"descriptors and threads: {{before}} before, {{held()}} after")
        print(f"{{len(moments)}} times, at most {{longest:.1f}} s, fine")
uvloop.run(main())
""",
    )


@row(
    "S12",
    "twenty runs one after the other, two at once, in one process",
    "all work; descriptors, threads and memory do not grow",
    ci=1,
)
def _(case):
    """Six one after the other at ci scale, then two at once."""
    embedded(
        case,
        f"""
async def one(name):
    return await Supervisor(load_settings(FILE, {{"run.name": name}})).run()
def held():
    gc.collect()
    lines = open("/proc/self/status").read().splitlines()
    kb = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return fds(), threading.active_count(), kb / 1024
async def main():
    for name in ("first", "second"):
        await one(name)
    before = held()
    for number in range({case.amount(4, 18)}):
        await one(f"number-{{number}}")
    await asyncio.gather(one("left"), one("right"))
    grown = [now - was for now, was in zip(held(), before)]
    print("fine" if grown[:2] == [0, 0] and grown[2] < 5 else "grown", grown[:2], f"{{grown[2]:.1f}} MB")
uvloop.run(main())
""",
    )


@row("S13", "run() in a thread that is not the main one", "works, without signal handlers", ci=1)
def _(case):
    """asyncio.run in a thread."""
    embedded(
        case,
        """
results = []
def work():
    results.append(asyncio.run(Supervisor(load_settings(FILE)).run()).exit_code)
thread = threading.Thread(target=work)
thread.start()
thread.join()
print("fine" if results == [0] else results)
""",
    )


@row("S14", "run() inside a running loop", "await run() works; run_sync() says what to do instead", ci=1)
def _(case):
    """On asyncio and uvloop."""
    embedded(
        case,
        """
async def main():
    result = await Supervisor(load_settings(FILE)).run()
    try:
        Supervisor(load_settings(FILE)).run_sync()
    except AttributeError:
        print("there is no run_sync")
    except RuntimeError as error:
        print("fine" if "await" in str(error) else error)
asyncio.run(main())
uvloop.run(main())
""",
    )


@row(
    "S15",
    "PID 1 in a container; SIGCHLD ignored and signals blocked by the parent",
    "dispositions and mask are reset; no zombies",
    needs=("mount namespaces",),
)
def _(case):
    """unshare --pid as the first process, or a parent that ignores SIGCHLD and blocks everything."""
    if case.seed % 2 == 0:
        run = case.start({}, {}, prefix=["unshare", "--pid", "--fork", "--mount-proc"])
        case.checks(run, 0)
        return
    parent = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); os.execv(sys.argv[1], sys.argv[1:])"
    )
    run = case.start({"fault": "kill", "step": 100}, ENDLESS, prefix=[PYTHON, "-c", parent])
    case.want(run.told("proc_start", 2, process="mlxe-exe-0"), "deaths are seen and mended")
    case.stops(run)


@row("S16", "stdin, stdout, stderr closed", "opens /dev/null in their place; works")
def _(case):
    """One of them, or all three."""
    which = ("<&- >&- 2>&-", "<&-", ">&-", "2>&-")[case.seed % 4]
    run = case.start({}, {}, prefix=["sh", "-c", f'exec "$@" {which}', "sh"])
    case.want(run.ended() == 0, f"exit code 0 with {which} ({run.ended()}: {run.error()[-200:]})")
    case.reads(run, 0)
    case.nothing_left(run)


@row("S17", "torch and threads in the embedding process", "never a fork without exec outside the nursery", ci=1)
def _(case):
    """torch is imported and used in threads first; the package's source is searched for forks."""
    embedded(
        case,
        """
import torch
torch.set_num_threads(2)
(torch.rand(500, 500) @ torch.rand(500, 500)).sum().item()
async def main():
    return await Supervisor(load_settings(FILE)).run()
print("fine" if uvloop.run(main()).exit_code == 0 else "not")
""",
    )
    found = []
    for path in Path(ROOT, "mlxe_async").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_fork = isinstance(node, ast.Attribute) and node.attr in ("fork", "forkpty")
            by_name = isinstance(node, ast.keyword) and node.arg == "preexec_fn"
            if (is_fork and getattr(node.value, "id", "") == "os") or by_name:
                found.append(path.name)
    # The command that compares has no threads; its child must learn of its death before it is exec'd.
    known = {"guard.py", "nursery_main.py", "faults.py", "studying.py"}
    case.want(set(found) <= known, f"only the guard and the nursery fork ({set(found)})")


@row(
    "S18",
    "all executors killed together again and again",
    "back-off spreads restarts; no fork bomb; the ledger balances",
    ci=1,
)
def _(case):
    """Both executors every second for 8 s (60 s at larger scales)."""
    run = case.start({}, ENDLESS)
    run.reached(100)
    before = cpu_seconds(run.pid)
    seconds = case.amount(8, 60)
    for _ in range(seconds):
        for name in ("mlxe-exe-0", "mlxe-exe-1"):
            kill(run.living(name))
        pause(1.0)
    used = cpu_seconds(run.pid) - before
    spawned = len(run.all("proc_start", role="executor"))
    case.want(used <= seconds, f"less than one core for it ({used:.1f} s)")
    case.want(spawned <= 2 * seconds + 4, f"no more spawns than kills ({spawned})")
    if run.process.poll() is None:
        case.want(run.reached(run.steps() + 100), "it goes on")
        case.proves(run)
        case.stops(run)
    else:
        case.checks(run, 3)
    case.saw(f"{spawned} spawns")


def nursery_of(run):
    """Process id of the run's nursery."""
    return next((pid for pid, name in leaks.processes().items() if name == "mlxe-nursery"), None)


@row("S19", "SIGSTOP of the nursery, then SIGTERM or SIGINT", "ends within 5 s, as S3; nothing left", ci=2)
def _(case):
    """By itself, and with an executor that has just been killed."""
    run = case.start({}, ENDLESS)
    run.reached(200)
    os.kill(nursery_of(run), signal.SIGSTOP)
    if case.seed % 2:
        kill(run.living("mlxe-exe-0"))
    number = (signal.SIGTERM, signal.SIGINT)[case.seed // 2 % 2]
    began = time.monotonic()
    case.stops(run, number, 128 + number)
    case.saw(f"{time.monotonic() - began:.1f} s")


@row(
    "S20",
    "everybody killed in one moment: supervisor, nursery, learner, memorizer, executors",
    "nothing is left: no simulator of an environment, no shared memory, no temporary file",
    ci=1,
)
def _(case):
    """By SIGKILL to whoever fits a word, as pkill does it, in three ways; simulators run in own sessions, too."""
    killed_at_once.play(case, case.amount(len(killed_at_once.WAYS), 200))


@row("S21", "SIGKILL of the guard above the nursery", "all come back through another one, which is told", ci=1)
def _(case):
    """Found as the nursery's parent."""
    run = case.start({}, ENDLESS)
    run.reached(200)
    guard = parent_of(nursery_of(run))
    kill(guard)
    case.want(run.told("proc_exit", process="mlxe-nursery"), "the death is told")
    for told in run.all("proc_exit", process="mlxe-nursery")[:1]:
        case.want(f"the guard (pid {guard})" in told["sentence"], f"as the guard's ({told['sentence']})")
    case.want(run.reached(run.steps() + 200), "it goes on")
    case.proves(run)
    case.stops(run)
