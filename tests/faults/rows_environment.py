"""Faults of environments: they raise, die, hang, answer wrongly, and do things to their process."""

from __future__ import annotations

import importlib.util
import itertools
import os
import random
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import leaks
from fault_runs import PYTHON, PYTHON_PATH, TESTS, between, kill, memory_group, memory_kb, pause, row
from misbehaving.faults import HANGING, WITHOUT_STACK

MANY_FAULTS = {"supervision": {"env_fault_limit": 100_000}}
MANY_DEATHS = {"supervision": {"restart_limit": 10_000, "backoff_s": 0.02}}


def wants_errors(case, run, count, *, restarts=0):
    """So many faults are told, each with where and when, and no process was restarted because of them."""
    errors = run.all("env_error")
    case.want(len(errors) == count, f"{count} env_error events (there are {len(errors)})")
    case.want(
        all(e["seed"] is not None and e["episode"] is not None and e["phase"] for e in errors),
        "each env_error tells phase, episode and seed",
    )
    case.want(
        len(run.all("proc_restart")) == restarts, f"{restarts} restarts (there are {len(run.all('proc_restart'))})"
    )
    return errors


def told(count):
    """Until so many faults of environments are told."""
    return lambda run: len(run.all("env_error")) >= count


def came_back(times):
    """Until executor 0 has come back so often and plays again."""
    return lambda run: len(seconds_to_come_back(run)) >= times


def back_in_time(case, run, times=1):
    back = seconds_to_come_back(run)
    if case.want(len(back) >= times, f"executor 0 plays again after each of {times} deaths ({len(back)})"):
        case.within(max(back), 2.0, "executor 0 produces again")
        case.saw(f"produces again after {max(back):.2f} s")


def seconds_to_come_back(run, index=0):
    """For each restart of an executor: seconds from its death to its successor's first rollout."""
    lines = run.lines()
    deaths = [line for line in lines if line["event"] == "proc_exit" and not line["expected"] and line["idx"] == index]
    works = [line for line in lines if line["event"] == "phase" and line["role"] == "executor" and line["idx"] == index]
    found = []
    for death in deaths:
        after = [line for line in works if line["seq"] > death["seq"]]
        if after:
            found.append(between(death, after[0]))
    return found


CANNOT_BE_MADE = """
import gymnasium
from misbehaving import chaos
from mlxe_async.testing.whereabouts import whereabouts

class CannotBeMade(chaos.ChaosEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        here = whereabouts()
        if here.role == "executor" and here.index == 0 and chaos.LIFE.makes in (2, 3):
            raise RuntimeError("the port is taken")

gymnasium.register("CannotBeMade-v0", CannotBeMade)
"""


@row(
    "E1",
    "step raises once",
    "caught and told; environment rebuilt in place within 1 s; no process restarted",
    quick=True,
)
def _(case):
    """ValueError at the 100th step of executor 0."""
    run = case.survives({"fault": "raise", "step": 100}, until=told(1))
    errors = wants_errors(case, run, 1)
    if errors:
        error = errors[0]
        case.want("motor is too hot" in error["message"] + error["trace"], "message and traceback")
        after = [p for p in run.all("phase", phase="generate", idx=0) if p["seq"] > error["seq"]]
        if case.want(after, "the executor plays on"):
            case.within(between(error, after[0]), 1.0, "plays on")
    aborted = run.status().get("episodes_aborted")
    case.want(aborted == 1, f"episodes_aborted 1 (is {aborted})")


@row(
    "E1.2",
    "step raises once, and then the constructor does",
    "tried again, told and counted; no process restarted",
    ci=1,
)
def _(case):
    """ValueError at the 100th step of executor 0, whose environment can then only be made at the third attempt."""
    (modules := case.folder / "modules").mkdir()
    (modules / "cannot_be_made.py").write_text(CANNOT_BE_MADE)
    tables = {"run": {"python_path": [str(modules)]}, "task": {"env": "cannot_be_made:CannotBeMade-v0"}}
    run = case.survives({"fault": "raise", "step": 100}, tables, until=told(3))
    errors = wants_errors(case, run, 3)
    case.want([e["phase"] for e in errors] == ["step", "make", "make"], "each is told as what it is")
    case.want(all("the port is taken" in e["trace"] for e in errors[1:]), "with its traceback")
    aborted = run.status().get("episodes_aborted")
    case.want(aborted == 1, f"episodes_aborted 1 (is {aborted})")


@row(
    "E2",
    "step raises always",
    "at most 6 rebuilds, then the executor is given up within 30 s; the run goes on with the rest",
)
def _(case):
    """ValueError at every step of executor 0 of 2, min_executors 1."""
    run = case.survives({"fault": "raise", "step": 1, "every": 1, "times": 0, "lives": 0}, steps=300)
    errors = run.all("env_error", idx=0)
    case.want(len(errors) <= 6, f"at most 6 rebuilds ({len(errors)})")
    lost = [line for line in run.all("warning") if "given up" in line["message"]]
    case.want(lost, "it is told that executor 0 is given up")
    if errors and lost:
        case.want(between(errors[0], lost[0]) <= 30, "decided within 30 s")


@row("E2.2", "step raises always, and all executors are needed", "checkpoint, exit 3, the last line names the fault")
def _(case):
    """As E2 with min_executors 2."""
    run = case.start(
        {"fault": "raise", "step": 400, "every": 1, "times": 0, "lives": 0},
        {"schedule": {"min_executors": 2}, "stop": {"env_steps": 10_000_000}},
    )
    case.want(run.ended(60) is not None, "it ends by itself")
    case.checks(run, 3, last="motor is too hot")
    case.want(run.all("checkpoint"), "a checkpoint is saved")


@row("E3", "reset raises now and then", "as E1, counted apart; a thousand resets are survived")
def _(case):
    """One reset in ten of all executors raises; settings as they are by default."""
    steps = case.amount(4000, 4000, 20_000)
    run = case.survives(
        {"fault": "raise", "where": "reset", "probability": 0.1, "times": 0, "lives": 0, "executor": -1}, steps=steps
    )
    errors = run.all("env_error", phase="reset")
    case.want(errors, "errors in reset are told as such")
    case.saw(f"{len(errors)} failed resets, {run.steps()} steps")


@row("E4", "exceptions that cannot be shown, pickled or held", "strings only, at most 16 KiB; nothing hangs")
def _(case):
    """Unpicklable, two-argument, unprintable, its own cause, 10 MB, endless recursion, forged lines."""
    kinds = [
        "raise unpicklable", "raise two arguments", "raise unprintable", "raise its own cause", "raise huge",
        "raise recursion", "raise forged",
    ]  # fmt: skip
    run = case.survives({"fault": kinds, "step": 30, "every": 30}, MANY_FAULTS, until=told(len(kinds)))
    errors = wants_errors(case, run, len(kinds))
    longest = max((len(e["trace"].encode()) for e in errors), default=0)
    case.want(longest <= 16 * 1024, f"no trace is longer than 16 KiB (longest {longest})")
    case.saw(f"longest trace {longest} bytes")


@row(
    "E5",
    "SystemExit, KeyboardInterrupt, GeneratorExit, CancelledError, StopIteration",
    "environment faults, no stop requests",
)
def _(case):
    """One of each in executor 0."""
    kinds = ["raise exit", "raise interrupt", "raise generator exit", "raise cancelled", "raise stop iteration"]
    run = case.survives({"fault": kinds, "step": 30, "every": 30}, MANY_FAULTS, until=told(len(kinds)))
    wants_errors(case, run, len(kinds))


@row(
    "E6", "os._exit(0) in step", "an unexpected death; producing again within 2 s; all committed rows kept", quick=True
)
def _(case):
    """Exits with code 0 at the 100th step."""
    run = case.survives({"fault": "exit 0", "step": 100}, until=came_back(1))
    deaths = [line for line in run.all("proc_exit", process="mlxe-exe-0") if not line["expected"]]
    if case.want(len(deaths) == 1, f"one death is told ({len(deaths)})"):
        case.want("exited with code 0" in deaths[0]["sentence"], "the sentence tells code 0")
    back_in_time(case, run)


@row(
    "E6.2", "dies at its first step, always", "restarts with growing pauses up to the budget, then exit 3 that names it"
)
def _(case):
    """os._exit(7) in every first step of executor 0; a budget of 2 restarts."""
    run = case.start(
        {"fault": "exit 7", "step": 1, "every": 1, "times": 0, "lives": 0},
        {"supervision": {"restart_limit": 2}, "stop": {"env_steps": 10_000_000}},
    )
    case.want(run.ended(60) is not None, "it ends by itself")
    case.checks(run, 3, last="mlxe-exe-0")
    case.want(len(run.all("proc_restart")) == 2, f"2 restarts ({len(run.all('proc_restart'))})")


@row("E7", "SIGKILL of executors at random times", "all committed rows kept: none lost, twice or torn", ci=3)
def _(case):
    """Kills executors of a running run one after the other; the memory is audited."""
    kills = case.amount(8, 25, 500)
    chance = random.Random(case.seed)  # noqa: S311 - chooses moments
    run = case.start({}, {**MANY_DEATHS, "stop": {"env_steps": 10_000_000}, "memory": {"capacity_rows": 2_000_000}})
    run.reached(100)
    for number in range(kills):
        name = f"mlxe-exe-{chance.randrange(2)}"
        pause(chance.random() * 0.3)
        pid, before = run.living(name), len(run.all("proc_start", process=name))
        kill(pid)
        case.want(run.told("proc_start", before + 1, 20, process=name), f"kill {number}: {name} comes back")
    steps = run.steps()
    case.want(run.reached(steps + 200), "it goes on")
    found = case.proves(run)
    case.stops(run)
    deaths = [line for line in run.all("proc_exit") if not line["expected"]]
    case.want(len(deaths) == kills, f"{kills} deaths are told ({len(deaths)})")
    if found:
        case.saw(f"{kills} kills, {found.rows} rows of {len(found.lives)} lives proven")


@row(
    "E8",
    "SIGSEGV, SIGABRT, SIGFPE, SIGILL, SIGBUS",
    "signal named; stack in the event and in a file under crash/",
    ci=1,
)
def _(case):
    """A life each."""
    kinds = {"segfault": "SIGSEGV", "abort": "SIGABRT", "fpe": "SIGFPE", "ill": "SIGILL", "bus": "SIGBUS"}
    run = case.survives({"fault": list(kinds), "step": 60, "times": 1}, MANY_DEATHS, until=came_back(5))
    deaths = [line for line in run.all("proc_exit", process="mlxe-exe-0") if not line["expected"]]
    named = [line["signal"] for line in deaths]
    case.want(named == list(kinds.values()), f"signals named {list(kinds.values())} ({named})")
    case.want(all(line["stack"] for line in deaths), "a stack in each event")
    files = sorted(path.name for path in (run.runs / "latest" / "crash").glob("*.txt"))
    case.want(len(files) >= len(kinds), f"a stack file each under crash/ ({files})")


def hangs(case, fault, lives=1, words=""):
    run = case.survives(
        {"fault": fault, "step": 60, "times": 1, "lives": lives},
        {**MANY_DEATHS, "schedule": {"step_timeout_s": 1.0}},
        until=came_back(lives),
    )
    told = run.all("hang", process="mlxe-exe-0")
    case.want(len(told) == lives, f"{lives} hangs are told ({len(told)})")
    late = max((line["stuck_s"] for line in told), default=0)
    case.within(late, 0.5, "told after the limit")
    case.want(all(line["call"] == "step" for line in told), f"the call is told ({[e['call'] for e in told]})")
    if words:
        stacks = run.all("hang_stack", process="mlxe-exe-0")
        case.want(len(stacks) == lives and all(words in line["stack"] for line in stacks), "its stack follows")
    case.want(all(line["limit_s"] for line in told), f"the event tells the limit ({[e['limit_s'] for e in told]})")
    back_in_time(case, run, lives)
    return run


@row("E9", "step hangs, interpreter free", "killed at most 1 s after the limit; stack of the hang in the log")
def _(case):
    """Sleeps for ever; step_timeout_s 1."""
    hangs(case, "sleep", words="_sleeps")


@row("E10", "step hangs, interpreter locked", "as E9")
def _(case):
    """A foreign call that keeps the lock, then a catastrophic search."""
    hangs(case, ["hang locked", "hang in a search"], lives=2, words="faults.py")


@row("E11", "SIGSTOP of an executor", "as E9: it is woken for its stack alone")
def _(case):
    """The executor stops itself; step_timeout_s 1."""
    hangs(case, "stop", words="faults.py")


@row("E12", "SIGSTOP for 2 s, then SIGCONT", "no restart; a warning names the straggler", ci=1)
def _(case):
    """From outside, with the default limit of 5 s."""
    run = case.start({}, {"stop": {"env_steps": 10_000_000}, "schedule": {"kind": "is"}})
    run.reached(100)
    pid = run.living("mlxe-exe-0")
    kill(pid, signal.SIGSTOP)
    pause(2.0)
    kill(pid, signal.SIGCONT)
    case.want(run.reached(run.steps() + 200), "it goes on")
    case.stops(run)
    case.want(not run.all("proc_restart"), "no restart")
    named = [line for line in run.all("straggler") if line["idx"] == 0]
    case.want(named, "a straggler event names executor 0")


@row(
    "E13",
    "slow but legal: 3 s a step in one executor",
    "not killed; oa: the others go on; is: the straggler is named after 1 s",
)
def _(case):
    """Executor 0 of 3 sleeps 3 s in every step; under oa the others are held against those of a healthy run."""
    endless = {"stop": {"env_steps": 10_000_000}, "schedule": {"executors": 3}}
    healthy = 0
    if case.kind == "oa":
        run = case.start({"length": 5}, endless)
        run.until(lambda: len(run.all("episode_end", idx=0)) >= 39)
        healthy = -len(run.all("phase", phase="generate", idx=1))
        pause(8.0)
        healthy += len(run.all("phase", phase="generate", idx=1))
        case.stops(run)
    run = case.start({"fault": "sleep", "seconds": 3.0, "step": 200, "every": 1, "times": 0, "length": 5}, endless)
    run.until(lambda: len(run.all("episode_end", idx=0)) >= 39)
    before = len(run.all("phase", phase="generate", idx=1))
    pause(8.0)
    after = len(run.all("phase", phase="generate", idx=1))
    if case.kind == "oa":
        rate = (after - before) / healthy
        case.want(rate >= 0.95, f"the others go on at their rate ({after - before} rollouts, healthy {healthy})")
        case.saw(f"{100 * rate:.0f} % of the rate in a healthy run")
    else:
        named = run.all("straggler", idx=0)
        case.want(named, "a straggler event names executor 0")
    case.stops(run)
    case.want(not run.all("proc_restart"), "not killed")


NONFINITE = ["nan observation", "inf observation", "-inf observation", "huge observation", "nan reward", "inf reward"]


@row(
    "E14",
    "NaN and infinities in observation and reward",
    "never stored; logged with the first index; one step in a hundred is survived",
)
def _(case):
    """One step in a hundred of all executors, settings as they are by default."""
    run = case.survives(
        {"fault": NONFINITE, "probability": 0.01, "times": 0, "lives": 0, "executor": -1},
        steps=case.amount(2000, 4000, 50_000),
    )
    errors = run.all("env_error")
    case.want(errors, "the faults are told")
    case.want(all("finite" in e["message"] for e in errors), "each tells what was expected")
    told = [e for e in errors if "observation" in e["message"]]
    case.want(all("index" in e["message"] for e in told), "the first offending index is told")
    case.saw(f"{len(errors)} faults in {run.steps()} steps")


@row("E14.2", 'nonfinite = "stop"', "exit 5, the last line says what came", ci=1)
def _(case):
    """One NaN with supervision.nonfinite = "stop"."""
    run = case.start(
        {"fault": "nan observation", "step": 100},
        {"supervision": {"nonfinite": "stop"}, "stop": {"env_steps": 10_000_000}},
    )
    case.want(run.ended(60) is not None, "it ends by itself")
    case.checks(run, 5, last="finite")


@row("E14.3", 'nonfinite = "reset_env"', "a policy of its own beside abort_episode and stop", ci=1)
def _(case):
    """One NaN with supervision.nonfinite = "reset_env": the rows say that no environment was made anew."""
    run = case.survives({"fault": "nan observation", "step": 100}, {"supervision": {"nonfinite": "reset_env"}})
    wants_errors(case, run, 1)


BAD_REWARDS = ["reward none", "reward text", "reward complex", "reward array", "reward truth"]
BAD_FORMS = ["four values", "six values", "a list", "nothing", "truncated none", "terminated number"]


@row("E15", "rewards and answers of another kind", "a contract error that says field, expected and got")
def _(case):
    """Five rewards and six forms of answer in executor 0."""
    kinds = BAD_REWARDS + BAD_FORMS
    run = case.survives({"fault": kinds, "step": 25, "every": 25}, MANY_FAULTS, until=told(len(kinds)))
    errors = wants_errors(case, run, len(kinds))
    words = [e["message"] for e in errors]
    case.want(all("got" in w and ("expected" in w or "must return" in w) for w in words), "expected and got are told")


@row("E15.2", "a wrong answer in the probe", "exit 2 and the contract error; no run begins", ci=1)
def _(case):
    """Four values from the first step on."""
    fault = {"fault": "four values", "step": 1, "every": 1, "times": 0, "lives": 0, "roles": ["probe"]}
    run = case.start(fault)
    case.checks(run, 2, has_log=False, last="4 values")
    case.want(not run.lines(), "no run has begun")


@row("E16", "observations of another shape", "strict equality with the space; nothing is broadcast")
def _(case):
    """One entry more, one entry, none, ragged."""
    kinds = ["longer", "broadcastable", "empty", "ragged"]
    run = case.survives({"fault": kinds, "step": 30, "every": 30}, MANY_FAULTS, until=told(len(kinds)))
    wants_errors(case, run, len(kinds))


@row("E17", "observations of another dtype", "float64 and big-endian are cast with one warning; objects are an error")
def _(case):
    """Each several times in executor 0."""
    run = case.survives(
        {"fault": ["float64", "big-endian", "plain list", "objects"], "step": 30, "every": 15, "times": 8},
        MANY_FAULTS,
        until=told(2),
    )
    wants_errors(case, run, 2)
    notes = [line for line in run.all("warning") if "float64" in line["message"] or "cast" in line["message"]]
    case.want(len(notes) == 1, f"one warning about the cast ({len(notes)})")


@row("E17.2", "whole numbers that do not fit into bytes", "an error; nothing wraps around", ci=1)
def _(case):
    """256 for a space of uint8."""
    run = case.start({"fault": "out of bytes", "step": 60, "space": "bytes"}, {"algorithm": {"input_scale": [0.01]}})
    case.checks(run, 0)
    errors = run.all("env_error")
    case.want(len(errors) == 1 and "0 to 255" in errors[0]["message"], "told as an error")


@row("E18", "observations outside the bounds; a space that changes", "one warning and a counter; an error")
def _(case):
    """A space of -1..1 that counts to 20; at the 200th step another shape and space."""
    run = case.start({"space": "bounded", "fault": "space changes", "step": 200}, {"algorithm": {"input_scale": [0.1]}})
    case.checks(run, 0)
    notes = [line for line in run.all("warning") if "bounds" in line["message"]]
    case.want(len(notes) == 1, f"one warning about the bounds ({len(notes)})")
    case.want("out_of_bounds" in str(run.status()) + str(run.all("ledger")[-1:]), "a counter is told")
    case.want(len(run.all("env_error")) == 1, f"the other space is an error ({len(run.all('env_error'))})")


@row("E19", "the environment reuses and spoils its buffer", "the stored row is what was returned")
def _(case):
    """The same array in every step of all executors; the memory is audited."""
    fault = {"fault": "same buffer", "step": 1, "every": 1, "times": 0, "lives": 0, "executor": -1}
    run = case.survives(fault, steps=case.amount(2000, 5000, 100_000))
    case.saw(f"{run.steps()} rows equal")


@row("E20", "info of 100 MB, deeply nested, unpicklable", "info never crosses a process")
def _(case):
    """At three steps; the supervisor's memory before and after."""
    run = case.start(
        {"fault": ["huge info", "nested info", "unpicklable info"], "step": 200, "every": 20},
        {"stop": {"env_steps": 10_000_000}},
    )
    run.reached(100)
    before = memory_kb(run.pid)
    case.want(run.reached(1200), "it goes on")
    grown = (memory_kb(run.pid) - before) / 1024
    case.want(grown <= 20, f"the supervisor does not grow ({grown:.0f} MB)")
    case.stops(run)
    wants_errors(case, run, 0)


@row(
    "E21", "prints 100 MB, and bytes that are no text", "to a file of at most 10 MiB and one older; protocol unaffected"
)
def _(case):
    """print, os.write to 1 and 2."""
    run = case.survives(
        {"fault": ["print", "write garbage"], "step": 50, "every": 50, "amount": 100},
        {"schedule": {"step_timeout_s": 30.0}},
    )
    wants_errors(case, run, 0)
    sizes = {path.name: path.stat().st_size for path in (run.runs / "latest" / "output").glob("mlxe-exe-0*")}
    case.want(sizes, "what it printed is kept")
    case.want(all(size <= 11 * 2**20 for size in sizes.values()), f"at most 10 MiB each ({sizes})")
    case.want(run.output() == "", "nothing of it on the command's stdout")


@row(
    "E22",
    "closes the descriptors 3 to 255, or 0 to 2",
    "control lost: exit 71 and a restart within 2 s; the supervisor unharmed",
)
def _(case):
    """A life each."""
    run = case.survives(
        {"fault": ["close descriptors", "close standard"], "step": 60, "times": 1},
        MANY_DEATHS,
        until=came_back(1),
    )
    deaths = [line for line in run.all("proc_exit", process="mlxe-exe-0") if not line["expected"]]
    case.want(deaths and deaths[0]["code"] == 71, f"exit code 71 ({[d['code'] for d in deaths]})")
    back_in_time(case, run)


@row(
    "E23",
    "changes cwd, umask, handlers, numpy errors, generators, locale, alarm",
    "the run goes on; files stay private",
)
def _(case):
    """All of it at the 50th step of both executors."""
    run = case.survives({"fault": "change everything", "step": 50, "executor": -1})
    wants_errors(case, run, 0)
    loose = [p.name for p in (run.runs / "latest").rglob("*") if p.is_file() and p.stat().st_mode & 0o077]
    case.want(not loose, f"files are private ({loose})")


def sleepers():
    """The living children that environments started."""
    return [pid for pid, name in leaks.processes().items() if name == "sleep"]


@row("E24", "starts child processes and dies", "no orphan after 2 s; also when the supervisor is killed")
def _(case):
    """Two children, one in a session of its own, and SIGKILL of the executor by itself; then of the supervisor."""
    run = case.start({"fault": "children and die", "step": 60}, {**MANY_DEATHS, "stop": {"env_steps": 10_000_000}})
    case.want(run.told("proc_start", 2, process="mlxe-exe-0"), "the executor is replaced")
    pause(2.0)
    case.want(not sleepers(), f"the dead executor's children are gone ({sleepers()})")
    case.want(run.reached(run.steps() + 200), "it goes on")
    case.stops(run)
    kinds = ["child", "child in a session"]
    run = case.start({"fault": kinds, "step": 60, "every": 20, "lives": 1}, {"stop": {"env_steps": 10_000_000}})
    case.want(run.until(lambda: len(sleepers()) == 2), f"two children live ({sleepers()})")
    run.signal(signal.SIGKILL)
    run.ended()
    case.nothing_left(run)


@row("E25", "threads and exit hooks that never end", "stop takes at most 5 s in all")
def _(case):
    """Three threads that are no daemons, and a hook, in every executor."""
    run = case.survives({"fault": "threads", "step": 20, "executor": -1}, steps=400)
    wants_errors(case, run, 0)


@row("E25.2", "close hangs", "close is limited; stop takes at most 5 s in all", ci=1)
def _(case):
    """Sleeps for ever in close."""
    case.survives({"fault": "sleep", "where": "close", "step": 1, "executor": -1}, steps=400)


@row("E26", "the environment itself uses multiprocessing", "works", ci=1)
def _(case):
    """A pool of one, by spawn, inside a step."""
    run = case.survives({"fault": "multiprocessing", "step": 50}, {"schedule": {"step_timeout_s": 60.0}}, steps=400)
    wants_errors(case, run, 0)


@row("E27", "leaks 100 MB a minute", "max_executor_rss_mb: recycled at the end of an episode, planned, no error", ci=1)
def _(case):
    """20 MB every 20 steps with supervision.max_executor_rss_mb = 400, and no second executor that plays meanwhile."""
    run = case.start(
        {"fault": "leak", "step": 20, "every": 20, "times": 20, "lives": 1, "amount": 20},
        {"supervision": {"max_executor_rss_mb": 400}, "schedule": {"executors": 1}},
    )
    case.checks(run, 0)
    again = run.all("proc_restart", process="mlxe-exe-0")
    case.want(again and all(line["planned"] for line in again), f"it is recycled, as planned ({len(again)})")
    case.want(not run.all("env_error") and not run.all("crash_report"), "no error")
    status = run.status()
    counts = {name: status.get(name) for name in ("recycled", "restarts", "episodes_aborted")}
    case.want(counts == {"recycled": len(again), "restarts": 0, "episodes_aborted": 0}, f"counted apart ({counts})")


@row("E28", "runs out of memory", "MemoryError is an environment fault; the kernel takes executors first")
def _(case):
    """Asks for ten times the machine's memory; lowers its own limit. oom_score_adj is compared."""
    run = case.start(
        {"fault": ["allocate", "limit", "raise memory"], "step": 40, "every": 40}, {"stop": {"env_steps": 10_000_000}}
    )
    case.want(run.reached(600), "it goes on")
    scores = {}
    for name in ("mlxe-exe-0", "mlxe-lrn"):
        scores[name] = int(Path(f"/proc/{run.living(name)}/oom_score_adj").read_text())
    scores["supervisor"] = int(Path(f"/proc/{run.pid}/oom_score_adj").read_text())
    case.want(scores["mlxe-exe-0"] >= scores["mlxe-lrn"] + 500, f"executors go first ({scores})")
    case.stops(run)
    wants_errors(case, run, 3)


@row(
    "E28.2",
    "killed by the kernel for memory",
    "cause from memory.events; the run goes on at n-1 and recovers",
    needs=("memory control group",),
    ci=1,
)
def _(case):
    """Executor 0 takes 40 MB with every other step, and the run is in a control group of 1 GiB."""
    with memory_group(1 << 30) as group:
        enter = ["sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh"]
        kwargs = {"fault": "leak", "step": 50, "every": 2, "times": 100, "lives": 1, "amount": 40}
        run = case.start(kwargs, {"stop": {"env_steps": 10_000_000}}, prefix=enter)
        died = run.told("proc_exit", expected=False)
        case.want(died, "somebody was killed")
        for line in run.all("proc_exit", expected=False):
            case.want(line["process"].startswith("mlxe-exe"), f"an executor goes first ({line['process']})")
            case.want("by the kernel for lack of memory" in line["sentence"], f"the cause is told ({line['sentence']})")
        case.want(run.reached(run.steps() + 600), f"the run went on ({run.steps()} steps)")
        case.want(run.living("mlxe-exe-0") != line["pid"], "it works again")
        case.proves(run)
        case.stops(run)
        case.saw(line["sentence"])


@row(
    "E29",
    "a poison seed: the same episode kills again and again",
    "quarantined after 3 deaths, event `poison`, next seed",
)
def _(case):
    """Dies for every 11th seed; where a new life has new seeds (oa), none must come a second time."""
    run = case.survives(
        {"fault": "poison", "where": "reset", "step": 1, "every": 1, "times": 0, "lives": 0, "amount": 11},
        MANY_DEATHS,
        steps=800,
        until=lambda run: run.all("poison" if case.kind == "is" else "crash_report"),
    )
    killers = [line["seed"] for line in run.all("crash_report")]
    case.want(killers and all(seed is not None and seed % 11 == 0 for seed in killers), f"reports name it ({killers})")
    if case.kind == "is":
        poison = {line["seed"]: line["deaths"] for line in run.all("poison", idx=0)}
        case.want(poison, "an event tells of the poison seed")
        case.want(all(killers.count(seed) == 3 for seed in poison), f"three deaths each ({killers})")
    else:
        case.want(len(set(killers)) == len(killers), f"no seed kills twice ({killers})")


UNKNOWN = {
    "CartPol-v1": "did you mean CartPole-v1",
    **({} if importlib.util.find_spec("Box2D") else {"LunarLander-v3": "mlxe_async[box2d]"}),
    "ALE/NoSuchGame-v5": "mlxe_async[atari]",
    "CartPole-v99": "CartPole-v1",
    "no_such_module:Env-v0": "no_such_module",
    "breaks_at_import:Env-v0": "a word of its own",
    "exits_at_import_now:Env-v0": "exit",
    "needs_a_package:Env-v0": "a_package_nobody_has",
}


@row(
    "E30",
    "unknown id, missing package, old version, a module that raises or exits",
    "exit 2 within 5 s and import, names the cause; nothing started",
    ci=1,
)
def _(case):
    """Eight ids."""
    modules = case.folder / "modules"
    modules.mkdir()
    (modules / "breaks_at_import.py").write_text('raise ImportError("a word of its own")\n')
    (modules / "exits_at_import_now.py").write_text('print("noise")\nimport sys\nsys.exit(3)\n')
    (modules / "needs_a_package.py").write_text("import a_package_nobody_has\n")
    for env, words in UNKNOWN.items():
        began = time.monotonic()
        run = case.start(None, {"task": {"env": env}, "run": {"python_path": [str(modules)]}})
        code = run.ended(60)
        took = time.monotonic() - began
        error = run.error()
        case.want(
            code == 2 and words in error and "Traceback" not in error,
            f"{env}: exit 2 and {words!r} ({code}: {error[-200:]})",
        )
        case.want(not run.lines(), f"{env}: nothing is started")
        case.within(took, 8.0, f"{env}: refused")
        case.nothing_left(run)


@row("E31", "an endless episode", "max_episode_steps is enforced; a warning after 100,000 steps without an end", ci=1)
def _(case):
    """No end at all: with a limit of 50, and then without one."""
    run = case.start({"length": 0}, {"task": {"max_episode_steps": 50}})
    case.checks(run, 0)
    case.want({line["length"] for line in run.all("episode_end")} == {50}, "episodes have 50 steps")
    run = case.start(
        {"length": 0},
        {
            "schedule": {"kind": "is", "executors": 1, "sync": "rollout", "rollout_steps": 10_000},
            "stop": {"env_steps": 110_000},
            "algorithm": {"min_updates": 0, "train_every": 10_000},
        },
    )
    case.checks(run, 0)
    case.want(
        [line for line in run.all("warning") if "not ended" in line["message"]],
        "a warning tells of the endless episode",
    )


@row("E32", "spaces of every kind", "accepted, or refused by the probe with the name of the space", ci=1)
def _(case):
    """The probe's own function over 19 spaces, and two of them through the command."""
    script = textwrap.dedent("""
        from mlxe_async.errors import TaskError
        from mlxe_async.tasks.probe import probe
        from misbehaving.faults import SPACES
        for name in SPACES:
            try:
                probe({"env": "misbehaving:Chaos-v0", "kwargs": {"space": name}})
                print(name, "| accepted")
            except TaskError as error:
                print(name, "| refused |", type(SPACES[name][0]()).__name__ in str(error), "|", error)
    """)
    done = subprocess.run(
        [PYTHON, "-P", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        timeout=120,
    )
    lines = done.stdout.splitlines()
    case.want(done.returncode == 0 and len(lines) >= 15, f"every space is judged ({done.stderr[-300:]})")
    unnamed = [line for line in lines if "| refused | False" in line]
    case.want(not unnamed, f"refusals name the space ({unnamed})")
    for space, code in (("graph", 2), ("float16", 0)):
        run = case.start({"space": space}, {"algorithm": {"input_scale": [0.1]}, "stop": {"env_steps": 200}})
        case.want(run.ended() == code, f"{space}: exit {code} ({run.ended()}: {run.error()[-200:]})")
    case.saw(
        f"{sum('accepted' in line for line in lines)} accepted, {sum('refused' in line for line in lines)} refused"
    )


@row("E34", "hangs in each life, after some progress", "given up after restart_limit lives, exit 3", ci=1)
def _(case):
    """Executor 0 sleeps for ever at the 60th step of each life; step_timeout_s 1, restart_limit 3."""
    run = case.start(
        {"fault": "sleep", "step": 60, "times": 1, "lives": 0},
        {
            "stop": {"env_steps": 10_000_000},
            "schedule": {"step_timeout_s": 1.0},
            "supervision": {"restart_limit": 3, "backoff_s": 0.02},
        },
    )
    case.want(run.ended(120) is not None, "it ends by itself")
    case.checks(run, 3, last="mlxe-exe-0 hung in 4 lives in a row")
    case.want(len(run.all("proc_restart")) == 3, f"3 restarts ({len(run.all('proc_restart'))})")
    case.want({line["call"] for line in run.all("hang")} == {"step"}, "the call is told")
    case.want(run.all("checkpoint"), "a checkpoint is saved")
    case.saw(f"{len(run.all('hang'))} hangs, {run.steps()} steps between them")


PROBE_LIMIT_S = 2.0
PLACES = {"import": "import", "make": "make", "reset": "reset", "step": "step", "later": "step"}


def hangs_in_the_probe(case, how, where, limit_s, *arguments):
    """A command whose probe hangs like this, and a file that tells when it began to."""
    mark = case.folder / f"began-{len(case.runs)}"
    env = {"HANG_MARK": str(mark), **({"HANG_AT_IMPORT": how} if where == "import" else {})}
    tables = {
        "run": {"python_path": [str(TESTS / "runs")]},
        "task": {"env": "hanging_tasks:Hanging-v0", "kwargs": {"how": how, "where": where}},
        "schedule": {"reset_timeout_s": limit_s, "step_timeout_s": limit_s},
        "algorithm": {"input_scale": None},
    }
    file = case.folder / str(len(case.runs)) / "settings.toml"
    program = ["-m", "mlxe_async", str(file), "--no-progress", *arguments]
    return case.start(None, tables, env=env, program=program), mark


@row("E33", "the environment hangs while it is probed", "exit 3 within the limit + 1 s, with the stack; nothing left")
def _(case):
    """Twelve kinds of hang at five places (at ci scale four of the sixty), with and without --check."""
    both = list(itertools.product(HANGING, PLACES))
    chosen = random.Random(case.seed).sample(both, case.amount(4, 12, 60))  # noqa: S311 - chooses kinds
    longest = 0.0
    for number, (how, where) in enumerate(chosen):
        what = f"{how} in {where}"
        run, mark = hangs_in_the_probe(case, how, where, PROBE_LIMIT_S, *(["--check"] if number % 2 else []))
        code, ended = run.ended(60), time.monotonic()
        if not case.want(mark.exists(), f"{what}: it came to hang ({run.error()[-300:]})"):
            continue
        took = ended - float(mark.read_text())
        longest = max(longest, took)
        case.want(took >= PROBE_LIMIT_S, f"{what}: not before the limit ({took:.2f} s)")
        case.within(took, PROBE_LIMIT_S + 1.0, f"{what}: ends")
        error = run.error()
        case.want(code == 3, f"{what}: exit 3 ({code})")
        case.want(f"hangs in {PLACES[where]!r}" in error.splitlines()[-1], f"{what}: it is told ({error[-300:]})")
        case.want(("hanging_tasks.py" in error) == (how not in WITHOUT_STACK), f"{what}: the stack")
        case.want("Traceback" not in error, f"{what}: no traceback")
        case.nothing_left(run)
    case.saw(f"{len(chosen)} hangs, at most {longest:.2f} s with a limit of {PROBE_LIMIT_S:g} s")


@row("E33.2", "a signal while the probe hangs", "SIGTERM 143, SIGINT 130, each within 5 s; nothing left")
def _(case):
    """Four kinds, a run and a --check, with a limit of ten minutes."""
    kinds = random.Random(case.seed).sample(sorted(HANGING), 4)  # noqa: S311 - chooses kinds
    longest = 0.0
    for number, how in enumerate(kinds):
        asked = (signal.SIGTERM, signal.SIGINT)[number // 2]
        run, mark = hangs_in_the_probe(case, how, "reset", 600.0, *(["--check"] if number % 2 else []))
        if not case.want(run.until(mark.exists, 60), f"{how}: it came to hang ({run.error()[-300:]})"):
            continue
        began = time.monotonic()
        run.signal(asked)
        code = run.ended(60)
        took = time.monotonic() - began
        longest = max(longest, took)
        case.within(took, 5.0, f"{how}: ends")
        case.want(code == 128 + asked, f"{how}: exit {128 + asked} ({code})")
        case.want("before the run had begun" in run.error().splitlines()[-1], f"{how}: told ({run.error()[-200:]})")
        case.want(not run.lines(), f"{how}: no run has begun")
        case.nothing_left(run)
    case.saw(f"{len(kinds)} signals, at most {longest:.2f} s")
