"""Rollout memory: whole rollouts in the order they were finished, each learned from once.

The memory is a set of slots. A rollout fills one slot, block by block, is *ready* when its last row is in, is *taken*
by a plan and becomes free again when the learner has used it. When no slot is free, nothing is taken from the lanes,
these fill up, and the executors wait: that is the whole of the back-pressure, and what bounds the policy lag from above
together with the learner's own check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mlxe_async.memory.committed import Committed, part_views
from mlxe_async.memory.ingesting import Derive, DeriveMany, Ingested
from mlxe_async.rows import Array, RowLayout

_SLOT_WORDS = ("status", "rows", "order", "lane")
_LANE_WORDS = ("position", "epoch", "rows", "dropped", "corrupt", "filling")
_WHOLE_WORDS = ("orders", "rollouts", "plans")
SHORT = 1 << 16  # numbers below fit into 16 bits
FREE, FILLING, READY, TAKEN = range(4)


@dataclass(frozen=True)
class RolloutShape:
    """Sizes of a rollout memory.

    Args:
        lanes: number of executors.
        envs: environments per executor.
        slots: rollouts that fit in.
        slot_rows: most rows of one rollout, all environments of its executor together.
        columns: the rows' columns, as JSON.
    """

    lanes: int
    envs: int
    slots: int
    slot_rows: int
    columns: list[dict[str, Any]]

    @property
    def capacity(self) -> int:
        """Rows that can be kept."""
        return self.slots * self.slot_rows

    @property
    def row_layout(self) -> RowLayout:
        """Columns that are kept of each row."""
        return self._layout(per_rollout=False)

    @property
    def first_layout(self) -> RowLayout:
        """Columns that are kept of each environment's first row alone."""
        return self._layout(per_rollout=True)

    def _layout(self, *, per_rollout: bool) -> RowLayout:
        every = RowLayout.from_json(self.columns).columns
        return RowLayout(tuple(column for column in every if column.per_rollout == per_rollout))

    @property
    def state_words(self) -> int:
        """Number of int64 counters."""
        return len(_WHOLE_WORDS) + len(_LANE_WORDS) * self.lanes + len(_SLOT_WORDS) * self.slots

    def parts(self) -> list[tuple[str, int]]:
        """Name and bytes of each part of the segment, in order."""
        bookkeeping = -(-Committed.nbytes(self.state_words) // 4096) * 4096
        parts = [("bookkeeping", bookkeeping), ("rollouts", self.row_layout.nbytes(self.slots * self.slot_rows))]
        if self.first_layout.columns:
            parts.append(("firsts", self.first_layout.nbytes(self.slots * self.envs)))
        return parts

    @property
    def nbytes(self) -> int:
        """Bytes of the whole segment."""
        return sum(size for _, size in self.parts())

    def to_json(self) -> dict[str, Any]:
        """The shape as plain JSON types."""
        return asdict(self)


class RolloutMemory:
    """A view on the memory's segment: its keeper takes rollouts in and hands them out, the learner reads them.

    Args:
        shape: the sizes.
        buffer: the shared bytes, `shape.nbytes` of them, zero when new.
        formatted: whether `format_memory` was called when they were new; if so, zeros are damage.
    """

    kind = "rollouts"

    def __init__(self, shape: RolloutShape, buffer: Any, *, formatted: bool = False) -> None:
        self.shape, self._buffer = shape, buffer
        self._only: int | None = None  # the lane whose rollouts are gathered; None: all
        self._committed = Committed(buffer, 0, shape.state_words, formatted=formatted)
        books, rows = (size for _, size in shape.parts()[:2])
        self._rows = shape.row_layout.views(buffer, shape.slots * shape.slot_rows, books)
        self._firsts = shape.first_layout.views(buffer, shape.slots * shape.envs, books + rows)
        self.reload()

    def reload(self) -> None:
        """Take up the counters as they were last committed; rollouts taken by a learner that died are ready again."""
        shape, self._state = self.shape, self._committed.load()
        whole, lanes = len(_WHOLE_WORDS), len(_LANE_WORDS) * shape.lanes
        self._whole = self._state[:whole]
        self._lane = dict(zip(_LANE_WORDS, self._state[whole : whole + lanes].reshape(-1, shape.lanes), strict=True))
        self._slot = dict(zip(_SLOT_WORDS, self._state[whole + lanes :].reshape(-1, shape.slots), strict=True))

    def return_taken(self) -> int:
        """After a death: what was handed out and not reported as used is handed out again. Returns how many."""
        taken = self._slot["status"] == TAKEN
        self._slot["status"][taken] = READY
        self._committed.store(self._state)
        return int(taken.sum())

    # -- taking rows in -------------------------------------------------------------------------------------------

    def position(self, lane: int) -> int:
        """The sequence number of the block of `lane` that is to come next (mod 2^64)."""
        return int(self._lane["position"][lane]) % 2**64

    def epoch(self, lane: int) -> int:
        """The life of the executor whose block of `lane` was taken in last; 0 before the first."""
        return int(self._lane["epoch"][lane])

    def raw(self) -> dict[str, Array]:
        """The segment's bytes, part by part, as views (n,): all there is to keep, and what can be put in its place."""
        return part_views(self._buffer, self.shape.parts())

    def room(self, lane: int = 0) -> int:
        """Blocks of `lane` that can surely be taken in now: none when it would need a slot and none is free."""
        return 1 if self._lane["filling"][lane] or (self._slot["status"] == FREE).any() else 0

    def ingest(
        self,
        lane: int,
        sequence: int,
        epoch: int,
        rows: Mapping[str, Array],
        derive: Derive,  # noqa: ARG002 - the same verb as the replay memory's; rollouts derive nothing on the way in
        *,
        drop_open: bool,  # noqa: ARG002 - half a rollout is of no use to anybody and is always dropped
        alike: bool = False,  # noqa: ARG002 - as `drop_open`
        derive_many: DeriveMany | None = None,  # noqa: ARG002 - as `derive`
    ) -> Ingested:
        """Take in one block of a rollout: rows (n, ...) in time order; `last` marks the rollout's final row.

        Raises:
            BufferError: no slot is free; ask `room` before.
        """
        done = Ingested()
        if sequence != self.position(lane):
            return done
        if epoch != int(self._lane["epoch"][lane]):
            done.dropped += self._abandon(lane)
            self._lane["epoch"][lane] = epoch
        if not len(rows["env"]):  # only says that its executor begins anew
            self._advance(lane, sequence, done)
            return done
        slot = self._slot_for(lane)
        count, start = len(rows["env"]), int(self._slot["rows"][slot])
        if start + count > self.shape.slot_rows:
            raise BufferError(
                f"executor {lane} delivers an episode of more than {self.shape.slot_rows} rows, which is not over, and "
                "more than the memory can hold of one; end episodes by task.max_episode_steps, or raise "
                "memory.capacity_rows"
            )
        base = slot * self.shape.slot_rows + start
        if self._firsts:
            self._keep_firsts(slot, base, rows)
        for name, column in self._rows.items():
            column[base : base + count] = rows[name]
        self._slot["rows"][slot] += count
        done.rows = count
        if rows["last"][-1]:
            self._whole[0] += 1
            self._slot["order"][slot] = self._whole[0]
            self._slot["status"][slot] = READY
            self._lane["filling"][lane] = 0
            self._whole[1] += 1
            done.segments = 1
        self._advance(lane, sequence, done)
        return done

    def _keep_firsts(self, slot: int, base: int, rows: Mapping[str, Array]) -> None:
        """Keep of environments whose first rows are among these, what is kept of first rows alone."""
        envs, place = np.unique(rows["env"], return_index=True)
        new = ~np.isin(envs, self._rows["env"][slot * self.shape.slot_rows : base])
        for name, column in self._firsts.items():
            column[slot * self.shape.envs + envs[new]] = rows[name][place[new]]

    def set_aside(
        self,
        lane: int,
        sequence: int,
        derive: Derive,  # noqa: ARG002 - same verb as replay's
        *,
        derive_many: DeriveMany | None = None,  # noqa: ARG002 - same verb as replay's
    ) -> None:
        """Record that a block failed its checks and is passed over, and with it the rollout it belonged to."""
        done = Ingested(dropped=self._abandon(lane))
        self._lane["corrupt"][lane] += 1
        self._advance(lane, sequence, done)

    def _slot_for(self, lane: int) -> int:
        if self._lane["filling"][lane]:
            return int(self._lane["filling"][lane]) - 1
        free = np.flatnonzero(self._slot["status"] == FREE)
        if not len(free):
            raise BufferError(
                f"rollout memory: expected a free slot for lane {lane}, all {self.shape.slots} are in use"
            )
        slot = int(free[0])
        self._lane["filling"][lane] = slot + 1
        self._slot["status"][slot], self._slot["rows"][slot], self._slot["lane"][slot] = FILLING, 0, lane
        self._slot["order"][slot] = 0
        return slot

    def _abandon(self, lane: int) -> int:
        if not self._lane["filling"][lane]:
            return 0
        slot = int(self._lane["filling"][lane]) - 1
        self._lane["filling"][lane] = 0
        self._slot["status"][slot] = FREE
        return int(self._slot["rows"][slot])

    def _advance(self, lane: int, sequence: int, done: Ingested) -> None:
        self._lane["position"][lane] = np.uint64((sequence + 1) % 2**64).astype(np.int64)
        self._lane["rows"][lane] += done.rows
        self._lane["dropped"][lane] += done.dropped
        self._committed.store(self._state)

    # -- handing out ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        ready = self._slot["status"] == READY
        return int(self._slot["rows"][ready].sum())

    @property
    def ready(self) -> int:
        """Rollouts waiting to be learned from."""
        return int((self._slot["status"] == READY).sum())

    def draw(self, rollouts: int, lane: int | None = None) -> dict[str, Any]:
        """Take the oldest `rollouts` ready rollouts, in the order of their lanes, or none if there are fewer.

        Args:
            rollouts: how many.
            lane: whose; None: of any.

        Returns:
            The plan `{"slots", "orders", "updates", "rows"}`; `updates` is 0 when there was too little. A rollout's
            order is its number among all that were finished.
        """
        ready = self._oldest_first()
        if lane is not None:
            ready = ready[self._slot["lane"][ready] == lane]
        return self._taken(ready[:rollouts] if len(ready) >= rollouts else ready[:0])

    def draw_rows(self, rows: int, *, whole: bool = False) -> dict[str, Any]:
        """Take the oldest ready rollouts until they have `rows` rows, or none if all together have fewer.

        If there is no room for another rollout, what is there must do. With `whole`, none is left behind: it would be
        of an older policy after this update.
        """
        ready = self._oldest_first()
        reached = np.cumsum(self._slot["rows"][ready])
        enough = int(np.searchsorted(reached, rows)) + 1
        if len(ready) >= enough:
            return self._taken(ready if whole else ready[:enough])
        return self._taken(ready if self.is_full else ready[:0])

    @property
    def is_full(self) -> bool:
        """True if rollouts are ready, and there is no slot for another one."""
        return bool((self._slot["status"] == READY).any() and not (self._slot["status"] == FREE).any())

    def _oldest_first(self) -> Array:
        ready = np.flatnonzero(self._slot["status"] == READY)
        return ready[np.argsort(self._slot["order"][ready])]

    def _taken(self, slots: Array) -> dict[str, Any]:
        """The plan of these rollouts, which are taken."""
        if not len(slots):
            return {"slots": [], "orders": [], "updates": 0, "rows": 0}
        # In a schedule that waits for all, lanes give an order that does not depend on who was faster.
        slots = slots[np.lexsort((self._slot["order"][slots], self._slot["lane"][slots]))]
        self._slot["status"][slots] = TAKEN
        self._whole[2] += 1
        self._committed.store(self._state)
        return {
            "slots": slots.tolist(),
            "orders": self._slot["order"][slots].tolist(),
            "updates": 1,
            "rows": int(self._slot["rows"][slots].sum()),
        }

    def gather(self, plan: Mapping[str, Any], oldest_version: int | None = None) -> tuple[dict[str, Array], int]:
        """The rollouts of a plan as time-major columns (T, B, ...): copies, or views where there is one rollout only.

        Each environment of each rollout is one column b; shorter ones repeat their last row, with `valid` (T, B) false.
        Rollouts that hold a row older than `oldest_version` are left out.

        Columns that are kept of first rows alone are (B, ...).

        Returns:
            The columns, empty when nothing is left, and how many rollouts were left out.
        """
        pieces: list[dict[str, Array]] = []
        firsts: list[dict[str, Array]] = []
        left_out = 0
        for slot, length in self._wanted(plan):
            start = slot * self.shape.slot_rows
            rows = {name: column[start : start + length] for name, column in self._rows.items()}
            if oldest_version is not None and int(rows["version"].min()) < oldest_version:
                left_out += 1
                continue
            pieces.append(_by_environment(rows, self.shape.envs))
            if self._firsts:
                present = slot * self.shape.envs + np.flatnonzero(np.bincount(rows["env"], minlength=self.shape.envs))
                firsts.append({name: column[present] for name, column in self._firsts.items()})
        if not pieces:
            return {}, left_out
        first = {name: np.concatenate([one[name] for one in firsts]) for name in self._firsts}
        if len(pieces) == 1:
            return pieces[0] | first, left_out
        longest = max(len(piece["valid"]) for piece in pieces)
        pieces = [{name: _lengthened(name, column, longest) for name, column in piece.items()} for piece in pieces]
        whole = {name: np.concatenate([piece[name] for piece in pieces], axis=1) for name in pieces[0]}
        return whole | first, left_out

    def share(self, part: int, parts: int) -> None:  # noqa: ARG002 - as many parts as lanes; the same verb as replay's
        """Gather from now on what one of several workers learns from: the rollouts of the lane of its number."""
        self._only = part

    def rows_of(self, plan: Mapping[str, Any]) -> int:
        """Rows of a plan that are gathered."""
        return int(plan["rows"]) if self._only is None else sum(length for _, length in self._wanted(plan))

    def _wanted(self, plan: Mapping[str, Any]) -> list[tuple[int, int]]:
        """The slots of a plan that are gathered, each with its number of rows."""
        # As the keeper has committed them: it may live in another process.
        slots = self._committed.load()[-len(_SLOT_WORDS) * self.shape.slots :].reshape(-1, self.shape.slots)
        lengths, lanes = slots[_SLOT_WORDS.index("rows")], slots[_SLOT_WORDS.index("lane")]
        some = (slot for slot in plan["slots"] if self._only is None or lanes[slot] == self._only)
        return [(slot, int(lengths[slot])) for slot in some]

    def settle(self, plan: Mapping[str, Any]) -> int:
        """Free the slots of a plan that the learner has used. Returns 0: nothing can come too late here.

        A second time, after the keeper died, changes nothing: a slot may hold another rollout by then.
        """
        slots = np.array(plan["slots"], np.int64)
        self._slot["status"][slots[self._slot["order"][slots] == plan["orders"]]] = FREE
        self._committed.store(self._state)
        return 0

    # -- looking --------------------------------------------------------------------------------------------------

    def ledger(self) -> list[dict[str, int]]:
        """Per lane: blocks and rows taken in, rows dropped with half a rollout, blocks set aside."""
        state = self._committed.load()
        whole, lanes = len(_WHOLE_WORDS), len(_LANE_WORDS) * self.shape.lanes
        words = dict(zip(_LANE_WORDS, state[whole : whole + lanes].reshape(-1, self.shape.lanes), strict=True))
        return [
            {
                "position": int(words["position"][lane]) % 2**64,
                "rows": int(words["rows"][lane]),
                "dropped": int(words["dropped"][lane]),
                "corrupt": int(words["corrupt"][lane]),
            }
            for lane in range(self.shape.lanes)
        ]

    @property
    def segments(self) -> int:
        """Rollouts finished so far."""
        return int(self._whole[1])


def _by_environment(rows: Mapping[str, Array], envs: int) -> dict[str, Array]:
    """One rollout's rows (N, ...) in time order as columns (T, B, ...), with `valid`; views where no row is missing."""
    env = rows["env"]
    everyone = np.arange(envs, dtype=env.dtype)
    if len(env) % envs == 0 and (env.reshape(-1, envs) == everyone).all():
        batch = {name: column.reshape(-1, envs, *column.shape[1:]) for name, column in rows.items()}
        return batch | {"valid": np.ones((len(env) // envs, envs), dtype=bool)}
    order = np.argsort(env.astype(np.uint16) if envs <= SHORT else env, kind="stable")  # short integers by radix
    lengths = np.bincount(env, minlength=envs)
    present = np.flatnonzero(lengths)
    first, lengths = (np.cumsum(lengths) - lengths)[present], lengths[present]
    ahead = np.arange(int(lengths.max()))[:, None]
    where = order[first + np.minimum(ahead, lengths - 1)]
    batch = {name: column.take(where, axis=0) for name, column in rows.items()}
    return batch | {"valid": ahead < lengths}


def _lengthened(name: str, column: Array, length: int) -> Array:
    """A column (T, B, ...) with its last row repeated up to `length`; what is repeated is not valid."""
    if len(column) == length:
        return column
    last = np.zeros_like(column[-1:]) if name == "valid" else column[-1:]
    return np.concatenate([column, np.repeat(last, length - len(column), axis=0)])
