"""The protocols of kept states, counters and rows of a replay as programs for the explorer, with the same switches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from explorer import Bad, Case, Facts
from protocols import Run, idle


@dataclass(frozen=True)
class KeptRules:
    """How states are kept. The defaults are the protocol; anything else breaks it.

    Args:
        keeps: how many labels are kept and published.
        lives: how often the writer may live; all but the last may be killed anywhere.
        gaps: the label that is published is never one that is kept, as where states are kept now and then.
        spares: a writer spares `"what would be found"`, or only the slot of the published `"label"` itself.
        torn_first: what a dead writer left torn is written first.
    """

    keeps: int = 3
    lives: int = 3
    gaps: bool = True
    spares: str = "what would be found"
    torn_first: bool = True


SLOTS = (0, 1)


def kept_writer(rules: KeptRules, life: int, label: int) -> Run:
    """Look at the slots, write one, and publish its label."""
    if label > rules.keeps:
        return ("idle",)
    published = yield ("load", "published")
    spare = published + 1 if rules.gaps and rules.spares == "label" else published
    slots = []
    for slot in SLOTS:
        sequence = yield ("load", (slot, "sequence"))
        slots.append((sequence, (yield ("load", (slot, "label"))), slot))
    whole = [(found, sequence, slot) for sequence, found, slot in slots if sequence and sequence % 2 == 0]
    if rules.spares == "label":
        best = max((entry for entry in whole if entry[0] == spare), default=None)
    else:
        best = max((entry for entry in whole if entry[0] <= spare), default=None)
    torn = {slot for sequence, _, slot in slots if sequence % 2} if rules.torn_first else set()
    _, slot = min(
        (sequence - (1000 if slot in torn else 0), slot) for sequence, _, slot in slots if not best or slot != best[2]
    )
    number = max(sequence for sequence, _, _ in slots) + 2
    number += number % 2
    yield ("store", (slot, "sequence"), number - 1)
    yield ("fence",)
    yield ("store", (slot, "a"), (label, life))
    yield ("store", (slot, "b"), (label, life))
    yield ("store", (slot, "label"), label)
    yield ("fence",)
    yield ("store", (slot, "sequence"), number)
    yield ("fence",)
    yield ("store", "published", label)
    return ("writer", life, label + 1)


def kept_successor(life: int) -> Run:
    """Look for what the dead writer left, and go on after what it published."""
    yield ("sync",)
    published = yield ("load", "published")
    found: tuple[Any, ...] | None = None
    for slot in SLOTS:
        sequence = yield ("load", (slot, "sequence"))
        label = yield ("load", (slot, "label"))
        if sequence and sequence % 2 == 0 and label <= published and (found is None or (label, sequence) > found[:2]):
            found = (label, sequence, slot)
    if found is None:
        yield ("judge", ("lost", published))
    else:
        a = yield ("load", (found[2], "a"))
        b = yield ("load", (found[2], "b"))
        yield ("judge", ("found", found[0], a, b))
    return ("writer", life, published + 1)


def kept_case(rules: KeptRules) -> Case:
    """A writer and its deaths."""
    places: dict[Any, Any] = {"published": 0}
    for slot in SLOTS:
        places |= {(slot, "sequence"): 0, (slot, "label"): 0, (slot, "a"): None, (slot, "b"): None}

    def judge(question: Any, facts: Facts) -> None:
        what, label, *parts = question
        if what == "lost" and label:
            raise Bad(f"nothing is left of what was kept, although {label} was published")
        if what == "found" and (parts[0] != parts[1] or parts[0][0] != label):
            raise Bad(f"what was kept under {label} is torn: {parts}")

    return Case(
        places=places,
        programs={
            "writer": lambda *state: kept_writer(rules, *state),
            "successor": kept_successor,
            "idle": idle,
        },
        start=(("writer", 1, 1),),
        kill=lambda program: (
            ("successor", program[1] + 1) if program[0] == "writer" and program[1] < rules.lives else None
        ),
        judge=judge,
        finished=lambda programs: all(program == ("idle",) for program in programs),
        fences=frozenset({"writer"}),
    )


@dataclass(frozen=True)
class CountersRules:
    """How counters change all at once. The defaults are the protocol; anything else breaks it.

    Args:
        changes: how many are stored.
        loads: how often an onlooker looks.
        looks: it calls it damage when it saw the `"same"` bytes fail twice, or at `"once"`.
        crc: each copy is checked.
        fences: the keeper's fences work.
    """

    changes: int = 3
    loads: int = 1
    looks: str = "same"
    crc: bool = True
    fences: bool = True


def counters_writer(rules: CountersRules, number: int) -> Run:
    """Store the next values into the older copy."""
    if number > rules.changes:
        return ("idle",)
    copy = number % 2
    yield ("fence",)
    yield ("store", (copy, "number"), number)
    yield ("store", (copy, "a"), number)
    yield ("store", (copy, "b"), number)
    yield ("store", (copy, "crc"), (number, number, number))
    return ("writer", number + 1)


def counters_reader(rules: CountersRules, loads: int, before: Any) -> Run:
    """Copy one copy after the other, and take the newest that is whole."""
    if loads == rules.loads:
        return ("idle",)
    seen = []
    for copy in (0, 1):
        number = yield ("load", (copy, "number"))
        a = yield ("load", (copy, "a"))
        b = yield ("load", (copy, "b"))
        seen.append((number, a, b, (yield ("load", (copy, "crc")))))
    whole = [words for words in seen if not rules.crc or words[3] == words[:3]]
    if whole:
        yield ("judge", ("read", *max(whole)[:3]))
        return ("reader", loads + 1, None)
    if rules.looks == "once" or tuple(seen) == before:
        yield ("judge", ("damaged", *seen))
        return ("idle",)
    yield ("fence",)
    return ("reader", loads, tuple(seen))


def counters_case(rules: CountersRules) -> Case:
    """A keeper that stores and an onlooker."""
    places: dict[Any, Any] = {}
    for copy in (0, 1):
        first = 0 if copy == 0 else -1
        places |= {(copy, name): first for name in ("number", "a", "b")} | {(copy, "crc"): (first, first, first)}

    def judge(question: Any, facts: Facts) -> None:
        what, *words = question
        if what == "damaged":
            raise Bad(f"counters that are whole count as damaged: {words}")
        if len(set(words)) > 1:
            raise Bad(f"counters of different changes were read together: {words}")

    return Case(
        places=places,
        programs={
            "writer": lambda number: counters_writer(rules, number),
            "reader": lambda *state: counters_reader(rules, *state),
            "idle": idle,
        },
        start=(("writer", 1), ("reader", 0, None)),
        kill=lambda _program: None,
        judge=judge,
        finished=lambda programs: all(program == ("idle",) for program in programs),
        fences=frozenset({"writer", "reader"} if rules.fences else {"reader"}),
    )


@dataclass(frozen=True)
class RowsRules:
    """How rows of a replay give way while a learner gathers them. The defaults are the protocol.

    Args:
        rows: how many are written into the one place, the first of them before anybody gathers.
        void: the stamp is taken away before a row is written.
        second_look: the stamp is looked at after the copy.
        writer_fences: the keeper's fences work.
        reader_fences: the learner's fences work.
    """

    rows: int = 3
    void: bool = True
    second_look: bool = True
    writer_fences: bool = True
    reader_fences: bool = True


def rows_writer(rules: RowsRules, stamp: int) -> Run:
    """Put the next row in the place of the one before, and send a plan with it."""
    if stamp > rules.rows:
        return ("idle",)
    if rules.void:
        yield ("store", "stamp", 0)
        yield ("fence",)
    yield ("store", "a", stamp)
    yield ("store", "b", stamp)
    yield ("fence",)
    yield ("store", "stamp", stamp)
    yield ("sync",)
    yield ("store", "plan", stamp)
    return ("writer", stamp + 1)


def rows_reader(rules: RowsRules, stamp: int) -> Run:
    """Gather the row that a plan names by its stamp, unless it is gone."""
    if stamp > rules.rows:
        return ("idle",)
    if (yield ("load", "plan")) < stamp:
        return ("reader", stamp)
    yield ("sync",)
    a = yield ("load", "a")
    b = yield ("load", "b")
    yield ("fence",)
    if rules.second_look and (yield ("load", "stamp")) != stamp:
        return ("reader", stamp + 1)
    yield ("judge", (stamp, a, b))
    return ("reader", stamp + 1)


def rows_case(rules: RowsRules) -> Case:
    """A keeper that overwrites and a learner whose plans name all rows in turn."""

    def judge(question: Any, facts: Facts) -> None:
        stamp, a, b = question
        if a != stamp or b != stamp:
            raise Bad(f"row {stamp} was gathered as {a}, {b}")

    working = {"writer"} if rules.writer_fences else set()
    working |= {"reader"} if rules.reader_fences else set()
    return Case(
        places={"stamp": 1, "a": 1, "b": 1, "plan": 1},
        programs={
            "writer": lambda stamp: rows_writer(rules, stamp),
            "reader": lambda stamp: rows_reader(rules, stamp),
            "idle": idle,
        },
        start=(("writer", 2), ("reader", 1)),
        kill=lambda _program: None,
        judge=judge,
        finished=lambda programs: all(program == ("idle",) for program in programs),
        fences=frozenset(working),
    )
