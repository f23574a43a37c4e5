"""Kept states, counters and rows of a replay in every interleaving on two kinds of machine, with broken rules too."""

from __future__ import annotations

from dataclasses import replace

import pytest
from explorer import Bad, Explorer, Ordered, Weak
from memory_protocols import CountersRules, KeptRules, RowsRules, counters_case, kept_case, rows_case

KEPT, COUNTERS, ROWS = KeptRules(), CountersRules(), RowsRules()

SAFE = {
    "kept, x86, two deaths": (kept_case(KEPT), Ordered),
    "kept, x86, three deaths": (kept_case(replace(KEPT, lives=4, keeps=2)), Ordered),
    "kept, weak order": (kept_case(replace(KEPT, lives=2)), Weak),
    "counters, x86": (counters_case(COUNTERS), Ordered),
    "counters, weak order": (counters_case(COUNTERS), Weak),
    "rows, x86": (rows_case(ROWS), Ordered),
    "rows, x86, without fences": (rows_case(replace(ROWS, writer_fences=False, reader_fences=False)), Ordered),
    "rows, weak order": (rows_case(ROWS), Weak),
}

MUTANTS = {
    "kept: only the published label is spared": (kept_case(replace(KEPT, spares="label", torn_first=False)), Ordered),
    "kept: torn slots first, yet only the label is spared": (kept_case(replace(KEPT, spares="label")), Ordered),
    "counters: called damaged at once": (counters_case(replace(COUNTERS, looks="once")), Ordered),
    "counters: no checksum": (counters_case(replace(COUNTERS, crc=False)), Ordered),
    "counters: no fence between two changes": (counters_case(replace(COUNTERS, fences=False)), Weak),
    "rows: the stamp stays while a row is written": (rows_case(replace(ROWS, void=False)), Ordered),
    "rows: no look at the stamp afterwards": (rows_case(replace(ROWS, second_look=False)), Ordered),
    "rows: the keeper's fences left out": (rows_case(replace(ROWS, writer_fences=False)), Weak),
    "rows: the learner's fence left out": (rows_case(replace(ROWS, reader_fences=False)), Weak),
}


LONG = {"counters, weak order"}


@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.long if one in LONG else ()) for one in SAFE])
def test_in_no_order_of_events_is_anything_lost_torn_or_called_damaged(name):
    case, machine = SAFE[name]
    assert Explorer(case, machine()).explore() > 50


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_found(name):
    case, machine = MUTANTS[name]
    with pytest.raises(Bad):
        Explorer(case, machine()).explore()
