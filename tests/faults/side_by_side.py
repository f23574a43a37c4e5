"""Eleven faults of one environment among several: what gymnasium's AsyncVectorEnv says, and what a run says.

    python tests/faults/side_by_side.py [--schedule is|oa] [--wait SECONDS]

Each fault is given to environment 1 of three of an AsyncVectorEnv, which steps them in processes of their own; its
calls wait for ever, so each fault has a process of its own here, which is given up after a while. Then all eleven come
one after the other to environment 1 of executor 0 in one run with two executors, settings as they are by default but
for a `step_timeout_s` of 1 s.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

STEPS = 40
FAULT_AT = 20


@dataclass(frozen=True)
class Fault:
    """One of the eleven: what it is, its name in ChaosEnv, and a word that must be in what is said about it."""

    title: str
    name: str
    word: str


# Those that end a life come first, one in each.
DEADLY = (
    Fault("a step that never returns", "sleep", "over its limit"),
    Fault("SIGSTOP", "stop", "over its limit"),
    Fault("SIGKILL", "kill", "SIGKILL"),
    Fault("os._exit(7)", "exit 7", "exited with code 7"),
)
WRONG = (
    Fault("an exception that cannot be pickled", "raise unpicklable", "Unpicklable: cannot be pickled"),
    Fault("SystemExit", "raise exit", "SystemExit"),
    Fault("an exception with a two-argument constructor", "raise two arguments", "TwoArguments: first"),
    Fault("NaN in the observation", "nan observation", "expected finite numbers, got nan at index [1]"),
    Fault("1e300 for a float32", "huge observation", "expected finite numbers, got inf at index [1]"),
    Fault("an observation (1,) for (7,)", "broadcastable", "expected shape (7,)"),
    Fault("a ValueError", "raise", "ValueError: the motor is too hot"),
)
FAULTS = (*DEADLY, *WRONG)


# -- gymnasium ---------------------------------------------------------------------------------------------------------


def _make(fault):
    def make():
        from misbehaving import ChaosEnv

        return ChaosEnv(fault=fault, step=FAULT_AT)

    return make


def play_gymnasium(fault):
    """Step three environments, one of which has the fault; say what came of it. May never return."""
    import numpy as np
    from gymnasium.vector import AsyncVectorEnv

    envs = AsyncVectorEnv([_make("none"), _make(fault), _make("none")], shared_memory=True)
    envs.reset(seed=0)
    said = []
    for number in range(1, STEPS + 1):
        try:
            observations = envs.step(np.zeros(3, np.int64))[0]
        except BaseException as error:  # noqa: BLE001 - what comes is what is to be shown
            words = " ".join(str(error).splitlines()[:1]) or "no word"
            said.append(f"step {number} raises {type(error).__name__}: {words}")
            break
        if not np.isfinite(observations).all():
            said.append(f"step {number} gives {observations[1].min()} to {observations[1].max()}, no word")
            break
        if number == FAULT_AT and len(set(observations[1].tolist())) == 1:
            said.append(f"step {number} gives {observations[1].tolist()[:2]}... for environment 1, no word")
            break
    else:
        said.append(f"{STEPS} steps, no word")
    print(json.dumps(said[0]), flush=True)
    os._exit(0)


def ask_gymnasium(fault, wait_s):
    """What `play_gymnasium` says in a process of its own, given up after so many seconds."""
    path = os.pathsep.join(filter(None, [str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]))
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__, "--play", fault.name],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
    )
    try:
        out, _ = child.communicate(timeout=wait_s)
        return json.loads(out.splitlines()[-1]) if out.strip() else f"ends with exit code {child.returncode}, no word"
    except subprocess.TimeoutExpired:
        return f"no answer for {wait_s:g} s, no word"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


# -- ours --------------------------------------------------------------------------------------------------------------


def play_ours(case):
    """One run that lives through all eleven; the row's case judges that it goes on and that its rows are true."""
    return case.survives(
        {
            "fault": [fault.name for fault in FAULTS],
            "step": 2 * FAULT_AT,
            # Every second step of the process is one of environment 1; 10 good ones make up for a fault.
            "every": 110,
            "times": len(WRONG),
            "lives": len(DEADLY) + 1,
        },
        {"schedule": {"envs_per_executor": 2, "rollout_steps": 20, "step_timeout_s": 1.0}},
        steps=2000,
        until=lambda run: len(run.all("env_error")) >= len(WRONG),
    )


def told_by(run):
    """For each of the eleven what the log tells: (fault, sentence, place); None where it tells nothing."""
    deaths, errors = iter(run.all("crash_report", idx=0)), iter(run.all("env_error", idx=0))
    found = []
    for fault in FAULTS:
        line = next(deaths if fault in DEADLY else errors, None)
        place = {key: line[key] for key in ("idx", "env", "episode", "seed", "step")} if line else {}
        found.append((fault, line["what" if fault in DEADLY else "message"] if line else None, place))
    return found


def judge(case, run):
    """Named, located, contained."""
    for fault, sentence, place in told_by(run):
        case.want(sentence and fault.word in sentence, f"{fault.title}: named ({sentence})")
        is_there = place.get("idx") == 0 and place.get("env") == 1
        known = all(place.get(key) is not None for key in ("episode", "seed", "step"))
        case.want(is_there and known, f"{fault.title}: located ({place})")
    case.want(not run.all("env_error", idx=1), "the other executor's environments have no fault")
    dead = {line["process"] for line in run.all("proc_exit") if not line["expected"]}
    case.want(dead == {"mlxe-exe-0"}, f"no other process dies ({dead})")
    reports = list((run.runs / "latest" / "crash").glob("*.txt"))
    case.want(len(reports) == len(DEADLY), f"a report for each death ({len(reports)})")


def main(arguments):
    """Print the table; the exit code says whether ours was as it should be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", choices=("is", "oa"), default="is")
    parser.add_argument("--wait", type=float, default=20.0)
    parser.add_argument("--play")
    asked = parser.parse_args(arguments)
    if asked.play:
        play_gymnasium(asked.play)
    from fault_runs import Case, Row, leaks

    theirs = [ask_gymnasium(fault, asked.wait) for fault in FAULTS]
    leaks.warm_up()
    folder = tempfile.mkdtemp(prefix="side-by-side-")
    case = Case(Row("6", "", ""), ("oa", "is").index(asked.schedule), "ci", Path(folder))
    try:
        run = play_ours(case)
        judge(case, run)
        ours = told_by(run)
    finally:
        case.close()
        shutil.rmtree(folder, ignore_errors=True)
    print("| fault of environment 1 | AsyncVectorEnv | mlxe_async | where |\n|---|---|---|---|")
    for (fault, sentence, place), other in zip(ours, theirs, strict=True):
        where = ", ".join(f"{'executor' if key == 'idx' else key} {value}" for key, value in place.items())
        cells = (fault.title, other, sentence or "nothing", where)
        print("| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ")[:200] for cell in cells) + " |")
    for failure in case.failures:
        print(f"NOT {failure}")
    return 1 if case.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
