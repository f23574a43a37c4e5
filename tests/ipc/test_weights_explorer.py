"""The publication of weights in every interleaving on two kinds of machine, and with every rule broken in turn."""

from __future__ import annotations

from dataclasses import replace

import pytest
from explorer import Bad, Explorer, Ordered, Weak
from protocols import WeightsRules, weights_case

FULL = WeightsRules()
ONE_LIFE = replace(FULL, lives=1)
# Safe without its checksum only by the order of its stores, and the other way round.
BARE = replace(ONE_LIFE, crc=False)
UNFENCED = replace(ONE_LIFE, writer_fences=False, reader_fences=False, reads=1, buffers=2, versions=3)
# A lap of fewer buffers is soon run, so that a reader is overtaken within a few versions.
TIGHT = replace(BARE, buffers=1, versions=3, reads=1)

SAFE = {
    "x86": (replace(FULL, reads=1), Ordered),
    "x86, readers are undisturbed by fewer than three newer publications": (replace(ONE_LIFE, prompt=True), Ordered),
    "x86, without checksum": (BARE, Ordered),
    "x86, one buffer, without checksum": (TIGHT, Ordered),
    "weak order": (replace(FULL, reads=1), Weak),
    "weak order, without checksum": (BARE, Weak),
    "weak order, without fences": (UNFENCED, Weak),
}

MUTANTS = {
    "latest before the weights": (replace(BARE, latest="before", looks=0), Ordered),
    "latest before the weights, after a death": (replace(FULL, latest="before"), Ordered),
    "one buffer": (replace(ONE_LIFE, prompt=True, buffers=1), Ordered),
    "two buffers": (replace(ONE_LIFE, prompt=True, buffers=2), Ordered),
    "no odd number while writing": (replace(TIGHT, odd=False), Ordered),
    "no second look": (replace(TIGHT, looks=1), Ordered),
    "no checksum and no fences": (replace(UNFENCED, crc=False), Weak),
    "versions begin again after a death": (replace(FULL, resume="one"), Ordered),
}


def explore(rules: WeightsRules, machine: type[Ordered] | type[Weak]) -> int:
    return Explorer(weights_case(rules), machine()).explore()


@pytest.mark.parametrize("name", SAFE)
def test_in_no_order_of_events_is_a_version_torn_or_older_than_the_last(name):
    assert explore(*SAFE[name]) > 100


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_found(name):
    with pytest.raises(Bad):
        explore(*MUTANTS[name])


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Ordered, Weak])
def test_nor_with_two_reads_and_a_death(machine):
    assert explore(FULL, machine) > 40_000
