"""Checkpoints of weights: the newest and the best tested ones are saved, and weights of another run are loaded."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlxe_async.errors import MlxeError, ResourceError, SettingsError
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.ipc.shared.weights import WeightsReader
from mlxe_async.logs import events
from mlxe_async.rows import Array
from mlxe_async.settings import Settings
from mlxe_async.storage import checkpoints
from mlxe_async.storage.run_folder import CHECKPOINTS, RunFolder, find_run
from mlxe_async.storage.safe_text import visible
from mlxe_async.supervisor.plan.budget import Counters
from mlxe_async.supervisor.plan.event_log import EventLog


def published_weights(segment: Segment, parameters: int) -> tuple[int, Array] | None:
    """Version and weights (P,) of the newest publication; None before the first."""
    flat = np.empty(parameters, dtype=np.float32)
    version = WeightsReader(segment).read(flat)
    return None if version is None else (version, flat)


@dataclass(frozen=True)
class Origin:
    """The weights of another run that a run begins with.

    Args:
        run: the other run's folder.
        number: of the checkpoint.
        version: of the weights in it.
        flat: the weights (P,).
        rejected: number and cause of each checkpoint that was passed over because it is damaged.
    """

    run: Path
    number: int
    version: int
    flat: Array
    rejected: tuple[tuple[int, str], ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of the weights."""
        return hashlib.sha256(self.flat.tobytes()).hexdigest()

    def __str__(self) -> str:
        return f"checkpoint {self.number}, version {self.version}, of {visible(str(self.run))}"


def weights_to_begin_with(settings: Settings, facts: Mapping[str, Any]) -> Origin | None:
    """The newest weights of the run that `[run] init_from` names, None if it names none.

    Raises:
        SettingsError: there is no such run, it saved nothing, or its network has other shapes.
    """
    if settings.run.init_from is None:
        return None
    place = settings.places.of(("run", "init_from"))
    try:
        folder, rejected = find_run(settings.run.init_from), list[tuple[int, str]]()
        tensors, saved = checkpoints.load(
            folder / CHECKPOINTS,
            "last",
            lambda number, cause: rejected.append((number, cause)),
            checkpoints.check_weights,
        )
    except MlxeError as error:
        raise SettingsError([f"{place}: run.init_from: {error}"]) from error
    if saved["parameters"] != facts["parameters"]:
        got = sum(tensor.size for tensor in tensors.values())
        problem = f"got {got:,} weights in other shapes than those of this task and [algorithm]"
        raise SettingsError([f"{place}: run.init_from: {problem}"])
    flat = np.concatenate([tensors[name].ravel() for name, _ in saved["parameters"]]).astype(np.float32)
    return Origin(folder, int(saved["number"]), int(saved["version"]), flat, tuple(rejected))


@dataclass(frozen=True)
class _Best:
    """The best version tested so far, with the counters of the moment when that was known."""

    version: int
    flat: Array
    score: float
    counters: dict[str, int]
    state: str | None = None


class WeightsSaver:
    """Writes checkpoints of one run; a failure is told and the run goes on.

    Beside the newest weights it keeps the best ones tested so far: those with the highest mean return in their test,
    the newer of two alike. They are written just before the next ordinary checkpoint, and at the end of the run, so
    that an improvement every second does not mean a write every second.

    Args:
        settings: the run's settings.
        facts: what the probe reported.
        folder: the run's folder.
        log: tells the log.
        counters: the run's counters.
    """

    def __init__(
        self, settings: Settings, facts: Mapping[str, Any], folder: RunFolder, log: EventLog, counters: Counters
    ) -> None:
        self._settings, self._facts, self._folder = settings, facts, folder
        self._log, self._counters = log, counters
        self._number = 0
        self._best: _Best | None = None
        self._best_saved = 0
        self.state_of: Callable[[int], str | None] = lambda _version: None
        "The state that wrappers have by a version, see `roles.wrapper_states`."
        self.unsaved: str | None = None
        "Why nothing could be saved the last time; None if it was."
        # The regular ones are written by a thread, so that a slow disk does not stop the loop.
        self._one_at_a_time = threading.Lock()
        self._thread, self._untold = threading.get_ident(), list[events.Event]()

    @property
    def score(self) -> float | None:
        """The highest mean return that a tested version reached, None before the first test."""
        return None if self._best is None else self._best.score

    @property
    def best(self) -> int | None:
        """The version that reached it, the newest of several."""
        return None if self._best is None else self._best.version

    def tested(self, version: int, flat: Array, score: float) -> None:
        """Hear of a test: weights (P,), which must not change any more, and the mean return they reached."""
        if math.isfinite(score) and (self._best is None or score >= self._best.score):
            self._best = _Best(version, flat, score, self._counters.to_json(), self.state_of(version))

    def save(self, version: int, flat: Array, *, solved_at: Mapping[str, Any] | None, solved: bool = False) -> None:
        """Save weights (P,), with what is known about them, and first the best ones if they are others."""
        with self._one_at_a_time:
            best, facts = self._best, {"solved": solved, "counters": self._counters.to_json(), "solved_at": solved_at}
            if best is not None and best.version == version:
                facts["score"] = best.score
            elif best is not None and not solved and best.version != self._best_saved:
                self._write_best(best, solved_at)
            self._write(version, flat, facts)

    def tell(self) -> None:
        """Write the lines on what another thread has saved."""
        while self._untold:
            self._log.emit(self._untold.pop(0))

    # -- whole checkpoints --------------------------------------------------------------------------------------------

    def next_number(self) -> int:
        """A number for another checkpoint."""
        with self._one_at_a_time:
            self._number += 1
            return self._number

    def stage(self, number: int) -> Path:
        """A folder for the files of a whole checkpoint.

        Raises:
            ResourceError: it cannot be made.
        """
        self._check_folder()
        return self._folder.stage_checkpoint(number)

    def drop_staged(self, number: int) -> None:
        """Remove what was staged, when nothing comes of it."""
        self._folder.drop_staged_checkpoint(number)

    def failed(self, number: int, error: BaseException) -> None:
        """Tell that a whole checkpoint could not be saved, and leave nothing of it."""
        self.drop_staged(number)
        self._failed(number, error)

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return what is known of the best version tested so far, to be kept."""
        best = self._best
        if best is None:
            return {}, {}
        about = {"version": best.version, "score": best.score, "counters": best.counters, "saved": self._best_saved}
        return about | ({} if best.state is None else {"wrappers": best.state}), {"best": best.flat}

    def restore(self, facts: Mapping[str, Any], best: Array | None) -> None:
        """Go on from there, with numbers that no checkpoint in the folder has."""
        self._number = max(checkpoints.numbers(self._folder.checkpoints_path), default=0)
        if best is not None:
            self._best = _Best(facts["version"], best, facts["score"], facts["counters"], facts.get("wrappers"))
            self._best_saved = facts["saved"]

    def save_whole(
        self, number: int, version: int, flat: Array, state: Mapping[str, Any], files: Mapping[str, Any], began: float
    ) -> bool:
        """Complete what is staged under this number by the weights (P,) and by what is known; first the best ones."""
        with self._one_at_a_time:
            best = self._best
            about = {"solved": False, "counters": state["counters"], "solved_at": state["solved_at"], "state": state}
            if best is not None and best.version == version:
                about["score"] = best.score
            elif best is not None and best.version != self._best_saved:
                self._write_best(best, state["solved_at"])
            return self._write(version, flat, about, number, files, began)

    def _failed(self, number: int, error: BaseException) -> None:
        self.unsaved = str(error)
        self._tell(events.CheckpointRejected(number=number, cause=self.unsaved))

    def _tell(self, event: events.Event) -> None:
        """Have subscribers hear of it from the thread that made this object, whichever saves."""
        self._untold.append(event)
        if threading.get_ident() == self._thread:
            self.tell()

    def _check_folder(self) -> None:
        # Else it would be made again, without the log and all else.
        if not self._folder.is_there:
            raise ResourceError(f"the run folder {self._folder.path} cannot be found any more")

    def _write_best(self, best: _Best, solved_at: Any) -> None:
        about = {"solved": False, "best": True, "score": best.score, "counters": best.counters, "solved_at": solved_at}
        about["wrappers"] = best.state
        if self._write(best.version, best.flat, about):
            self._best_saved = best.version

    def _write(
        self,
        version: int,
        flat: Array,
        about: Mapping[str, Any],
        number: int | None = None,
        files: Mapping[str, Any] | None = None,
        began: float | None = None,
    ) -> bool:
        tensors, start = {}, 0
        for name, shape in self._facts["parameters"]:
            size = int(np.prod(shape, dtype=np.int64))
            tensors[name] = flat[start : start + size].reshape(shape)
            start += size
        state = about["wrappers"] if "wrappers" in about else self.state_of(version)
        facts = {
            "version": version,
            **about,
            "wrappers": state,
            "parameters": self._facts["parameters"],
            "spaces": self._facts["spaces"],
            "algorithm": {"name": self._settings.algorithm.name, **self._facts["algorithm"]},
        }
        if number is None:
            self._number += 1
            number = self._number
        began = began or time.monotonic()
        keep = self._settings.checkpoint.keep
        try:
            self._check_folder()
            size = self._folder.save_checkpoint(number, tensors, facts, keep, files)
        except (OSError, MlxeError) as error:
            self._failed(number, error)
            return False
        self.unsaved = None
        self._tell(
            events.Checkpoint(
                number=number,
                version=version,
                bytes=size,
                seconds=time.monotonic() - began,
                solved=bool(about["solved"]),
                best=bool(about.get("best")),
                whole=files is not None,
            )
        )
        return True
