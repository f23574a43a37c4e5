"""Writes an executor's rows into the blocks of its own lane, in place."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from mlxe_async.rows import Array, RowLayout

ASK_FOR_ROOM_S = 0.5
TELL_S = 0.5
LEAST_PAUSE_S = 0.001
MOST_PAUSE_S = 0.1


class Lane(Protocol):
    """The writing end of a lane, `ipc.shared.lanes.LaneWriter`."""

    @property
    def payloads(self) -> list[memoryview[int]]:
        """The payload of every slot."""

    @property
    def sequence(self) -> int:
        """The number of the next block."""

    @property
    def slot(self) -> int:
        """The slot that the next block goes to."""

    def reserve(self) -> memoryview[int] | None:
        """The payload of the next block, or None while the lane is full."""

    def commit(self, count: int) -> int:
        """Make the block visible."""

    def free_slots(self) -> int:
        """Blocks that can be written before the reader must give room back."""

    def renew(self) -> int:
        """Begin another epoch, so that what was committed of an open episode is never completed."""


class RowWriter:
    """Fills one block after the other; a block is committed when a further row needs room, or the rollout ends.

    Args:
        lane: where rows go.
        layout: columns of a row.
        block_rows: most rows in one block.
        envs: number of environments B.
        extra: names of the columns that the behaviour policy gives besides `action` and `log_prob`.
        committed: called when blocks were committed in the middle of a rollout, and half the lane waits for its
            reader, who has taken some since the last call, or the last call was half a second ago; and when room is
            needed.
        wait: waits a bounded number of seconds.
        make_room: has the lane read at once, where its reader is in the same thread and no other could; None: the
            reader is elsewhere, and is waited for.

    Attributes:
        blocks: blocks that the present rollout has taken so far.
        waited_s: seconds it has waited for room.
    """

    def __init__(
        self,
        lane: Lane,
        layout: RowLayout,
        *,
        block_rows: int,
        envs: int,
        extra: Sequence[str],
        committed: Callable[[], None],
        wait: Callable[[float], None],
        make_room: Callable[[], None] | None = None,
    ) -> None:
        self._make_room = make_room
        self._lane, self._block_rows, self._extra = lane, block_rows, tuple(extra)
        self._committed, self._wait = committed, wait
        self._env_numbers = np.arange(envs, dtype=np.int32)
        # Making numpy views costs more than a step, so they are made once for each slot of the lane.
        self._slots = [layout.views(payload, block_rows) for payload in lane.payloads]
        self._told_s = 0.0
        self._committed_blocks, self._taken_when_told = 0, -1
        self.begin()

    @property
    def committed(self) -> int:
        """The number of the lane's next block: all before it can be read."""
        return self._lane.sequence

    @property
    def open_blocks(self) -> int:
        """Blocks that the next `commit` makes visible: one, or none."""
        return int(self._rows is not None)

    def begin(self) -> None:
        """A rollout begins."""
        self._rows: dict[str, Array] | None = None
        self._filled = self.blocks = 0
        self.waited_s = 0.0

    def begin_anew(self) -> None:
        """Say by an empty block that what was committed of a rollout before is not what comes now."""
        self._reserve()
        self._lane.commit(0)
        self.begin()

    def write(
        self,
        obs: Array,
        chosen: Mapping[str, Array],
        step: Any,
        *,
        version: int,
        episode: Array,
        number: Array,
        last_step: bool,
    ) -> int:
        """Write a row for each environment that made its step. Returns how many.

        Args:
            obs: what the environments showed before the step (B, *O).
            chosen: what the behaviour policy chose, by name (B, ...).
            step: what came of it, a `tasks.vector.Step`.
            version: weights the policy had.
            episode: number of each environment's episode (B,).
            number: steps each had made in it before (B,).
            last_step: the rollout ends here, in the middle of all episodes that go on.
        """
        ok = step.ok
        count = len(ok) if ok.all() else int(ok.sum())
        if count == 0:
            return 0
        if self._rows is not None and self._filled + count > self._block_rows:
            self.commit(last=False)
            self._tell_committed()
        rows = self._rows if self._rows is not None else self._reserve()
        which: Any = slice(None) if count == len(ok) else np.flatnonzero(ok)
        here = slice(self._filled, self._filled + count)
        _put(rows["obs"][here], obs, which)
        rows["action"][here] = chosen["action"][which]
        rows["log_prob"][here] = chosen["log_prob"][which]
        for name in self._extra:
            rows[name][here] = chosen[name][which]
        rows["reward"][here] = step.reward[which]
        rows["terminated"][here] = step.terminated[which]
        rows["truncated"][here] = step.truncated[which]
        rows["cut"][here] = ~(step.terminated | step.truncated)[which] if last_step else 0
        rows["last"][here] = 0
        _put(rows["next_obs"][here], step.next_obs, which)
        rows["version"][here] = version
        rows["env"][here] = self._env_numbers[which]
        rows["episode"][here] = episode[which]
        rows["step"][here] = number[which]
        self._filled += count
        return count

    def cut(self, count: int, running: Array, at_stop: Callable[[Array], Mapping[str, Array]] | None = None) -> None:
        """Mark the last `count` rows, those of the last step, as cut where the episode is under way (B,).

        What `at_stop` says of the observations that they led to is put into the columns of its names.
        """
        if self._rows is None:
            return
        here = slice(self._filled - count, self._filled)
        cut = running[self._rows["env"][here]].astype(bool)
        self._rows["cut"][here] = cut
        if at_stop is not None and cut.any():
            where = np.flatnonzero(cut) + here.start
            for name, column in at_stop(self._rows["next_obs"][where]).items():
                self._rows[name][where] = column

    def commit(self, *, last: bool) -> None:
        """Make the block that is open visible; `last`: it is the rollout's last one."""
        # A block is committed only when a further row needs room, so that the rollout's last row can still be marked.
        if self._rows is None:
            return
        self._rows["last"][self._filled - 1] = last
        self._lane.commit(self._filled)
        self.blocks += 1
        self._committed_blocks += 1
        self._rows, self._filled = None, 0

    def renew(self) -> None:
        """Give up open episodes: what was committed of them is never completed."""
        self._lane.renew()

    def _tell_committed(self) -> None:
        # Word of every block would cost the supervisor more than all the rest of a rollout; so would a word that the
        # reader, who has taken nothing since the last one, is about to follow anyway.
        now, free = time.monotonic(), self._lane.free_slots()
        taken = self._committed_blocks + free  # grows with what the reader takes, and by nothing else
        if now - self._told_s >= TELL_S or (free <= len(self._slots) // 2 and taken != self._taken_when_told):
            self._told_s, self._taken_when_told = now, taken
            self._committed()

    def _reserve(self) -> dict[str, Array]:
        """Views on the next block; waits, a bounded time at a time, while the lane is full.

        Raises:
            BufferError: only this thread could make room, and there is none.
        """
        if self._make_room is not None and self._lane.reserve() is None:
            self._make_room()
            if self._lane.reserve() is None:
                raise BufferError(
                    f"the lane is full after {self.blocks} blocks of this rollout, and the memory has no room for "
                    "them: only this process could make some; raise memory.capacity_rows, or deliver less at a time by "
                    "schedule.rollout_steps or task.max_episode_steps"
                )
        began = now = time.monotonic()
        asked = 0.0
        while self._lane.reserve() is None:
            # Many short rollouts fill a lane too; where executors wait for each other, no other request would empty it.
            if now - asked > ASK_FOR_ROOM_S:
                self._committed()
                asked = now
            # A quarter longer than needed at most, and hardly any processor time where the lane stays full for seconds.
            self._wait(min(max(0.25 * (now - began), LEAST_PAUSE_S), MOST_PAUSE_S))
            now = time.monotonic()
        self.waited_s += now - began
        self._rows, self._filled = self._slots[self._lane.slot], 0
        return self._rows


def _put(into: Array, column: Array, which: Any) -> None:
    """Write some rows of a column; by `take` where these are several numbers each, which is faster by far."""
    if isinstance(which, slice) or column.ndim == 1 or column.dtype != into.dtype:
        into[...] = column[which]
    else:
        column.take(which, 0, into, "clip")


class Unwritten(RowWriter):
    """Counts rows that are not to be learned from; a rollout is one empty block, by which its end is known."""

    @property
    def open_blocks(self) -> int:
        """The block that the next `commit` makes visible."""
        return 1

    def write(
        self,
        obs: Array,  # noqa: ARG002 - the same verb as where rows are written
        chosen: Mapping[str, Array],  # noqa: ARG002 - see above
        step: Any,
        *,
        version: int,  # noqa: ARG002 - see above
        episode: Array,  # noqa: ARG002 - see above
        number: Array,  # noqa: ARG002 - see above
        last_step: bool,  # noqa: ARG002 - see above
    ) -> int:
        """Count the environments that made their step."""
        return int(step.ok.sum())

    def commit(self, *, last: bool) -> None:  # noqa: ARG002 - there is no row to mark
        """Commit the empty block."""
        self._reserve()
        self._lane.commit(0)
        self.blocks += 1
        self._rows = None
