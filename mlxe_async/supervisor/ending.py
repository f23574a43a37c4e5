"""How a run ended: the reason, the exit code, the last words."""

from __future__ import annotations

import asyncio
import hashlib
import traceback
from collections.abc import Callable

from mlxe_async.errors import MlxeError, ResourceError
from mlxe_async.rows import Array
from mlxe_async.supervisor.recording import Ended, Recorder, Recording
from mlxe_async.supervisor.story import Story

SIGNAL_EXITS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


def verdict(
    asked: str | None,
    failure: BaseException | None,
    is_there: Callable[[], bool],
    requested: str | None = None,
    unsaved: str | None = None,
) -> tuple[str, int]:
    """Reason and exit code.

    Args:
        asked: why the budget ran out, if it did.
        failure: what was raised, if anything.
        is_there: whether the run folder still is; only asked where nothing was raised.
        requested: what a stop was last asked for by, be it that the run was ending already.
        unsaved: why the last weights could not be saved, if they could not.
    """
    reason = asked or "finished"
    exit_code = SIGNAL_EXITS.get(reason, 0)
    if failure is not None:
        reason = "cancelled" if isinstance(failure, asyncio.CancelledError) else f"failed: {failure}"
        exit_code = failure.exit_code if isinstance(failure, MlxeError) else 3
        if isinstance(failure, asyncio.CancelledError):  # a second signal stops at once
            exit_code = SIGNAL_EXITS.get(requested or asked or "", exit_code)
    elif not is_there():
        reason, exit_code = f"the run folder was removed while it ran ({reason})", ResourceError.exit_code
    elif unsaved and exit_code == 0:
        reason, exit_code = f"{reason}, but the last weights could not be saved: {unsaved}", ResourceError.exit_code
    return reason, exit_code


def end_recording(recorder: Recorder, digest: str | None, story: Story, *, busy: bool) -> None:
    """Write the last word of a recording, if there is one; `busy`: the learner was in the middle of an update."""
    if not isinstance(recorder, Recording):
        return
    if digest is None or busy:
        recorder.note(Ended("", "the run ended in the middle of an update"))
    else:
        recorder.note(Ended(digest))
    recorder.close()
    if recorder.failure:
        story.warn(recorder.failure)


def trace_of(failure: BaseException | None) -> str:
    """The traceback of a mistake of our own; what was raised on purpose says all in a sentence."""
    if failure is None or isinstance(failure, MlxeError | asyncio.CancelledError):
        return ""
    return "".join(traceback.format_exception(failure))


def digest_of(flat: tuple[int, Array] | None) -> str | None:
    """SHA-256 of flat weights."""
    return hashlib.sha256(flat[1].tobytes()).hexdigest() if flat else None
