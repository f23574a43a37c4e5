"""Whoever is killed and whenever: what was committed arrives once, whole and in order."""

from __future__ import annotations

import pytest
from memory_tools import STORES, in_fresh_process


def clean(tally: dict[str, int]) -> bool:
    return not any(tally[fault] for fault in ("corrupt", "miscounted", "lost", "torn", "uncut"))


@pytest.mark.parametrize("kills", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_committed_block_is_lost_repeated_or_torn_whenever_its_writer_is_killed(kills):
    tally = in_fresh_process("kill_loops:kill_writers", kills, 1, "right", "right")
    assert clean(tally), tally
    assert tally["read"] > kills
    assert tally["half_written"] > 0, "no kill met a block half way: the test would not see a broken protocol"


@pytest.mark.parametrize("reader", ["right", "trusts"])
def test_the_same_loop_catches_a_protocol_that_promises_before_it_delivers(reader):
    assert not clean(in_fresh_process("kill_loops:kill_writers", 500, 2, "promises first", reader))


def test_a_writer_killed_between_any_two_stores_leaves_exactly_what_it_committed():
    tallies = in_fresh_process("kill_loops:killed_at_each_store")
    assert len(tallies) == STORES + 1
    for store, tally in enumerate(tallies):
        assert clean(tally), (store, tally)
        whole = store == STORES
        assert (tally["deaths"], tally["read"]) == (0 if whole else 3, 2 + 3 * (1 + whole)), (store, tally)


@pytest.mark.parametrize("kills", [50, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_reader_that_seeks_to_what_it_owns_gets_each_block_once_whenever_it_is_killed(kills):
    tally = in_fresh_process("kill_loops:kill_readers", kills, 3)
    assert tally["written"] > kills
    assert (tally["owned"], tally["wrong"]) == (tally["written"], 0)
