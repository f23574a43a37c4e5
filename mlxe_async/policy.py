"""A trained policy on its own: load it from a run, act with it, play and test it. No executor, no supervisor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlxe_async.algorithms import load_algorithm
from mlxe_async.errors import MlxeError
from mlxe_async.roles.evaluator import Evaluator, Verdict
from mlxe_async.rows import Array, Spaces
from mlxe_async.run_folder import find_run, load_checkpoint
from mlxe_async.settings import Settings, load_settings
from mlxe_async.tasks.vector import VectorTask


@dataclass(frozen=True)
class Episode:
    """One played episode: its steps, the sum of the environment's own rewards, and how it ended."""

    steps: int
    episode_return: float
    terminated: bool


class Policy:
    """Frozen weights of a run.

    Args:
        settings: the run's settings.
        spaces: what its environment shows and takes.
        flat: the weights (P,).
        version: which version they are.
        python_path: ignored when empty; else searched for the user's own modules.
    """

    def __init__(self, settings: Settings, spaces: Spaces, flat: Array, version: int) -> None:
        self.settings, self.spaces, self.version = settings, spaces, version
        self.flat = np.ascontiguousarray(flat, dtype=np.float32)
        algorithm = load_algorithm(settings.algorithm.name)
        table = dict(settings.algorithm.table)
        if "name" not in algorithm.Settings.model_fields:
            del table["name"]
        self.algorithm = algorithm(algorithm.Settings.model_validate(table), spaces, seed=0, learns=False)
        self.algorithm.load(self.flat)

    def act(self, obs: Array, *, rng: np.random.Generator | None = None) -> Array:
        """The greedy action for one observation (O,) or for each of several (B, O); sampled if `rng` is given.

        Observations are those of the environment itself; features that the run's `[task]` adds are added here.

        Raises:
            ValueError: the observation has another shape.
        """
        batch = np.asarray(obs, dtype=self.spaces.observation_dtype)
        single = batch.ndim == len(self.spaces.observation_shape)
        batch = self._featured(batch[None] if single else batch)
        if batch.shape[1:] != self.spaces.observation_shape:
            raise ValueError(
                f"policy acting: expected observations of shape {self.spaces.observation_shape}, got {batch.shape[1:]}"
            )
        chosen = self.algorithm.greedy(batch) if rng is None else self.algorithm.act(batch, rng)["action"]
        action: Array = np.asarray(chosen)
        return action[0] if single else action

    def play(
        self,
        episodes: int = 1,
        *,
        seed: int = 0,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        on_step: Callable[[], None] = lambda: None,
    ) -> Iterator[Episode]:
        """Play greedily in the run's environment, without adverse starts and shaped rewards.

        Args:
            episodes: how many.
            seed: of the first episode; the next ones count up.
            max_episode_steps: instead of the evaluation's.
            render_mode: as gymnasium takes it, `"human"` for a window.
            on_step: called after each step.
        """
        task = self.settings.task.model_dump()
        if render_mode:
            task["kwargs"] = {**task["kwargs"], "render_mode": render_mode}
        limit = max_episode_steps or self.settings.evaluation.max_episode_steps
        vector = VectorTask(task, 1, evaluation=True, max_episode_steps=limit)
        try:
            for number in range(episodes):
                obs, steps, total = vector.reset(0, seed + number)[None], 0, 0.0
                while True:
                    step = vector.step(np.asarray(self.algorithm.greedy(obs)))
                    if step.faults:
                        raise step.faults[0]
                    steps, total, obs = steps + 1, total + float(step.raw_reward[0]), step.next_obs
                    on_step()
                    if step.terminated[0] or step.truncated[0]:
                        break
                yield Episode(steps, total, bool(step.terminated[0]))
        finally:
            vector.close()

    def test(self) -> Verdict:
        """The run's own test of `[evaluation]`."""
        evaluator = Evaluator(self.algorithm, self.settings.task.model_dump(), self.settings.evaluation.model_dump())
        try:
            evaluator.add(self.version, self.flat)
            (verdict,) = evaluator.advance()
        finally:
            evaluator.close()
        return verdict

    def _featured(self, batch: Array) -> Array:
        if self.settings.task.squared_position and batch.shape[1:] == (self.spaces.observation_shape[0] - 1,):
            return np.concatenate([batch, batch[:, :1] ** 2], axis=1)
        return batch


def load_policy(run: str | os.PathLike[str], which: str | int = "auto") -> Policy:
    """The policy that a run saved.

    Args:
        run: path of the run's folder, its name below `runs/`, or `latest`.
        which: `"solved"`, `"best"`, `"last"`, a checkpoint's number, or `"auto"`: solved if there is one, else last.

    Raises:
        ResourceError: there is no such run.
        RunFailed: it has no fit checkpoint of that kind.
    """
    folder = find_run(run)
    settings = load_settings(Path(folder) / "settings.toml")
    if which == "auto":
        try:
            tensors, facts = load_checkpoint(folder, "solved")
        except MlxeError:
            tensors, facts = load_checkpoint(folder, "last")
    else:
        tensors, facts = load_checkpoint(folder, which)
    flat = np.concatenate([tensors[name].ravel() for name, _ in facts["parameters"]])
    return Policy(settings, Spaces.from_json(facts["spaces"]), flat, int(facts["version"]))
