"""Every error a user can meet, each with the exit code of the command that ends because of it."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_OURS = str(Path(__file__).parent)
_LIBRARY = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class MlxeError(Exception):
    """Base of all errors raised on purpose; `exit_code` is the process exit code it leads to."""

    exit_code = 3


class SettingsError(MlxeError):
    """The settings are not acceptable. `problems` holds one line each: place, key, got, expected."""

    exit_code = 2

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Untrusted(SettingsError):
    """A folder from elsewhere names code that is neither built in nor trusted by the caller; nothing of it was run."""


class TaskError(MlxeError):
    """The environment cannot be made or does not keep its contract when it is probed."""

    exit_code = 2


class NotFound(MlxeError):
    """What a command or a call names is not there, or is something else than it takes: a run, checkpoint or report."""

    exit_code = 2


class UnsupportedPlatform(MlxeError):
    """The host lacks something that cannot be done without, such as Linux itself."""

    exit_code = 4


class ResourceError(MlxeError):
    """Memory, descriptors, processes, disk or permissions do not suffice."""

    exit_code = 4


class RunFailed(MlxeError):
    """The run cannot go on: a mandatory process is lost for good or a restart budget is used up."""

    exit_code = 3


class Hung(RunFailed):
    """A call into foreign code did not return within its limit, before the run had a log to tell of it.

    Args:
        sentence: which call, the limit, and where it hangs.
        stack: Python's stack in that call; empty if it could not be written.
    """

    def __init__(self, sentence: str, stack: str = "") -> None:
        super().__init__(sentence)
        self.stack = stack


class StoppedEarly(MlxeError):
    """The run was asked to stop before it had begun.

    Args:
        reason: who or what asked: a signal's name, or a caller's words.
        exit_code: what the command returns.
    """

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(f"stopped ({reason}) before the run had begun: nothing was learned, and nothing is left")
        self.exit_code = exit_code


class NumericError(MlxeError):
    """Learning produced non-finite numbers again and again."""

    exit_code = 5


class NonFiniteWeights(NumericError):
    """Weights with a NaN or an infinity were offered for publication; the old version stays."""


class UpdateFailed(MlxeError):
    """An algorithm's `update` raised; the learner's process ends, and another one goes on from what was published."""

    fatal = True


class AuditFailed(MlxeError):
    """What the learner computed is not what the algorithm's file says; the message says what differs by how much."""

    exit_code = 3


class Unpublished(MlxeError):
    """Executors would act by something that the learner changed and that is not published; the message names it."""

    exit_code = 3


class AttemptBroken(MlxeError):
    """An update that several workers made together cannot be finished; all make it again."""


class StepsDiffer(MlxeError):
    """Workers that learn together did not take the same steps; the message says which."""

    exit_code = 3


class RunFolderBusy(MlxeError):
    """Another living run holds the folder."""

    exit_code = 75


class ProtocolError(MlxeError):
    """Bytes on a control pipe, or words in shared memory, are not what was agreed."""


class CorruptRecord(MlxeError):
    """A committed record in shared memory fails its checks. It is set aside, never served."""


class ProcessDied(MlxeError):
    """A child process ended without being asked to; the message says how."""


class ForkRefused(ProcessDied):
    """The kernel would not make another process; the message names the limit, if one is known."""

    exit_code = 4


class ExecutorBroken(MlxeError):
    """Something failed in an executor that is no author's algorithm, such as numpy that an environment patched.

    Its process ends, and another one is started.
    """

    fatal = True


class OutOfMemory(ProcessDied):
    """The kernel ended a process because memory ran out."""

    exit_code = 4


class EnvironmentFault(MlxeError):
    """An environment raised or broke its contract.

    Args:
        detail: one sentence saying what was expected and what came.
        phase: `"make"`, `"reset"` or `"step"`.
        env_index: which of the executor's environments, from 0.
        seed: the seed of the episode; None when there is none yet.
        step: the step it happened in, counted from 1; 0 before the first.
        trace: the traceback as text, empty when nothing was raised.
    """

    def __init__(
        self, detail: str, *, phase: str, env_index: int, seed: int | None = None, step: int = 0, trace: str = ""
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.phase = phase
        self.env_index = env_index
        self.seed = seed
        self.step = step
        self.trace = trace

    @property
    def nonfinite(self) -> bool:
        """True if the fault is a NaN or an infinity; what an exception of the environment's own says does not count."""
        return not self.trace and "finite number" in self.detail


def raised_at(error: BaseException, *, anywhere: bool = False) -> str:
    """Return where an exception was raised, as `file.py:12`: in the innermost line that is no library's and not ours.

    Args:
        error: any exception; of a syntax error it is the line that cannot be read.
        anywhere: where there is no such line, name our innermost one, or else the innermost of all; without it the
            answer is empty then.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    users = [frame for frame in frames if not frame.filename.startswith((_OURS, *_LIBRARY))]
    ours = [frame for frame in frames if frame.filename.startswith(_OURS)]
    chosen = users or ((ours or frames) if anywhere else [])
    return f"{chosen[-1].filename}:{chosen[-1].lineno}" if chosen else ""


def written_at(function: object) -> str:
    """Return where a function of a user begins, as `file.py:12`; empty if it is ours, a library's or not in Python."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_filename.startswith((_OURS, *_LIBRARY, "<")):
        return ""
    return f"{code.co_filename}:{code.co_firstlineno}"
