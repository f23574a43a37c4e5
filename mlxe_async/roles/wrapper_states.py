"""Which state of wrappers an episode begins with, and which belongs to a published version.

One environment is the source: the first of executor 0. It goes on from episode to episode with what its wrappers have
learned. What they know at the end of each of its rollouts is published, with the next version and to all others: their
episodes begin with it, and what they learn besides is forgotten. So an episode follows from its seed, its actions and
the state that it began with, in training, in tests and when it is lived again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from mlxe_async.rows import Array
from mlxe_async.settings.task import MOST_STATE_BYTES

HEADS = ("wrappers.begun", "wrappers.now")


class EpisodeStates:
    """An executor's end: the state that each of its environments began its episode with.

    Args:
        task: the environments, a `tasks.vector.VectorTask`.
        envs: how many, B.
        is_source: whether the first of them is the source.
    """

    def __init__(self, task: Any, envs: int, *, is_source: bool) -> None:
        self._task, self._is_source = task, is_source
        self._begun = np.zeros((envs, MOST_STATE_BYTES), np.uint8)
        self._now = np.zeros(MOST_STATE_BYTES, np.uint8)
        self.published: str | None = None
        "The state told with the rollout that is under way; None: nothing yet."
        # Whether the source's environment has learned what it knows itself; if not, what it has to go on from.
        self._lives, self._former = False, ""

    def begin(self, env: int) -> None:
        """An episode of an environment begins: note with which state, and have it reset with that."""
        text = self.published or ""
        if self._is_source and env == 0:
            text = self._task.state_of(0) if self._lives else self._former or text
            self._lives = True
        _write(self._begun[env], text)
        self.begin_again(env)

    def begin_again(self, env: int) -> None:
        """The episode is to begin with the state that was noted."""
        self._task.begins_with[env] = _read(self._begun[env]) or None

    def failed(self, env: int) -> None:
        """The environment had a fault: it is not to be believed, and goes on from where its episode began."""
        if self._is_source and env == 0:
            self._lives, self._former = False, _read(self._begun[0])

    def leave(self) -> str | None:
        """A rollout ends: what the source knows now; None where it is not here, or has learned nothing."""
        if not self._is_source:
            return None
        text = self._task.state_of(0) if self._lives else self._former or self.published or ""
        _write(self._now, text)
        return text or None

    @property
    def left(self) -> str | None:
        """The state that `leave` gave the last time, in this life or a former one."""
        return (_read(self._now) or None) if self._is_source else None

    def heads(self) -> dict[str, Array]:
        """All of it, as views."""
        return dict(zip(HEADS, (self._begun, self._now), strict=True))

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from what `heads` was."""
        for mine, name in zip((self._begun, self._now), HEADS, strict=True):
            mine[...] = state[name]

    def relived(self, *, running: bool) -> None:
        """All that could be lived again was; `running`: so was the episode of the source that is under way."""
        self._lives, self._former = running, _read(self._now)


class VersionStates:
    """The supervisor's end: what goes to executors, and what belongs to each version that may still be asked for.

    Args:
        in_rounds: what was heard goes to executors between two rounds alone.
    """

    def __init__(self, *, in_rounds: bool) -> None:
        self._in_rounds = in_rounds
        self.told: str | None = None
        "The state that executors are told with their next rollouts."
        self._heard: str | None = None
        self._newest: tuple[int, str | None] = (0, None)
        self._held: dict[int, str | None] = {}

    def heard(self, text: str) -> None:
        """The source has delivered a rollout."""
        self._heard = text
        if not self._in_rounds:
            self.told = text

    def end_round(self) -> None:
        """All have delivered."""
        self.told = self._heard

    def published(self, version: int) -> None:
        """A version was published: to it belongs what its newest rows were seen through."""
        self._newest = version, self._held.get(version, self._heard)

    def hold(self, version: int) -> None:
        """A version is put under test."""
        self._held[version] = self._newest[1] if self._newest[0] == version else self._heard

    def release(self, still: Collection[int]) -> None:
        """Only these versions that were held are still needed."""
        self._held = {version: text for version, text in self._held.items() if version in still}

    def of(self, version: int) -> str | None:
        """Return what belongs to a version that is held, or else to the newest; None: as environments are made."""
        return self._held[version] if version in self._held else self._newest[1]

    def state(self) -> dict[str, Any]:
        """All of it as plain JSON types."""
        return {
            "told": self.told,
            "heard": self._heard,
            "newest": list(self._newest),
            "held": [[version, text] for version, text in self._held.items()],
        }

    def restore(self, state: Mapping[str, Any], version: int) -> None:
        """Go on from there; `version`: under which the newest is published again."""
        self.told, self._heard = state["told"], state["heard"]
        self._newest = version, state["newest"][1]
        self._held = {int(number): text for number, text in state["held"]}


def _write(row: Array, text: str) -> None:
    data = np.frombuffer(text.encode(), np.uint8)
    row[: len(data)], row[len(data) :] = data, 0


def _read(row: Array) -> str:
    return row.tobytes().rstrip(b"\0").decode()
