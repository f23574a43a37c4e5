"""Films an episode of each tested version that is better than all before it, for `evaluation.video`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlxe_async.algorithms.interface import Acting
from mlxe_async.errors import EnvironmentFault, MlxeError, ResourceError, TaskError
from mlxe_async.roles.trials import Floats, Rules, Verdict
from mlxe_async.tasks.recording import EXTRA, Recording
from mlxe_async.tasks.vector import VectorTask

MOST_STEPS, MOST_BYTES = 2000, 2**28
"""Of the pictures of one video, which are in memory until it is written."""
_NAME = re.compile(r"version-\d+-return-(-?\d+\.\d\d)\.mp4")


class Videos:
    """Films for the evaluator. What was filmed before, by an earlier life too, is known by the names in the folder.

    Args:
        algorithm: whose greedy policy is filmed; it is only given weights where it carries something.
        task: the `[task]` table.
        rules: of the tests; an episode from their first start is filmed.
        folder: where `version-N-return-R.mp4` go, made with the first.

    Attributes:
        told: a sentence for each film that could not be made; its reader takes it out.
    """

    def __init__(self, algorithm: Any, task: Mapping[str, Any], rules: Rules, folder: Path) -> None:
        self._algorithm, self._rules, self._folder = algorithm, rules, folder
        self._task = pictured(task)
        self._best: float | None = None
        self.told: list[str] = []

    def judged(
        self, verdict: Verdict, flat: Floats, tick: Callable[[], None] = lambda: None, state: str | None = None
    ) -> Path | None:
        """Film a version (P,), if its test came to more than all before it; what goes wrong is told, not raised.

        Args:
            verdict: of its test.
            flat: its weights.
            tick: called after each step.
            state: what wrappers know.

        Returns:
            The file, None if there is none.
        """
        if self._best is None:
            self._best = max(_filmed(self._folder), default=-np.inf)
        if verdict.fault or not verdict.return_mean > self._best:
            return None
        path = self._folder / f"version-{verdict.version}-return-{verdict.return_mean:.2f}.mp4"
        self._best = verdict.return_mean
        try:
            self._film(path, flat, tick, state)
        except (MlxeError, OSError) as error:
            self.told.append(f"no video of version {verdict.version}: {error}")
            return None
        return path

    def _film(self, path: Path, flat: Floats, tick: Callable[[], None], state: str | None) -> None:
        carried = tuple(getattr(self._algorithm, "carry", ()))
        acting = Acting().start(carried, 1) if carried else None
        if acting is not None:
            self._algorithm.load(flat)
        limit, flats = min(MOST_STEPS, self._rules.max_episode_steps), flat[None]  # the same array: it is prepared once
        with Recording(path, "") as recording:
            how: dict[str, Any] = {"max_episode_steps": limit, "wrap": recording.wrap, "state": state}
            task = VectorTask(self._task, 1, evaluation=True, **how)
            try:
                obs = task.reset(0, self._rules.resets(of_test_set=task.episodes is not None)[0])[None]
                limit = min(limit, MOST_BYTES // max(1, recording.frame_bytes))
                for _ in range(limit):
                    if acting is None:
                        action = self._algorithm.greedy_many(flats, obs[None])[0]
                    else:
                        action = self._algorithm.greedy(obs, acting)
                        acting.began = np.zeros(1, bool)
                    step = task.step(action)
                    tick()
                    if step.faults:
                        raise step.faults[0]
                    if step.ended:
                        break
                    obs = step.next_obs
                recording.end_episode(is_last=True)
            finally:
                task.close()


def pictured(task: Mapping[str, Any]) -> dict[str, Any]:
    """The `[task]` table of environments that show themselves as pictures."""
    return {**task, "kwargs": {**task.get("kwargs", {}), "render_mode": "rgb_array"}}


def check(task: Mapping[str, Any], made: list[Any]) -> None:
    """See that an environment can be filmed, by filming its first picture.

    Args:
        task: the `[task]` table.
        made: environments that were made are added here, for the caller to close.

    Raises:
        TaskError: it cannot, or a package is missing; with what to install.
        ResourceError: there is no temporary folder.
    """
    try:
        with Recording("check.mp4", "") as recording:
            made.append(vector := VectorTask(pictured(task), 1, evaluation=True, wrap=recording.wrap))
            vector.reset(0, 0)
            if not recording.frame_bytes:
                raise TaskError("the environment shows no picture")
    except EnvironmentFault as fault:
        hint = f": {EXTRA}" if "DependencyNotInstalled" in fault.detail else ""
        raise TaskError(f"the environment cannot be filmed{hint} ({fault.detail})") from fault


def _filmed(folder: Path) -> list[float]:
    """Returns of the versions that were filmed."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ResourceError(f"the videos in {folder} cannot be listed: {error.strerror}") from error
    return [float(match[1]) for name in names if (match := _NAME.fullmatch(name))]
