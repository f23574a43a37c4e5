"""Steps of a recording: one class for each choice in which an `oa` run could have gone otherwise."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import asdict, dataclass
from typing import ClassVar, Protocol, Self


class _Numbers:
    """A step of numbers alone, packed in the order of its fields; NaN stands for None."""

    _form: ClassVar[struct.Struct]

    def pack(self) -> bytes:
        """As bytes."""
        return self._form.pack(*(math.nan if value is None else value for value in vars(self).values()))

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """From bytes."""
        return cls(*(None if value != value else value for value in cls._form.unpack(payload)))


@dataclass(frozen=True)
class Rollout(_Numbers):
    """A rollout was delivered.

    Args:
        executor: whose.
        version: weights it was played under.
        rollout: its number.
        finished_episodes: of the whole run, as its executor was told.
        steps: that the executor had delivered before.
        rows: it has.
        blocks: of the lane it took.
    """

    executor: int
    version: int
    rollout: int
    finished_episodes: int
    steps: int
    rows: int
    blocks: int

    _form = struct.Struct("<IQQQQII")


@dataclass(frozen=True)
class Ingested:
    """The memorizer took in all blocks of each lane before these positions.

    Args:
        positions: one for each lane.
        settled: a plan had been used, and its priorities came first.
        lane: for whose worker that plan was drawn; None: for the learner.
    """

    positions: tuple[int, ...]
    settled: bool = False
    lane: int | None = None

    _tail: ClassVar[struct.Struct] = struct.Struct("<?I")

    def pack(self) -> bytes:
        """As bytes."""
        positions = struct.pack(f"<{len(self.positions)}Q", *self.positions)
        return positions + (b"\1" * self.settled if self.lane is None else self._tail.pack(self.settled, self.lane))

    @classmethod
    def unpack(cls, payload: bytes) -> Ingested:
        """From bytes."""
        count, rest = divmod(len(payload), 8)
        settled, lane = cls._tail.unpack(payload[-rest:]) if rest == cls._tail.size else (bool(rest), None)
        return cls(struct.unpack_from(f"<{count}Q", payload), settled, lane)


@dataclass(frozen=True)
class Memorized:
    """The same, and a plan was drawn.

    Args:
        most_updates: it was asked for, None for all.
        settled: the plan before had been used.
        updates: the plan has.
        positions: as of `Ingested`.
        lane: for whose worker it was drawn; None: for the learner.
    """

    most_updates: int | None
    settled: bool
    updates: int
    positions: tuple[int, ...]
    lane: int | None = None

    _form: ClassVar[struct.Struct] = struct.Struct("<Q?I")

    def pack(self) -> bytes:
        """As bytes."""
        head = self._form.pack(self.most_updates or 0, self.settled, self.updates)
        return head + Ingested(self.positions, lane=self.lane).pack()

    @classmethod
    def unpack(cls, payload: bytes) -> Memorized:
        """From bytes."""
        most, settled, updates = cls._form.unpack_from(payload)
        rest = Ingested.unpack(payload[cls._form.size :])
        return cls(most or None, settled, updates, rest.positions, rest.lane)


@dataclass(frozen=True)
class Pushed(_Numbers):
    """A worker made gradients by the rollout that was drawn for it last.

    Args:
        worker: its number.
        number: of its push.
        place: where the push lies.
        version: of the weights.
        state: version to which the learner's state belonged that it went on from.
        env_steps: of the run, as it was told.
        episodes: the same.
        updates: the same.
    """

    worker: int
    number: int
    place: int
    version: int
    state: int
    env_steps: int
    episodes: int
    updates: int

    _form = struct.Struct("<IQIQQQQQ")


@dataclass(frozen=True)
class Applied:
    """The learner is about to step by these pushes.

    Args:
        pushes: worker and number of each, in their order.
    """

    pushes: tuple[tuple[int, int], ...]

    _form: ClassVar[struct.Struct] = struct.Struct("<IQ")

    def pack(self) -> bytes:
        """As bytes."""
        return b"".join(self._form.pack(*push) for push in self.pushes)

    @classmethod
    def unpack(cls, payload: bytes) -> Applied:
        """The same, read again."""
        return cls(tuple(cls._form.iter_unpack(payload)))


@dataclass(frozen=True)
class Learned(_Numbers):
    """The learner learned from the plan that was drawn last.

    Args:
        env_steps: of the run, as it was told.
        episodes: the same.
        updates: the same.
        progress: the same.
        version: newest afterwards.
        norm: of its weights.
    """

    env_steps: int
    episodes: int
    updates: int
    progress: float | None
    version: int
    norm: float | None

    _form = struct.Struct("<QQQdQd")


@dataclass(frozen=True)
class Published(_Numbers):
    """The weights that the run begins with were published."""

    version: int
    norm: float | None

    _form = struct.Struct("<Qd")


@dataclass(frozen=True)
class Ended:
    """The recording ends here, with these final weights, or because of what cannot be repeated.

    Args:
        weights_hash: SHA-256 of the flat weights, empty when the run went on without being recorded.
        why: what cannot be repeated.
    """

    weights_hash: str
    why: str = ""

    def pack(self) -> bytes:
        """As bytes."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, payload: bytes) -> Ended:
        """From bytes."""
        return cls(**json.loads(payload))


Step = Rollout | Ingested | Memorized | Learned | Published | Ended | Pushed | Applied


class Recorder(Protocol):
    """Hears what happens."""

    def note(self, step: Step) -> None:
        """This happened after all that was noted before."""


class NoRecorder:
    """Of a run that is not recorded."""

    def note(self, step: Step) -> None:
        """Nothing."""
