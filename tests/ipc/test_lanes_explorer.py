"""The lane protocol in every interleaving on two kinds of machine, and with every rule broken in turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from explorer import Bad, Explorer, Ordered, Weak
from memory_tools import SCHEMA, lane_of
from protocols import CAPACITY, HALF, MOD, LaneRules, lane_case, lane_reader, lane_writer

from mlxe_async.ipc.shared import lanes
from mlxe_async.ipc.shared.lanes import LaneReader, LaneWriter, begin_epoch

FULL = LaneRules()
PROMPT = replace(FULL, prompt=True)
# Stripped of some checks, or deprived of some order, yet safe where they stand: here the other rules bear the load.
X86_BARE = replace(FULL, crc="none", second_look=False)
X86_OVERTAKEN = replace(FULL, crc="none", lives=1, tail="never", room="never", overtaken=True)
UNFENCED = replace(FULL, writer_fences=False, blocks=1)
UNFENCED_LAP = replace(FULL, writer_fences=False, lives=1)

SAFE = {
    "x86": (FULL, Ordered),
    "x86, across the wrap": (replace(FULL, start=MOD - 2), Ordered),
    "x86, across half the range": (replace(FULL, start=HALF - 2), Ordered),
    "x86, no committed block fails its checks": (PROMPT, Ordered),
    "x86, nor after two deaths and across the wrap": (replace(PROMPT, lives=3, blocks=2, start=MOD - 1), Ordered),
    "weak order, no committed block fails its checks": (PROMPT, Weak),
    "x86, two deaths": (replace(FULL, lives=3, blocks=1), Ordered),
    "x86, order alone": (X86_BARE, Ordered),
    "x86, a reader that is overtaken": (X86_OVERTAKEN, Ordered),
    "weak order": (FULL, Weak),
    "weak order, no checksum": (replace(FULL, crc="none"), Weak),
    "weak order, a reader that is overtaken, no fences": (
        replace(X86_OVERTAKEN, crc="full", writer_fences=False, reader_fences=False),
        Weak,
    ),
    "weak order, the writer without fences": (UNFENCED, Weak),
    "weak order, the writer without fences, slots used again": (UNFENCED_LAP, Weak),
}

MUTANTS = {
    "commit before the payload": (replace(FULL, commit="first"), Ordered),
    "commit before the payload, nothing checked": (replace(X86_BARE, commit="first", epochs=False), Ordered),
    "no void mark": (replace(X86_OVERTAKEN, void=False), Ordered),
    "no second look at the mark": (replace(X86_OVERTAKEN, second_look=False), Ordered),
    "no checksum": (replace(UNFENCED, crc="none"), Weak),
    "checksum without the sequence number": (replace(UNFENCED_LAP, crc="no sequence"), Weak),
    "epoch not checked": (replace(UNFENCED, epochs=False), Weak),
    "the reader's fence left out": (replace(FULL, reader_fences=False), Weak),
    "tail before the copy": (replace(FULL, tail="before"), Ordered),
    "tail never moved": (replace(FULL, tail="never"), Ordered),
    "one block too many in the lane": (replace(FULL, room="overfull"), Ordered),
    "unread blocks overwritten": (replace(FULL, room="never"), Ordered),
    "reader compares by size across the wrap": (
        replace(FULL, start=MOD - 2, distance=frozenset({"room", "epoch"})),
        Ordered,
    ),
    "reader compares signed words": (
        replace(FULL, start=HALF - 2, distance=frozenset({"room", "epoch"}), signed=True),
        Ordered,
    ),
    "writer measures its room by size across the wrap": (
        replace(FULL, start=MOD - 2, distance=frozenset({"reader", "epoch"})),
        Ordered,
    ),
    "epochs compared by size across the wrap": (
        replace(FULL, start=MOD - 2, distance=frozenset({"reader", "room"})),
        Ordered,
    ),
    "the start of the epoch not noted": (replace(FULL, epoch_start="nowhere"), Ordered),
    "a new start beside an old epoch": (replace(PROMPT, epoch_start="one"), Ordered),
    "cut left out": (replace(FULL, cut=False), Ordered),
    "a new writer takes a marked slot for committed": (replace(FULL, resume="mark"), Ordered),
    "a new writer before the old one is dead": (replace(FULL, reaped=False, blocks=1), Ordered),
}


def explore(rules: LaneRules, machine: type[Ordered] | type[Weak]) -> int:
    return Explorer(lane_case(rules), machine()).explore()


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if number % 2 else ()) for number, name in enumerate(SAFE)]
)
def test_in_no_order_of_events_is_a_block_lost_torn_repeated_or_joined_across_a_death(name):
    assert explore(*SAFE[name]) > 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "machine"),
    [
        (replace(FULL, lives=4), Ordered),
        (replace(FULL, blocks=4), Ordered),
        (replace(FULL, start=MOD - 2), Weak),
        (replace(FULL, lives=3), Weak),
        (replace(FULL, writer_fences=False), Weak),
    ],
    ids=[
        "three deaths",
        "four blocks",
        "weak order, across the wrap",
        "weak order, two deaths",
        "weak order, the writer without fences",
    ],
)
def test_nor_in_the_larger_cases(rules, machine):
    assert explore(rules, machine) > 30_000


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_found(name):
    with pytest.raises(Bad):
        explore(*MUTANTS[name])


def test_there_are_enough_broken_rules():
    assert len(MUTANTS) >= 12


class Recorded:
    """A slot's header, a payload or the control words, noting each access in the model's terms."""

    def __init__(self, memory: Any, names: Any, story: list[Any]) -> None:
        self.memory, self.names, self.story = memory, names, story

    def __getitem__(self, place: int) -> int:
        self.story.append(("load", self.names(place)))
        return self.memory[place]

    def __setitem__(self, place: int, value: int) -> None:
        self.story.append(("store", self.names(place)))
        self.memory[place] = value

    def get(self, name: str) -> int:
        self.story.append(("load", self.names.get(name, name)))
        return self.memory.get(name)

    def set(self, name: str, value: int) -> None:
        self.story.append(("store", self.names.get(name, name)))
        self.memory.set(name, value)


def story_of_code(monkeypatch: pytest.MonkeyPatch, slot: int) -> tuple[list[Any], list[Any]]:
    """What the real writer and reader do to memory for block 2 of a lane of two slots, full and then drained."""
    words = {0: "mark", 1: "head", 2: "head", 3: "head", 4: "head", 5: "crc"}
    story: list[Any] = []
    with lane_of(slots=CAPACITY, payload_bytes=64) as segment:
        begin_epoch(segment)
        writer, reader = LaneWriter(segment, SCHEMA), LaneReader(segment, SCHEMA)
        into = memoryview(bytearray(64))
        for _ in range(CAPACITY):
            writer.reserve()
            writer.commit(1)
        for _ in range(CAPACITY):
            got = reader.read(into)
            assert got is not None
            reader.release(got.sequence)
        starts = {name: ("start", number) for number, name in enumerate(lanes.STARTS)}
        for side in (writer, reader):
            side._control = Recorded(side._control, starts, story)
            side._headers[slot] = Recorded(side._headers[slot], lambda place: (slot, words[place]), story)
        monkeypatch.setattr(lanes, "fence", lambda: story.append(("fence",)))
        assert writer.reserve() is not None
        story += [("store", (slot, "a")), ("store", (slot, "b"))]  # the caller's
        writer.commit(1)
        wrote = list(story)
        story.clear()
        got = reader.read(into)
        assert got is not None
        reader.release(got.sequence)
        return wrote, story


def story_of_model(run: Any, memory: dict[Any, Any]) -> list[Any]:
    """What a program does to memory; loads are answered from `memory`, which its stores change."""
    story, answer = [], None
    try:
        while True:
            op = run.send(answer)
            answer = memory.get(op[1]) if op[0] == "load" else None
            if op[0] == "store":
                memory[op[1]] = op[2]
            if op[0] != "judge":
                story.append(op[:2])
    except StopIteration:
        return story


def once(story: list[Any]) -> list[Any]:
    """Accesses to the same place one after the other are one in the model."""
    return [op for number, op in enumerate(story) if number == 0 or op != story[number - 1]]


def test_the_model_does_what_the_code_does(monkeypatch):
    """Place for place and fence for fence, so that what is proven of the one is said of the other."""
    wrote, read = story_of_code(monkeypatch, slot=0)
    memory = {"commit": 2, "tail": 2, "epoch": 1, ("start", 1): 0}
    assert once(wrote) == story_of_model(lane_writer(FULL, 1, 0, 2), memory)
    expected = story_of_model(lane_reader(FULL, 2), memory)
    # The copy is one call here; in the model it is two loads, between the epoch's and the second fence.
    assert once(read) == [op for op in expected if op not in (("load", (0, "a")), ("load", (0, "b")))]
