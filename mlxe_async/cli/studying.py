"""Running one run of a study: as a user would, in a process of its own that does not outlive this one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from mlxe_async.analysis import past_runs
from mlxe_async.analysis.outcomes import Outcome, failure, outcome
from mlxe_async.analysis.study import Arm, StudyFolder
from mlxe_async.cli.console import Console
from mlxe_async.errors import MlxeError, RunFailed
from mlxe_async.ipc.processes.linux import die_with_parent
from mlxe_async.settings import toml_value
from mlxe_async.storage.files import read_bounded
from mlxe_async.storage.run_folder import LOCK, LOG
from mlxe_async.storage.safe_text import visible

PATIENCE_S = 10.0
LONGEST_SAID, LONGEST_LOCK = 2**16, 4096
WHOLE_LOG = "logs.max_mb=1048576"
"""Runs are judged by their logs: one whose oldest lines were dropped cannot be."""
# A failed run and one that ran into non-finite numbers are outcomes; the other codes say that nothing was tried.
FAILURES = {3, 5}
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED = {128 + number for number in STOPPING}


class Interrupted(Exception):
    """The user asked this command to stop.

    Args:
        number: by which signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = signal.Signals(number).name
        self.exit_code = 128 + number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within the block, a signal to stop raises `Interrupted`."""

    def stop(number: int, _: FrameType | None) -> None:
        raise Interrupted(number)

    before: dict[signal.Signals, Any] = {}
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for installed, handler in before.items():
            signal.signal(installed, handler)


class Runner:
    """Runs the command again and again, and judges what each run leaves.

    Args:
        kept: the study's folder.
        console: for notes.
        longest_s: a run that takes longer is ended, and has failed.
        keep_runs: whether folders of runs that did not fail are kept.
    """

    def __init__(self, kept: StudyFolder, console: Console, *, longest_s: float, keep_runs: bool) -> None:
        self._kept, self._console, self._longest_s, self._keep_runs = kept, console, longest_s, keep_runs

    def run_once(self, arm: Arm, seed: int) -> Outcome:
        """Run one of the settings with one seed to its end.

        Raises:
            RunFailed: nothing was tried: a mistake in the task, no memory, or it was stopped.
        """
        with contextlib.closing(self.side_by_side([(arm, seed)], 1)) as runs:
            return next(runs)[2]

    def side_by_side(
        self, rounds: Sequence[tuple[Arm, int]], jobs: int
    ) -> Generator[tuple[Arm, int, Outcome], None, None]:
        """Run settings with seeds, at most `jobs` at the same time; each is told as soon as it has ended.

        Raises:
            RunFailed: as `run_once`; the others are ended.
        """
        waiting, under_way = list(rounds), dict[UnderWay, tuple[Arm, int]]()
        try:
            while waiting or under_way:
                while waiting and len(under_way) < jobs:
                    arm, seed = waiting.pop(0)
                    under_way[UnderWay(self._command(arm, seed), self._longest_s)] = arm, seed
                for one in ended(list(under_way)):
                    arm, seed = under_way.pop(one)
                    newest_first = reversed(_run_folders(self._kept.runs))  # numbers of processes come again
                    folder = next((path for path in newest_first if _made_by(path) == one.pid), None)
                    code, said = one.close()
                    found = self._judged(arm, seed, code, said, folder, one.started_ns)
                    beside = {"jobs": jobs} if jobs > 1 else {}
                    yield arm, seed, dataclasses.replace(found, facts={**found.facts, **beside})
        finally:
            for one in under_way:
                one.close()

    def _command(self, arm: Arm, seed: int) -> list[str]:
        where = f"run.dir={toml_value(str(self._kept.runs))}"
        overrides = [*arm.overrides, f"run.seed={seed}", f"run.name={arm.name}", where, WHOLE_LOG]
        sets = [part for override in overrides for part in ("--set", override)]
        return [sys.executable, "-m", "mlxe_async", arm.file, "--no-progress", *sets]

    def _judged(
        self, arm: Arm, seed: int, code: int | None, said: str, folder: Path | None, started_ns: int
    ) -> Outcome:
        """The outcome of a command that has ended, `code` None: because it took too long."""
        seconds = (time.monotonic_ns() - started_ns) / 1e9
        last = said.strip().splitlines()[-1] if said.strip() else "it said nothing"
        if code is None:
            reason = f"timed out after {self._longest_s:g} s"
        elif code < 0:
            reason = f"killed by {signal.Signals(-code).name}"
        elif code in FAILURES:
            reason = visible(last, 300)
        elif code == 0 and folder is not None:
            return outcome(folder, started_ns, seconds)
        elif code in STOPPED:
            raise RunFailed(f"{arm.name}, seed {seed}: the run was stopped from outside; the same command goes on")
        else:
            told = "\n".join(visible(line, 500) for line in said.strip().splitlines()[-20:])
            raise RunFailed(f"{told}\n{arm.name}, seed {seed}: the run could not be tried (exit code {code})")
        if folder is not None:
            with contextlib.suppress(RunFailed):
                return outcome(folder, started_ns, seconds, killed=reason)
        return failure(arm.name, seed, reason, seconds)

    def let_go(self, one: Outcome) -> None:
        """Remove the folder of a run whose outcome is stored, if folders are not to be kept."""
        path = self._kept.runs / one.run
        is_here = Path(one.run).name == one.run  # an outcome from elsewhere may name a folder of others
        if self._keep_runs or one.failed or not one.run or not is_here or not past_runs.is_run_folder(path):
            return
        try:
            past_runs.remove(past_runs.look_at(path))
        except MlxeError as error:
            self._console.line(str(error))
        past_runs.point_latest(self._kept.runs)


class UnderWay:
    """A run that was started; what it says goes to a file, so that this process need not read along.

    Args:
        command: to be run.
        longest_s: it is ended when it takes longer.
    """

    def __init__(self, command: Sequence[str], longest_s: float) -> None:
        self.started_ns = time.monotonic_ns()
        self.ends_at = time.monotonic() + longest_s
        self.is_late = False
        with contextlib.ExitStack() as stack:
            self._said = stack.enter_context(tempfile.TemporaryFile())
            with _held_back() as mask:
                self._process = subprocess.Popen(
                    command, stderr=self._said, stdout=subprocess.DEVNULL, preexec_fn=_with(os.getpid(), mask)
                )
                stack.callback(self._end)
                self.pid = self._process.pid
                self.descriptor = os.pidfd_open(self.pid)
                stack.callback(os.close, self.descriptor)
            self._open = stack.pop_all()

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return (time.monotonic_ns() - self.started_ns) / 1e9

    def close(self) -> tuple[int | None, str]:
        """End it if it has not ended; the exit code, None if it took too long, and the last that it said."""
        with self._open:
            self._end()
            size = self._said.seek(0, os.SEEK_END)
            self._said.seek(max(0, size - LONGEST_SAID))
            said = self._said.read().decode("utf-8", "replace")
        return None if self.is_late else self._process.returncode, said

    def _end(self) -> None:
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def _held_back() -> Iterator[set[int]]:
    """Signals to stop wait for the end of the block; gives those that were blocked before.

    While a process is forked Python calls what others registered for that, and drops what a signal raises there.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield {int(number) for number in before}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ended(under_way: Sequence[UnderWay], at_most_s: float = math.inf) -> list[UnderWay]:
    """Wait until some have ended, or are late, or for some seconds at most."""
    poll = select.poll()
    for one in under_way:
        poll.register(one.descriptor, select.POLLIN)
    left = min(min(one.ends_at for one in under_way) - time.monotonic(), at_most_s)
    gone = {descriptor for descriptor, _ in poll.poll(max(0.0, left) * 1000)}
    for one in under_way:
        one.is_late = one.descriptor not in gone and time.monotonic() >= one.ends_at
    return [one for one in under_way if one.is_late or one.descriptor in gone]


def _with(parent: int, mask: set[int]) -> Callable[[], None]:
    """Return what a new process does first: however this one ends, a run must not go on beside those of its successor.

    Args:
        parent: this process.
        mask: the signals that the new one blocks.
    """

    def with_us() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        die_with_parent(signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return with_us


def _made_by(folder: Path) -> int | None:
    """The process that last held a run folder."""
    try:
        holder = json.loads(read_bounded(folder / LOCK, LONGEST_LOCK))
        return int(holder["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def pass_adverse_starts(run: Path, console: Console) -> bool | None:
    """Whether the policy that solved a run's task also passes from 20 adverse starts; None, and a line, if untested."""
    from mlxe_async.policy import load_policy

    try:
        policy = load_policy(run, "solved", tell=lambda note: console.line(f"note: {run.name}: {note}"))
        return bool(policy.test(starts="adverse").passed)
    except (MlxeError, ValueError) as error:
        console.line(f"note: {run.name} was not tested from adverse starts: {visible(str(error), 300)}")
        return None


def _run_folders(base: Path) -> list[Path]:
    return sorted(path for path in base.iterdir() if not path.is_symlink() and (path / LOG).is_file())
