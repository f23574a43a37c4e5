"""Running one run of a study: as a user would, in a process of its own that does not outlive this one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from mlxe_async.analysis import past_runs
from mlxe_async.analysis.outcomes import Outcome, failure, outcome
from mlxe_async.analysis.study import Arm, StudyFolder
from mlxe_async.cli.console import Console
from mlxe_async.errors import MlxeError, RunFailed
from mlxe_async.ipc.linux import die_with_parent
from mlxe_async.logs.safe import visible
from mlxe_async.run_folder import LOG
from mlxe_async.settings import toml_value

PATIENCE_S = 10.0
# A failed run and one that ran into non-finite numbers are outcomes; the other codes say that nothing was tried.
FAILURES = {3, 5}
STOPPED = {128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


class Interrupted(Exception):
    """Somebody asked this command to stop.

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
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
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
            RunFailed: nothing was tried: a mistake in the task, no memory, or somebody stopped it.
        """
        runs = self._kept.runs
        before = set(_run_folders(runs))
        overrides = [*arm.overrides, f"run.seed={seed}", f"run.name={arm.name}", f"run.dir={toml_value(str(runs))}"]
        sets = [part for override in overrides for part in ("--set", override)]
        command = [sys.executable, "-m", "mlxe_async", arm.file, "--no-progress", *sets]
        started_ns = time.monotonic_ns()
        code, said = self._to_the_end(command)
        seconds = (time.monotonic_ns() - started_ns) / 1e9
        new = [path for path in _run_folders(runs) if path not in before]
        folder = new[-1] if new else None
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
            raise RunFailed(f"{arm.name}, seed {seed}: somebody stopped the run; the same command goes on")
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
        if self._keep_runs or one.failed or not one.run or not past_runs.is_run_folder(path):
            return
        try:
            past_runs.remove(past_runs.look_at(path))
        except MlxeError as error:
            self._console.line(str(error))
        past_runs.point_latest(self._kept.runs)

    def _to_the_end(self, command: list[str]) -> tuple[int | None, str]:
        """The exit code, None if it took too long, and what it said on stderr."""
        parent = os.getpid()

        def with_us() -> None:
            # However this process ends, a run must not go on beside those of its successor.
            die_with_parent(signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, errors="replace", preexec_fn=with_us
        )
        with process:
            try:
                said = process.communicate(timeout=self._longest_s)[1]
            except subprocess.TimeoutExpired:
                return None, _end(process)
            except BaseException:
                _end(process)
                raise
        return process.returncode, said


def pass_adverse_starts(run: Path, console: Console) -> bool | None:
    """Whether the policy that solved a run's task also passes from 20 adverse starts; None, and a line, if untested."""
    from mlxe_async.policy import load_policy

    try:
        policy = load_policy(run, "solved", tell=lambda note: console.line(f"note: {run.name}: {note}"))
        return bool(policy.test(starts="adverse").passed)
    except (MlxeError, ValueError) as error:
        console.line(f"note: {run.name} was not tested from adverse starts: {visible(str(error), 300)}")
        return None


def _end(process: subprocess.Popen[str]) -> str:
    """Ask the run to end, then make it; returns what it said."""
    process.terminate()
    try:
        return process.communicate(timeout=PATIENCE_S)[1] or ""
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[1] or ""


def _run_folders(base: Path) -> list[Path]:
    return sorted(path for path in base.iterdir() if not path.is_symlink() and (path / LOG).is_file())
