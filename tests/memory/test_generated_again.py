"""What a dead executor did not deliver is generated again to the same rows: none of them is taken in twice."""

import numpy as np
import pytest
from test_replay import COLUMNS, DERIVED, derive, episode
from test_replay import block as plain_block

from mlxe_async.memory.replay import ReplayMemory
from mlxe_async.memory.shape import ReplayShape
from mlxe_async.rows import Column, RowLayout

WITH_LAST = RowLayout((*COLUMNS.columns, Column("last", "|u1")))
ROLLOUT = [*episode(0, 3), *episode(1, 4), *episode(2, 5, end="cut")]
NEXT = [*episode(3, 4), *episode(4, 4, end="cut")]


class Keeper:
    """A memory that is fed blocks of two rows."""

    def __init__(self, moments=0):
        shape = ReplayShape(1, 1, 64, 32, 6, 4, 8, WITH_LAST.to_json(), DERIVED.to_json(), moments=moments)
        self.memory, self.sequence = ReplayMemory(shape, bytearray(shape.nbytes)), 0

    def feed(self, rows, epoch, *, blocks=None, empty=False, size=2):
        pieces = [rows[start : start + size] for start in range(0, len(rows), size)][:blocks]
        for piece in ([[]] if empty else []) + pieces:
            columns = plain_block(piece) | {"last": np.zeros(len(piece), np.uint8)}
            if piece and piece[-1] == rows[-1]:
                columns["last"][-1] = 1
            self.memory.ingest(0, self.sequence, epoch, columns, derive, drop_open=True, alike=True)
            self.sequence += 1

    def told(self):
        memory = self.memory
        live = memory.live()
        rows = [memory._ring[name][live].tolist() for name in ("value", "to_end", "left", "stamp")]
        return rows, memory.fresh, memory.segments, memory.ledger()[0]["rows"]


@pytest.fixture(scope="module")
def undisturbed():
    keeper = Keeper()
    keeper.feed(ROLLOUT, 1)
    keeper.feed(NEXT, 1)
    return keeper.told()


@pytest.mark.parametrize("first", range(6))
@pytest.mark.parametrize("second", range(6))
@pytest.mark.parametrize("size", [2, 3])
def test_after_any_deaths_the_memory_is_that_of_a_run_without(undisturbed, first, second, size):
    keeper = Keeper()
    keeper.feed(ROLLOUT, 1, blocks=first)
    keeper.feed(ROLLOUT, 2, blocks=second, size=size)
    if second * size < len(ROLLOUT):
        keeper.feed(ROLLOUT, 3)
    keeper.feed(NEXT, 4)
    assert keeper.told() == undisturbed


def test_a_rollout_that_begins_otherwise_says_so_and_what_was_open_is_forgotten():
    keeper = Keeper()
    keeper.feed(ROLLOUT, 1, blocks=3)
    other = [*episode(7, 4, end="cut")]
    keeper.feed(other, 2, empty=True)
    # The first episode, which was closed, stays; three rows of the second go.
    assert [value for value in keeper.told()[0][0] if value < 700] == [0, 1, 2]
    assert [value for value in keeper.told()[0][0] if value >= 700] == [700, 701, 702, 703]
    assert keeper.memory.ledger()[0]["dropped"] == 3
    keeper.feed(NEXT, 3)
    assert keeper.memory.segments == 4
