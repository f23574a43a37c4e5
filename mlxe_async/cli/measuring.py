"""One short run of a settings file with some keys changed: its rate, and what its verdict advises."""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxe_async.analysis.tuning import Knobs
from mlxe_async.errors import RunFailed
from mlxe_async.settings import Settings, load_settings

if TYPE_CHECKING:
    from mlxe_async.supervisor import Supervisor

WINDOW_S = 2.5
LATEST_S = 30.0
"""Seconds within which a run must have learned for so long."""
ROUNDS = 4
"""Learn phases that a rate is at least made of, unless they are so slow that the window is over twice."""


@dataclass(frozen=True)
class ShortRun:
    """A measured run.

    Args:
        rate: rows per second, from the first update to the last.
        advised: settings that its verdict predicts to help.
        predicted: the rate with them, as a multiple; None: not known.
        limit: what limits it.
        settings: those of the run, with all defaults.
    """

    rate: float
    advised: dict[str, Any]
    predicted: float | None
    settings: Settings
    limit: str = ""


def settings_with(file: str, overrides: Sequence[str], changes: Mapping[str, Any]) -> Settings:
    """The settings of a file with overrides and then changes by key; a change to None leaves the key out.

    Raises:
        SettingsError: they do not go together.
    """
    left_out = {key for key, value in changes.items() if value is None}
    sets = [one for one in overrides if one.partition("=")[0].strip() not in left_out]
    sets += [f"{key}={json.dumps(value)}" for key, value in changes.items() if value is not None]
    if not left_out:
        return load_settings(file, sets)
    known = load_settings(file, overrides).run
    raw: dict[str, Any] = tomllib.loads(Path(file).read_text())
    for key in left_out:
        table, _, name = key.partition(".")
        raw.get(table, {}).pop(name, None)
    raw["run"] = {**raw.get("run", {}), "name": known.name, "python_path": list(known.python_path)}
    return load_settings(raw, sets)


async def measured(file: str, overrides: Sequence[str], changes: Mapping[str, Any]) -> ShortRun:
    """Run a file with changed keys until it has learned for `WINDOW_S`; nothing of the run is kept.

    Raises:
        SettingsError: the keys do not go together.
        MlxeError: the run failed, or hardly learned within `LATEST_S`.
    """
    from mlxe_async.supervisor import Supervisor

    settings = settings_with(file, overrides, changes)
    ends = {"env_steps": None, "episodes": None, "episode_steps": None, "updates": None, "steps_after_solved": None}
    stop = settings.stop.model_copy(update={**ends, "solved": False, "seconds": LATEST_S})
    quiet = settings.checkpoint.model_copy(update={"interval_s": 0.0, "interval_steps": 0})
    settings = settings.model_copy(update={"stop": stop, "checkpoint": quiet})
    with tempfile.TemporaryDirectory(prefix="mlxe-tune-") as folder:
        supervisor = Supervisor(settings, run_dir=folder)
        heard = _Heard(supervisor)
        supervisor.subscribe(heard, ["phase", "bottleneck"])
        await supervisor.run()
    return ShortRun(heard.rate(), heard.advised, heard.predicted, supervisor.settings, heard.limit)


class _Heard:
    """Hears of a run until it has learned for long enough, and asks it to stop then."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._learned: list[tuple[float, int]] = []
        self._begun: float | None = None
        self.advised: dict[str, Any] = {}
        self.predicted: float | None = None
        self.limit = ""

    def __call__(self, line: Mapping[str, Any]) -> None:
        if line["event"] == "bottleneck":
            self.advised, self.predicted, self.limit = dict(line["change"]), line["predicted"], line["slowest"]
            return
        if self._begun is None:
            self._begun = line["start_ns"] / 1e9
        if line["phase"] == "learn" and line["updates"]:
            self._learned.append((line["mono_ns"] / 1e9, line["env_steps"]))
            lasted = self._learned[-1][0] - self._learned[0][0]
            if lasted >= WINDOW_S and (len(self._learned) > ROUNDS or lasted >= 2 * WINDOW_S):
                self._supervisor.request_stop("measured")

    def rate(self) -> float:
        """Rows per second, from the first update on; where there is but one, from the first step on.

        Raises:
            RunFailed: there was no update.
        """
        if len(self._learned) == 1 and self._begun is not None:
            self._learned.insert(0, (self._begun, 0))
        if len(self._learned) < 2 or self._learned[-1][0] <= self._learned[0][0]:
            raise RunFailed(
                f"measuring a run: expected updates within {LATEST_S:g} s, got {len(self._learned)}; have it learn "
                "earlier, such as by algorithm.start_rows or schedule.rollout_steps"
            )
        (begin, before), (end, after) = self._learned[0], self._learned[-1]
        return (after - before) / (end - begin)


def knobs_of(settings: Settings) -> Knobs:
    """Return those of a run's settings, with all defaults, that decide about its pace."""
    from mlxe_async.algorithms import REGISTRY, load_algorithm

    name, schedule = settings.algorithm.name, settings.schedule
    return Knobs(
        kind=schedule.kind,
        executors=schedule.executors,
        envs=schedule.envs_per_executor,
        sync=schedule.sync,
        rollout_steps=schedule.rollout_steps,
        memorizer=schedule.memorizer,
        threads=settings.learner.threads,
        device=settings.learner.device,
        is_replay=load_algorithm(name).memory == "replay" if name in REGISTRY else None,
        capacity=settings.memory.capacity_rows,
        gradients=schedule.gradients,
    )
