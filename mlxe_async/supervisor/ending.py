"""How a run ended: reason, exit code, and the last line of its log."""

from __future__ import annotations

import asyncio
import hashlib
import traceback
from collections.abc import Callable

from mlxe_async.errors import MlxeError, NumericError, ResourceError
from mlxe_async.ipc.messages.remote_error import RemoteError
from mlxe_async.logs import events
from mlxe_async.rows import Array
from mlxe_async.supervisor.checkpointing.weights import published_weights
from mlxe_async.supervisor.monitoring.periodic import Periodic
from mlxe_async.supervisor.plan.budget import Measures
from mlxe_async.supervisor.plan.event_log import EventLog
from mlxe_async.supervisor.plan.results import Result
from mlxe_async.supervisor.recording.file import Recording
from mlxe_async.supervisor.recording.steps import Ended, Recorder
from mlxe_async.supervisor.run_files import RunFiles
from mlxe_async.supervisor.startup.start import Startup

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
        requested: cause of the last request to stop, also of one that came while the run was ending.
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
    elif unsaved:
        reason, exit_code = f"{reason}, but the last weights could not be saved: {unsaved}", ResourceError.exit_code
    return reason, exit_code


def what_is_saved(not_whole: str, unsaved: str | None) -> str:
    """Return what the run can go on from, where its last checkpoint is not a whole one; a sentence for the log.

    Args:
        not_whole: why it is not.
        unsaved: why the newest weights could not be saved either, if they could not.
    """
    weights = "the newest weights are saved" if unsaved is None else f"the newest weights are not saved: {unsaved}"
    return f"{not_whole}: {weights}; --resume goes on from the whole checkpoint before, if there is one"


def end_recording(recorder: Recorder, digest: str | None, log: EventLog, *, busy: bool) -> None:
    """Write the last word of a recording, if there is one; `busy`: the learner was in the middle of an update."""
    if not isinstance(recorder, Recording):
        return
    if digest is None or busy:
        recorder.note(Ended("", "the run ended in the middle of an update"))
    else:
        recorder.note(Ended(digest))
    recorder.close()
    if recorder.failure:
        log.warn(recorder.failure)


def trace_of(failure: BaseException | None) -> str:
    """The traceback of a mistake of our own, or of foreign code; what was raised on purpose says all in a sentence."""
    if failure is not None and isinstance(failure.__cause__, RemoteError) and failure.__cause__.place:
        return failure.__cause__.trace
    if failure is None or isinstance(failure, MlxeError | asyncio.CancelledError):
        return ""
    return "".join(traceback.format_exception(failure))


def last_weights(startup: Startup) -> tuple[int, Array] | None:
    """Version and weights (P,) to end with, if there are any; where they are damaged the run still has its end."""
    if startup.files is None or not startup.segments:
        return None
    try:
        return published_weights(startup.segments["weights"], startup.blueprint.parameters)
    except MlxeError as error:
        startup.files.log.warn(f"the last weights cannot be saved: {error}")
        return None


def tell_accounts(periodic: Periodic, files: RunFiles) -> None:
    """Tell the accounts of rows and of time for the last time."""
    try:
        periodic.tell_ledger()
    except MlxeError as error:  # damaged shared memory has no account, but the run still has its end
        files.log.warn(str(error))
    periodic.tell_times()


def digest_of(flat: tuple[int, Array] | None) -> str | None:
    """SHA-256 of flat weights."""
    return hashlib.sha256(flat[1].tobytes()).hexdigest() if flat else None


def tell_end(
    files: RunFiles,
    measures: Measures,
    periodic: Periodic | None,
    flat: tuple[int, Array] | None,
    failure: BaseException | None,
    *,
    busy: bool,
    requested: str | None,
    replayed: str | None,
) -> Result:
    """Find the verdict, and say the last words: in the recording, the log and the status.

    Args:
        files: the run's log, folder and checkpoints.
        measures: the run's counters, budget and clocks.
        periodic: what went on beside the schedule; None where it did not come to that.
        flat: version and weights (P,) of the newest publication, None where there is none.
        failure: what was raised, if anything.
        busy: whether the learner was in the middle of an update.
        requested: what a stop was last asked for by, if it was.
        replayed: of a replay, how far it came.
    """
    counters, log = measures.counters, files.log

    def is_there() -> bool:
        return periodic is None or periodic.check_folder()

    reason, exit_code = verdict(measures.budget.reason, failure, is_there, requested, files.saver.unsaved)
    digest = digest_of(flat)
    if files.resumption is not None:
        files.resumption.tell(exact=False)  # it ended before all was taken up
    end_recording(files.recorder, digest, log, busy=busy)
    result = Result(
        reason=reason,
        solved=files.solved.at is not None,
        steps=counters.env_steps,
        episodes=counters.episodes,
        updates=counters.updates,
        seconds=measures.seconds,
        run_dir=files.folder.path,
        exit_code=exit_code,
        weights_hash=digest,
        solved_at=files.solved.at,
        mean_return=None if exit_code == NumericError.exit_code else log.mean_return,
        score=files.saver.score,
        best=files.saver.best,
        env_errors=counters.env_errors,
        restarts=counters.restarts,
        replayed=replayed,
    )
    log.emit(
        events.RunEnd(
            reason=reason,
            solved=result.solved,
            episodes=result.episodes,
            env_steps=result.steps,
            updates=result.updates,
            seconds=result.seconds,
            cpu_seconds=measures.cpu.total(),
            weights_hash=digest,
            exit_code=exit_code,
            trace=trace_of(failure),
        )
    )
    if periodic is not None:
        periodic.write_status(reason)
    return result
