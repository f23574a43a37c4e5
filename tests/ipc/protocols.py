"""The protocols of lanes and weights as programs for the explorer, with a switch for every rule that can be broken.

Words count modulo 8 here, so that a few blocks cross the wrap; a checksum is the tuple of what it covers, so that it
never matches by luck. A payload is two words, which is enough to be torn.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from explorer import Bad, Case, Facts, Op, Program

MOD, HALF = 8, 4
CAPACITY = 2
Run = Generator[Op, Any, Program]


def _signed(word: int) -> int:
    return word - MOD if word >= HALF else word


@dataclass(frozen=True)
class LaneRules:
    """How a lane works. The defaults are the protocol; anything else breaks or strips it.

    Args:
        start: number of the first block.
        blocks: how many are written.
        lives: how often a writer may live; all but the last may be killed anywhere.
        commit: the word moves `"last"` or `"first"`.
        void: the mark is taken away before a slot is written.
        crc: `"full"`, `"no sequence"` in it, or `"none"`.
        second_look: the mark is looked at again after the copy.
        epochs: the reader checks the epoch.
        epoch_start: the supervisor notes where an epoch starts: in a word for `"each"` of even and odd epochs, in
            `"one"` for all, or `"nowhere"`.
        prompt: a committed block never fails its checks, not even for a moment.
        cut: the first block of an epoch says so.
        tail: `"after"` the copy, `"before"` it, or `"never"` moved.
        overtaken: the reader need not get anything, it must only never get anything wrong.
        room: the writer waits while the lane is `"full"`, `"overfull"` by one, or `"never"`.
        distance: what is compared by distance: subset of reader, room, epoch; else by size, `signed` or not.
        signed: comparison by size takes words for signed.
        resume: a new writer goes on from the `"commit"` word, or past a block whose `"mark"` looks whole.
        reaped: the old writer is dead before the new one starts.
        writer_fences: the writer's fences work.
        reader_fences: the reader's fences work.
    """

    start: int = 0
    blocks: int = 3
    lives: int = 2
    commit: str = "last"
    void: bool = True
    crc: str = "full"
    second_look: bool = True
    epochs: bool = True
    epoch_start: str = "each"
    prompt: bool = False
    cut: bool = True
    tail: str = "after"
    overtaken: bool = False
    room: str = "full"
    distance: frozenset[str] = frozenset({"reader", "room", "epoch"})
    signed: bool = False
    resume: str = "commit"
    reaped: bool = True
    writer_fences: bool = True
    reader_fences: bool = True


def lane_mark(sequence: int) -> int:
    return (2 * sequence + 1) % MOD


def lane_start(rules: LaneRules, epoch: int) -> Any:
    return ("start", epoch % 2 if rules.epoch_start == "each" else 0)


def lane_epoch(rules: LaneRules) -> Generator[Op, Any, tuple[int, int]]:
    """The present epoch and where it starts, looked at again while it changes."""
    epoch = yield ("load", "epoch")
    while True:
        yield ("fence",)
        start = yield ("load", lane_start(rules, epoch))
        yield ("fence",)
        if rules.epoch_start != "each":
            return epoch, start
        again = yield ("load", "epoch")
        if again == epoch:
            return epoch, start
        epoch = again


def lane_crc(rules: LaneRules, sequence: int, head: Any, a: Any, b: Any) -> Any:
    return {"full": (sequence, head, a, b), "no sequence": (head, a, b), "none": None}[rules.crc]


def lane_writer(rules: LaneRules, epoch: int, first: int, sequence: int) -> Run:
    """Write one block, or find the lane full."""
    again = ("writer", epoch, first, sequence)
    after = (sequence + 1) % MOD
    if sequence == (rules.start + rules.blocks) % MOD:
        return ("idle",)
    tail = yield ("load", "tail")
    waiting = (sequence - tail) % MOD if "room" in rules.distance else sequence - tail
    if waiting >= {"full": CAPACITY, "overfull": CAPACITY + 1, "never": 2 * MOD}[rules.room]:
        return again
    slot = sequence % CAPACITY
    a = b = (sequence, epoch)
    head = (epoch, sequence == first and rules.cut)
    commit = ("store", "commit", after, (sequence, (epoch, sequence == first, a, b)))
    if rules.commit == "first":
        yield commit
    if rules.void:
        yield ("store", (slot, "mark"), 0)
    yield ("store", (slot, "a"), a)
    yield ("store", (slot, "b"), b)
    yield ("store", (slot, "head"), head)
    yield ("store", (slot, "crc"), lane_crc(rules, sequence, head, a, b))
    yield ("fence",)
    yield ("store", (slot, "mark"), lane_mark(sequence))
    yield ("fence",)
    if rules.commit == "last":
        yield commit
    return ("writer", epoch, first, after)


def lane_zombie(rules: LaneRules, *state: int) -> Run:
    """A writer who was thought dead."""
    name, *rest = yield from lane_writer(rules, *state)
    return ("zombie" if name == "writer" else name, *rest)


def lane_supervisor(rules: LaneRules) -> Run:
    """A writer is dead: open the lane for the next one, and start it."""
    yield ("sync",)
    commit = yield ("load", "commit")
    epoch = 1 + (yield ("load", "epoch"))
    if rules.epoch_start != "nowhere":
        yield ("store", lane_start(rules, epoch), commit)
        yield ("fence",)
    yield ("store", "epoch", epoch)
    yield ("sync",)
    if rules.resume == "mark" and (yield ("load", (commit % CAPACITY, "mark"))) == lane_mark(commit):
        commit = (commit + 1) % MOD
    return ("writer", epoch, commit, commit)


def lane_reader(rules: LaneRules, sequence: int) -> Run:
    """Read one block, or find nothing new, or something that fails its checks."""
    again = ("reader", sequence)
    failed = ("judge", (sequence, "failed"))
    commit = yield ("load", "commit")
    if "reader" in rules.distance:
        new = commit != sequence
    else:
        new = _signed(commit) > _signed(sequence) if rules.signed else commit > sequence
    if not new:
        return again
    yield ("fence",)
    slot = sequence % CAPACITY
    if (yield ("load", (slot, "mark"))) != lane_mark(sequence):
        yield failed
        return again
    head = yield ("load", (slot, "head"))
    crc = yield ("load", (slot, "crc"))
    if rules.epochs:
        epoch, start = yield from lane_epoch(rules)
        present = (sequence - start) % MOD < HALF if "epoch" in rules.distance else sequence >= start
        if head is None or (head[0] != epoch if present else head[0] >= epoch):
            yield failed
            return again
    if rules.tail == "before":
        yield ("store", "tail", (sequence + 1) % MOD)
    a = yield ("load", (slot, "a"))
    b = yield ("load", (slot, "b"))
    if crc != lane_crc(rules, sequence, head, a, b):
        yield failed
        return again
    if rules.second_look:
        yield ("fence",)
        if (yield ("load", (slot, "mark"))) != lane_mark(sequence):
            yield failed
            return again
    yield ("judge", (sequence, (*(head or (None, None)), a, b)))
    if rules.tail == "after":
        yield ("store", "tail", (sequence + 1) % MOD)
    return ("reader", (sequence + 1) % MOD)


def idle() -> Run:
    return ("idle",)
    yield  # makes it a generator


def lane_case(rules: LaneRules) -> Case:
    """A writer, a reader, and deaths of the writer."""
    end = (rules.start + rules.blocks) % MOD
    places: dict[Any, Any] = {"commit": rules.start, "tail": rules.start, "epoch": 1}
    places |= {("start", 0): rules.start, ("start", 1): rules.start}
    for slot in range(CAPACITY):
        places |= {(slot, "mark"): 0, (slot, "head"): None, (slot, "crc"): 0, (slot, "a"): None, (slot, "b"): None}

    def judge(question: Any, facts: Facts) -> None:
        sequence, block = question
        committed = dict(facts).get(sequence)
        if block == "failed":
            if rules.prompt:
                raise Bad(f"block {sequence}, which was committed, failed its checks")
            return
        if block != committed:
            raise Bad(f"block {sequence} was read as {block}, committed was {committed}")

    def finished(programs: tuple[Program, ...]) -> bool:
        return rules.overtaken or all(program in (("idle",), ("reader", end)) for program in programs)

    working = {"supervisor"}
    working |= {"writer", "zombie"} if rules.writer_fences else set()
    working |= {"reader"} if rules.reader_fences else set()
    return Case(
        places=places,
        programs={
            "writer": lambda *state: lane_writer(rules, *state),
            "zombie": lambda *state: lane_zombie(rules, *state),
            "supervisor": lambda: lane_supervisor(rules),
            "reader": lambda sequence: lane_reader(rules, sequence),
            "idle": idle,
        },
        start=(("writer", 1, rules.start, rules.start), ("reader", rules.start)),
        kill=lambda program: ("supervisor",) if program[0] == "writer" and program[1] < rules.lives else None,
        judge=judge,
        finished=finished,
        zombies=not rules.reaped,
        fences=frozenset(working),
    )


@dataclass(frozen=True)
class WeightsRules:
    """How weights are published. The defaults are the protocol; anything else breaks or strips it.

    Args:
        buffers: how many copies there are.
        versions: how many are published.
        reads: how many are picked up.
        lives: how often a writer may live; all but the last may be killed anywhere.
        latest: the word moves `"after"` the buffer is whole, or `"before"`.
        odd: a buffer bears an odd number while it is written.
        crc: the copy is checked.
        looks: how often the buffer's number is looked at: before and after the copy (2), before (1), never (0).
        resume: a new writer goes on after `"latest"`, or from `"one"`.
        prompt: fewer than `buffers` newer publications must not disturb a reader.
        writer_fences: the writer's fences work.
        reader_fences: the reader's fences work.
    """

    buffers: int = 3
    versions: int = 4
    reads: int = 2
    lives: int = 2
    latest: str = "after"
    odd: bool = True
    crc: bool = True
    looks: int = 2
    resume: str = "latest"
    prompt: bool = False
    writer_fences: bool = True
    reader_fences: bool = True


def weights_writer(rules: WeightsRules, life: int, version: int) -> Run:
    """Publish one version."""
    if version > rules.versions:
        return ("idle",)
    buffer = version % rules.buffers
    a = b = (version, life)
    latest = ("store", "latest", version, (version, (a, b)))
    if rules.latest == "before":
        yield latest
    begun = ("begun", version)
    if rules.odd:
        yield ("store", (buffer, "number"), 2 * version - 1, begun)
        yield ("fence",)
    yield ("store", (buffer, "a"), a, begun)
    yield ("store", (buffer, "b"), b)
    yield ("store", (buffer, "crc"), (version, a, b))
    yield ("fence",)
    yield ("store", (buffer, "number"), 2 * version)
    yield ("fence",)
    if rules.latest == "after":
        yield latest
    return ("writer", life, version + 1)


def weights_supervisor(rules: WeightsRules, life: int) -> Run:
    """A writer is dead: start the next one."""
    yield ("sync",)
    latest = yield ("load", "latest")
    yield ("sync",)
    return ("writer", life, latest + 1 if rules.resume == "latest" else 1)


def weights_reader(rules: WeightsRules, reads: int, last: int) -> Run:
    """Pick the latest version up, or find that it is none, or torn."""
    if reads == rules.reads:
        return ("idle",)
    version = yield ("load", "latest")
    if version == 0:
        return ("reader", reads, last)
    yield ("fence",)
    buffer = version % rules.buffers
    whole = rules.looks < 1 or (yield ("load", (buffer, "number"))) == 2 * version
    if whole:
        yield ("fence",)
        a = yield ("load", (buffer, "a"))
        b = yield ("load", (buffer, "b"))
        crc = yield ("load", (buffer, "crc"))
        yield ("fence",)
        whole = rules.looks < 2 or (yield ("load", (buffer, "number"))) == 2 * version
        whole = whole and (not rules.crc or crc == (version, a, b))
    if not whole:
        yield ("judge", ("disturbed", version, None))
        return ("reader", reads, last)
    yield ("judge", ("read", version, (a, b)))
    if version < last:
        yield ("judge", ("backwards", version, last))
    return ("reader", reads + 1, version)


def weights_case(rules: WeightsRules) -> Case:
    """A writer, a reader, and deaths of the writer."""
    places: dict[Any, Any] = {"latest": 0}
    for buffer in range(rules.buffers):
        places |= {(buffer, "number"): 0, (buffer, "crc"): 0, (buffer, "a"): None, (buffer, "b"): None}

    def judge(question: Any, facts: Facts) -> None:
        what, version, detail = question
        known = dict(facts)
        if what == "backwards":
            raise Bad(f"version {version} was read after version {detail}")
        if what == "read" and known.get(version) != detail:
            raise Bad(f"version {version} was read as {detail}, published was {known.get(version)}")
        if what == "disturbed" and rules.prompt and known["begun"] < version + 3:
            raise Bad(f"version {version} could not be read although only {known['begun']} was begun")

    working = {"supervisor"}
    working |= {"writer"} if rules.writer_fences else set()
    working |= {"reader"} if rules.reader_fences else set()
    return Case(
        places=places,
        programs={
            "writer": lambda *state: weights_writer(rules, *state),
            "supervisor": lambda life: weights_supervisor(rules, life),
            "reader": lambda *state: weights_reader(rules, *state),
            "idle": idle,
        },
        start=(("writer", 1, 1), ("reader", 0, 0)),
        kill=lambda program: (
            ("supervisor", program[1] + 1) if program[0] == "writer" and program[1] < rules.lives else None
        ),
        judge=judge,
        finished=lambda programs: all(program == ("idle",) for program in programs),
        fences=frozenset(working),
    )
