"""`repro CRASH`: live an environment's last episode again, up to the step of which a crash report tells.

What it can do: make the environment as the run did, reset it with the same seed, and take the actions that the report
holds, in a process of its own, so that what kills or hangs the environment does not take the command along. What it
cannot: repeat what depends on the environments beside it, on earlier episodes in the same process, on global random
generators, on the clock, or on files. If the report holds no actions (the lane had forgotten the first ones), actions
are drawn from the run's last saved policy, which takes other ones than the run did; that is said.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlxe_async.cli.arguments import Parser
from mlxe_async.errors import EnvironmentFault, MlxeError, RunFailed, TaskError
from mlxe_async.rows import Array
from mlxe_async.settings import Settings
from mlxe_async.settings.trust import Trusted, settings_of_run
from mlxe_async.storage.crash_reports import CrashReport, read_report
from mlxe_async.storage.safe_text import visible

USAGE = "repro CRASH [--run RUN_FOLDER] [--here] [--trust MODULE|FOLDER]"
START_LIMIT_S = 60.0
STACK_S = 1.0

Act = Callable[[Array, int], Array]


def run(arguments: Sequence[str]) -> int:
    """Live it again, and say whether the same happened. Returns 0 if it did.

    Raises:
        RunFailed: it did not, or the report is not about an environment.
    """
    parser = Parser(
        USAGE,
        "Live an environment's last episode again, as a crash report tells of it, and say whether the same happened.",
        "repro runs/latest/crash/mlxe-exe-0.1.txt --here",
    )
    parser.add_argument("crash", type=Path, metavar="CRASH", help="a report in the run's folder crash")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="the run's folder; by default that of the report")
    parser.add_argument("--here", action="store_true", help="in this process, for a debugger")
    parser.add_argument(
        "--signs", type=int, default=None, metavar="FD", help="descriptor to write a byte to before each call"
    )
    parser.add_trust()
    asked = parser.parse_args(arguments)
    report = read_report(asked.crash)
    folder = asked.run or asked.crash.resolve().parent.parent
    settings = settings_of_run(folder, trust=asked.trust)
    if report.env is None or report.seed is None or report.step is None:
        raise RunFailed(f"the report is about no environment, nothing can be lived again: {visible(report.what)}")
    if settings.task.stages or settings.task.reset_options is not None:
        key = "stages" if settings.task.stages else "reset_options"
        raise RunFailed(f"task.{key}: which of them the episode had is not in the report; it cannot be lived again")
    if asked.here:
        return _live(report, settings, folder, asked.trust, asked.signs)
    _say(f"in the run:   {visible(report.what, 500)}")
    _say(f"where:        {visible(report.place)}")
    _say(f"lived again:  with the same seed and {_how(report)}")
    return _watch(asked.crash, folder, settings, report, asked.trust)


def _how(report: CrashReport) -> str:
    if report.actions is None:
        return "other actions, for the first ones are not known any more: drawn from the last saved policy"
    return f"the same {len(report.actions)} actions" if report.actions else "no action, for it was in its reset"


# -- the process that watches ------------------------------------------------------------------------------------------


def _watch(crash: Path, folder: Path, settings: Settings, report: CrashReport, trust: Sequence[str]) -> int:
    """Have another process live it, with the run's own limits of time, and say how that ended."""
    ours, theirs = os.pipe()
    # What asks for its whereabouts in a run finds itself where it was then.
    environment = {**os.environ, "MLXE_ROLE": f"repro:{report.process}:{report.epoch}"}
    command = [sys.executable, "-P", "-X", "faulthandler", "-m", "mlxe_async", "repro", str(crash)]
    command += [part for name in trust for part in ("--trust", name)]
    try:
        child = subprocess.Popen(
            [*command, "--run", str(folder), "--here", "--signs", str(theirs)],
            env=environment,
            pass_fds=[theirs],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    assert child.stdout is not None  # noqa: S101 - asked for above
    try:
        said, calls, hung_s = _listen(child, ours, settings)
    finally:
        os.close(ours)
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            child.poll()
        child.wait()
        child.stdout.close()
    for line in said.decode(errors="replace").splitlines():
        _say(f"  | {visible(line, 300)}")
    where = ("its constructor", "reset")[calls] if calls <= 1 else f"step {calls - 1}"
    if hung_s is not None and not calls:
        raise RunFailed(f"the environment could not be lived again: it was not made within {hung_s:g} s")
    if hung_s is not None:
        _say(f"it came again: {where} did not return within {hung_s:g} s")
    elif child.returncode < 0:
        _say(f"it came again: killed by {signal.Signals(-child.returncode).name} in {where}")
    elif child.returncode == _FAULT:
        _say(f"it came again: a fault of the environment in {where}")
    elif child.returncode == 0:
        raise RunFailed(f"it did not come again: {calls - 1} steps were taken and nothing happened")
    elif calls:
        _say(f"it came again: ended with exit code {child.returncode} in {where}")
    else:
        raise RunFailed(f"the environment could not be lived again: exit code {child.returncode}, see above")
    return 0


def _listen(child: subprocess.Popen[bytes], signs: int, settings: Settings) -> tuple[bytes, int, float | None]:
    """Until it ends or hangs: what it printed (the last 16 KiB), calls it began, the limit it did not keep."""
    assert child.stdout is not None  # noqa: S101 - asked for
    schedule = settings.schedule
    said, calls, is_over = b"", 0, False
    limit_s = max(START_LIMIT_S, settings.supervision.start_timeout_s)
    deadline = time.monotonic() + limit_s
    open_ends = {signs, child.stdout.fileno()}
    hung_s = None
    while open_ends:
        for end in select.select(list(open_ends), [], [], max(0.0, deadline - time.monotonic()))[0]:
            data = os.read(end, 65_536)
            if not data:
                open_ends.discard(end)
            elif end == signs:
                calls += len(data)
                limit_s = schedule.step_timeout_s if calls > 2 else schedule.reset_timeout_s
                deadline = time.monotonic() + limit_s
            else:
                said = (said + data)[-16_384:]
        if child.poll() is not None and not is_over:
            # A child of its own may hold the ends open for ever.
            is_over, deadline = True, time.monotonic() + STACK_S
        if time.monotonic() >= deadline:
            if is_over or hung_s is not None:
                break
            hung_s, deadline = limit_s, time.monotonic() + STACK_S
            child.send_signal(signal.SIGABRT)  # has its stack written, if it can still do that
    return said, calls, hung_s


# -- the process that lives it -----------------------------------------------------------------------------------------

_FAULT = 64


def _live(report: CrashReport, settings: Settings, folder: Path, trust: Trusted, signs: int | None) -> int:
    from mlxe_async.tasks.vector import VectorTask

    sys.path += [str(path) for path in settings.run.python_path if str(path) not in sys.path]
    task = settings.task.model_dump(mode="json")
    seed, last = int(report.seed or 0), int(report.step or 0)

    def sign() -> None:
        if signs is not None:
            os.write(signs, b".")

    try:
        vector = VectorTask(task, 1)
    except EnvironmentFault as fault:
        raise TaskError(str(fault)) from fault
    act = _actions(report, vector, folder, trust)
    try:
        sign()
        obs = vector.reset(0, seed, report.finished_episodes)
        for number in range(1, last + 1):
            action = act(obs, number)
            sign()
            step = vector.step(action)
            if step.faults:
                raise step.faults[0]
            obs = step.next_obs[0]
            if step.ended and number < last:
                _say(f"the episode ended with step {number}, before step {last}")
                break
    except EnvironmentFault as fault:
        _say(fault.trace or fault.detail)
        _say(fault.detail)
        return _FAULT if signs is not None else 0
    finally:
        vector.close()
    if signs is None:
        raise RunFailed("it did not come again")
    return 0


def _actions(report: CrashReport, vector: Any, folder: Path, trust: Trusted) -> Act:
    if report.actions is not None:
        dtype = np.float32 if vector.spaces.action_kind == "box" else np.int64
        try:
            known = np.array(report.actions, dtype).reshape((-1, *vector.spaces.action_shape))
        except (ValueError, TypeError, OverflowError):
            known = np.zeros((0,), dtype)
        if len(known) != (report.step or 0):
            raise RunFailed(f"the report's actions are not {report.step} of the environment's")
        return lambda _obs, number: known[number - 1 : number]
    from mlxe_async.policy import load_policy
    from mlxe_async.seeds import generator

    try:
        policy = load_policy(folder, "last", trust=trust)
    except MlxeError as error:
        raise RunFailed(f"neither the actions are known nor a policy to draw them from: {error}") from error
    rng = generator(int(report.seed or 0), "repro")
    return lambda obs, _number: np.asarray(policy.chosen(obs[None], rng))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
