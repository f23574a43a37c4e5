"""Faults of learner, memorizer and the memory they share, and of the pipes between the processes."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import time
from dataclasses import fields
from pathlib import Path

import leaks
from fault_runs import (
    PYTHON,
    PYTHON_PATH,
    ROOT,
    NotRun,
    between,
    cpu_seconds,
    kill,
    loadable,
    memory_kb,
    out_of_reach,
    pause,
    row,
    state_of,
)
from misbehaving.faults import FALSE_WORDS

from mlxe_async.ipc.shared.lanes import lane_state
from mlxe_async.ipc.shared.segments import STAMP_BYTES, Segment

ENDLESS = {"stop": {"env_steps": 10_000_000}}
MANY_DEATHS = {"supervision": {"restart_limit": 10_000, "backoff_s": 0.02}}
OWN = {"schedule": {"memorizer": "own"}}

ALGORITHM = """
import os, signal, time
from mlxe_async.algorithms.mlxe.paper import MLxE

class Bad(MLxE):
    calls = 0
    def update(self, *args, **kwargs):
        Bad.calls += 1
        {body}
        return super().update(*args, **kwargs)
"""


def bad_algorithm(case, body):
    """Settings for an algorithm of one's own whose update does this first."""
    folder = case.folder / "modules"
    folder.mkdir(exist_ok=True)
    (folder / "bad_algorithm.py").write_text(ALGORITHM.format(body=body))
    return {"run": {"python_path": [str(folder)]}, "algorithm": {"name": "bad_algorithm:Bad"}}


def published(run):
    return [line["version"] for line in run.all("weights")]


def is_dead(run):
    return run.process.poll() is not None


# -- learner ---------------------------------------------------------------------------------------------------------


@row("L1", "losses that are not finite, now and then", "the update is skipped, not published, counted; the run goes on")
def _(case):
    """Three rewards of 1e38, in a memory of one episode for each executor, so that they are soon gone."""
    run = case.start(
        {"fault": "large reward", "step": 100, "every": 100, "times": 3},
        {
            **ENDLESS,
            "memory": {"capacity_rows": 40, "keep_rows": 20, "block_rows": 20},
            "algorithm": {"batch": 20},
        },
    )
    run.until(lambda: any("not finite" in line["message"] for line in run.all("warning")), 60)
    case.want(
        any("not finite" in line["message"] for line in run.all("warning")), "it is told that updates were not finite"
    )
    versions = len(published(run))
    case.want(run.told("weights", versions + 3, 60), "learning goes on when the rows are gone")
    norms = [line["norm"] for line in run.all("weights")]
    case.want(all(norm is not None for norm in norms), "no version with a value that is not finite")
    if not is_dead(run):
        case.stops(run)
    else:
        case.want(False, f"the run goes on (exit code {run.process.poll()})")


@row("L1.2", "losses that are never finite", "three roll-backs, the batch is kept, exit 5; nothing of it published")
def _(case):
    """Rewards of 1e38 in every step."""
    run = case.start({"fault": "large reward", "step": 100, "every": 1, "times": 0, "executor": -1}, ENDLESS)
    case.want(run.ended(90) is not None, "it ends by itself")
    case.checks(run, 5)
    norms = [line["norm"] for line in run.all("weights")]
    case.want(all(norm is not None for norm in norms), "no version with a value that is not finite")
    kept = [p.name for p in (run.runs / "latest" / "crash").iterdir() if "batch" in p.name]
    case.want(kept, "the batch is kept under crash/")


@row(
    "L2",
    "an exception in the update",
    "the learner is restarted from the last published weights; executors go on; budget 3 in 300 s",
)
def _(case):
    """The 20th update of the first life raises."""
    bad = bad_algorithm(
        case, 'if Bad.calls == 20 and os.environ["MLXE_ROLE"].endswith(":1"): raise ValueError("shape bug")'
    )
    run = case.start({}, {**ENDLESS, "schedule": {"kind": case.kind}, **bad})
    case.want(
        run.told("proc_restart", 1, 60, process="mlxe-lrn"),
        f"the learner is restarted (exit code {run.process.poll()})",
    )
    if is_dead(run):
        case.checks(run, 143)
        return
    versions = len(published(run))
    case.want(run.told("weights", versions + 3, 60), "it publishes again")
    case.stops(run)


@row(
    "L2.2",
    "an exception in every update",
    "given up in the first phase of learning: exit 3 that names it, with a checkpoint",
    ci=1,
)
def _(case):
    """Every update raises."""
    run = case.start({}, {**ENDLESS, **bad_algorithm(case, 'raise ValueError("shape bug")')})
    case.want(run.ended(90) is not None, "it ends by itself")
    case.checks(run, 3, last="shape bug")
    case.want(not run.all("proc_restart", process="mlxe-lrn"), "it is not tried again")
    case.want(run.all("checkpoint"), "a checkpoint is saved")


@row("L3", "SIGKILL of the learner at random times", "versions only grow, nothing torn, executors go on")
def _(case):
    """Kills in a row while it publishes as fast as it can."""
    kills = case.amount(6, 25, 1000)
    chance = random.Random(case.seed)  # noqa: S311 - chooses moments
    run = case.start(
        {}, {**ENDLESS, **MANY_DEATHS, "schedule": {"kind": case.kind, "memorizer": ("own", "auto")[case.seed % 2]}}
    )
    run.told("weights", 2)
    for number in range(kills):
        pause(chance.random() * 0.2)
        before = len(run.all("proc_start", process="mlxe-lrn"))
        kill(run.living("mlxe-lrn"))
        case.want(run.told("proc_start", before + 1, 30, process="mlxe-lrn"), f"kill {number}: it comes back")
        version = max(published(run), default=0)
        case.want(
            run.until(lambda v=version: max(published(run), default=0) > v, 30), f"kill {number}: it publishes again"
        )
    case.proves(run)
    case.stops(run)
    case.saw(f"{kills} kills, {len(published(run))} versions")


@row(
    "L4",
    "SIGKILL of the supervisor while a checkpoint is saved",
    "the old one valid; nothing half done is mistaken for one",
)
def _(case):
    """Checkpoints every 0.1 s; killed 0-50 ms after one was told; all that lies there is loaded."""
    chance = random.Random(case.seed)  # noqa: S311 - chooses moments
    for _ in range(case.amount(2, 10, 1000)):
        run = case.start({}, {**ENDLESS, "checkpoint": {"interval_s": 0.1}})
        run.told("checkpoint", 2)
        pause(chance.random() * 0.05)
        run.signal(signal.SIGKILL)
        run.ended()
        case.want(loadable(run), "the newest checkpoint, or the one before, can be loaded")
        case.want(not leaks.processes_after(5.0), "no process is left")


@row("L5", "the learner hangs", "killed at update_timeout_s + 1 s, restarted; producing again within 5 s")
def _(case):
    """SIGSTOP from outside, or an update that never ends; limit 2 s."""
    hang = 'if Bad.calls == 20 and os.environ["MLXE_ROLE"].endswith(":1"): time.sleep(1e9)'
    bad = bad_algorithm(case, hang) if case.seed % 2 else {}
    run = case.start({}, {**ENDLESS, **bad, "schedule": {"kind": case.kind, "update_timeout_s": 2.0}})
    run.told("weights", 3)
    began = time.monotonic()
    if not case.seed % 2:
        kill(run.living("mlxe-lrn"), signal.SIGSTOP)
    if case.want(run.told("hang", 1, 60, process="mlxe-lrn"), "the hang is told"):
        case.within(run.all("hang")[0]["stuck_s"], 1.0, "judged after the limit")
        version = max(published(run), default=0)
        run.until(lambda: max(published(run), default=0) > version, 30)
        death = run.all("proc_exit", process="mlxe-lrn")
        after = [line for line in run.all("weights") if death and line["seq"] > death[0]["seq"]]
        if case.want(after, "it publishes again"):
            case.within(between(death[0], after[0]), 5.0, "publishes again")
    case.stops(run)
    case.saw(f"{time.monotonic() - began:.1f} s in all")


out_of_reach(
    "L6", "CUDA runs out of memory or is lost", "process restart; the batch is not halved silently; or exit 4", "a GPU"
)


def waited_for_learning(case, run):
    """Seconds of a run of rounds in which it learned; nobody may have played in them."""
    learned, played = (
        [(line["start_ns"], line["start_ns"] + 1e9 * line["seconds"]) for line in run.all("phase", phase=phase)]
        for phase in ("learn", "generate")
    )
    both = [(begin, end) for begin, end in played if any(begin < other and one < end for one, other in learned)]
    case.want(learned and played and not both, f"nobody plays while the learner learns ({both[:1]})")
    return sum(end - begin for begin, end in learned) / 1e9


@row(
    "L7",
    "the learner is slower than the executors",
    "back-pressure by policy; counters of what is overwritten and how long is waited; the ledger balances",
)
def _(case):
    """Each update takes 0.3 s; the memory holds 600 rows."""
    bad = bad_algorithm(case, "time.sleep(0.3)")
    run = case.start(
        {}, {"stop": {"env_steps": 1500, "seconds": 40}, "memory": {"capacity_rows": 600, "keep_rows": 20}, **bad}
    )
    case.checks(run, 0)
    last = run.all("ledger")[-1]
    case.want(last["overwritten"] > 0, f"overwritten rows are counted ({last['overwritten']})")
    held_s = last["throttled_s"] if case.kind == "oa" else waited_for_learning(case, run)
    case.want(held_s > 0, f"the time executors were held back is told ({held_s})")
    rows = last["kept"] + last["overwritten"]
    case.want(rows <= last["ingested"], f"no more is kept or overwritten than came in ({rows} of {last['ingested']})")
    case.saw(f"{last['overwritten']} rows overwritten, {held_s:.1f} s held back")


@row("L8", "the learner is starved", "waits without spinning (CPU below 2 %), and says so every 10 s", ci=1)
def _(case):
    """All executors sleep 4 s in every step."""
    run = case.start(
        {"fault": "sleep", "seconds": 4.0, "step": 60, "every": 1, "times": 0, "executor": -1},
        {**ENDLESS, "schedule": {"kind": "oa"}},
    )
    run.until(lambda: run.steps() >= 80)
    pause(3.0)
    pids = [run.pid, run.living("mlxe-lrn")]
    before = [cpu_seconds(pid) for pid in pids]
    seconds, notes = case.amount(12.0, 32.0), len(run.all("starved"))
    pause(seconds)
    used = [(cpu_seconds(pid) - first) / seconds for pid, first in zip(pids, before, strict=True)]
    case.want(used[1] < 0.02, f"the learner below 2 % ({used[1]:.1%})")
    case.want(used[0] < 0.05, f"the supervisor below 5 % ({used[0]:.1%})")
    told = run.all("starved")
    case.want(told and "executor" in told[0]["waits_for"], f"it is told who is waited for ({told[:1]})")
    case.want(len(told) - notes >= seconds // 10 - 1, f"every 10 s ({len(told) - notes} times in {seconds:.0f} s)")
    case.stops(run, seconds=7.0)


@row("L9", "torch is missing or broken", "exit 2 or 4 within 5 s, with the import's words; no traceback", ci=1)
def _(case):
    """A package `torch` on the path that raises ImportError."""
    folder = case.folder / "modules" / "torch"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text('raise ImportError("libtorch_cpu.so: wrong ELF class")\n')
    began = time.monotonic()
    path = os.pathsep.join([str(folder.parent), PYTHON_PATH])
    run = case.start({}, {}, env={"PYTHONPATH": path})
    got = run.ended()
    case.within(time.monotonic() - began, 5.0, "refused")
    case.want(got in (2, 4), f"exit 2 or 4 ({got})")
    case.want(
        "wrong ELF class" in run.error() and "Traceback" not in run.error(),
        f"the import's words ({run.error()[-300:]})",
    )
    case.nothing_left(run)


# -- memorizer and memory --------------------------------------------------------------------------------------------


@row("M1", "SIGKILL of the memorizer at random times", "no committed row lost or twice", ci=3)
def _(case):
    """Kills in a row; the memory is audited."""
    kills = case.amount(6, 25, 1000)
    chance = random.Random(case.seed)  # noqa: S311 - chooses moments
    run = case.start({}, {**ENDLESS, **MANY_DEATHS, "schedule": {"kind": case.kind, "memorizer": "own"}})
    run.reached(100)
    for number in range(kills):
        pause(chance.random() * 0.2)
        before, steps = len(run.all("proc_start", process="mlxe-mem")), run.steps()
        kill(run.living("mlxe-mem"))
        case.want(run.told("proc_start", before + 1, 30, process="mlxe-mem"), f"kill {number}: it comes back")
        case.want(run.reached(steps + 20, 30), f"kill {number}: the run goes on")
    found = case.proves(run)
    case.stops(run)
    if found:
        case.saw(f"{kills} kills, {found.rows} rows proven")


@row(
    "M2",
    "SIGSTOP of the memorizer",
    "lanes fill, executors wait, nothing unread is overwritten; killed 1 s after its limit",
)
def _(case):
    """Limit 2 s; lanes of 2 blocks of 10 rows."""
    run = case.start(
        {"length": 50},
        {
            **ENDLESS,
            "memory": {"lane_slots": 2, "block_rows": 10},
            "schedule": {"kind": case.kind, "memorizer": "own", "update_timeout_s": 2.0},
        },
    )
    run.reached(200)
    kill(run.living("mlxe-mem"), signal.SIGSTOP)
    if case.want(run.told("hang", 1, 30, process="mlxe-mem"), "the hang is told"):
        case.within(run.all("hang")[0]["stuck_s"], 1.0, "judged after the limit")
    steps = run.steps()
    case.want(run.reached(steps + 200, 60), "it goes on")
    case.proves(run)
    case.stops(run)


def segment_of(run, name):
    """The memory of a living run, mapped from outside."""
    for entry in Path(f"/proc/{run.pid}/fd").iterdir():
        if str(entry.readlink()).startswith(f"/memfd:mlxe-{name} "):
            return Segment.attach(name, os.open(entry, os.O_RDWR | os.O_CLOEXEC))
    raise NotRun(f"the segment {name} of the run")


SLOT_HEADER = 64


def unread_block(run, lane):
    """Stop the memorizer at a moment after which a block is committed, so that it cannot have read it yet.

    Where the lane's executor is itself held back just then, none comes: then another moment is tried.

    Returns:
        The memorizer's process id and the block's sequence number, which is None where no moment did.
    """
    for _ in range(20):
        pid = run.living("mlxe-mem")
        kill(pid, signal.SIGSTOP)
        run.until(lambda pid=pid: state_of(pid) == "T", 20)
        before = lane_state(lane).commit
        if run.until(lambda before=before: lane_state(lane).commit > before, 1.0):
            return pid, before
        kill(pid, signal.SIGCONT)
        run.reached(run.steps() + 20, 20)
    return pid, None


@row(
    "M3",
    "a bit flips in a committed block",
    "caught, never served; event corrupt_record with lane, sequence and header",
)
def _(case):
    """Anywhere in a block that is not read yet, through /proc/PID/fd, while the memorizer is stopped.

    The lane's executor takes 3 ms for a step, so that it is at work most of the time, and not held back.
    """
    from mlxe_async.ipc.shared import lanes

    chance = random.Random(case.seed)  # noqa: S311 - chooses bits
    run = case.start(
        {"length": 40, "fault": "sleep", "seconds": 0.003, "step": 1, "every": 1, "times": 0},
        {**ENDLESS, "memory": {"block_rows": 8, "lane_slots": 64}, "schedule": {"kind": "oa", "memorizer": "own"}},
    )
    run.reached(200)
    flips = case.amount(3, 25, 1000)
    caught, flipped = 0, []
    with segment_of(run, "lane-0") as lane:
        capacity = read_capacity(lane)
        stride = (lane.size - lanes._HEAD - lanes.STAMP_BYTES) // capacity
        for number in range(flips):
            pid, block = unread_block(run, lane)
            if not case.want(block is not None, f"flip {number}: a block waits to be read"):
                break
            slot = lanes._HEAD + (block % capacity) * stride
            # Six words of the slot's header and what of the payload counts; what lies behind is nobody's.
            counted = lane.buffer[slot : slot + SLOT_HEADER].cast("Q")[lanes.LENGTH]
            at = chance.randrange(48 + counted)
            lane.buffer[slot + (at if at < 48 else SLOT_HEADER + at - 48)] ^= 1 << chance.randrange(8)
            flipped.append(block)
            kill(pid, signal.SIGCONT)
            caught += run.told("corrupt_record", number + 1, 20)
            run.reached(run.steps() + 40, 20)
        case.want(caught == flips, f"all {flips} flips are told ({caught})")
    told = run.all("corrupt_record")
    case.want(all(line["lane"] == 0 and line["header"] for line in told), "lane and header are told")
    case.want([line["sequence"] for line in told] == flipped, f"the blocks themselves are told ({flipped}: {told})")
    case.saw(f"{caught} flips in headers and payloads told")
    case.proves(run, whole=False, holes=True)
    run.signal(signal.SIGTERM)
    got = run.ended(30)
    case.want(got == 143, f"exit code 143 ({got})")
    case.nothing_left(run)


def read_capacity(lane):
    return struct.unpack_from("<8sQQQ", bytes(lane.buffer[:64]))[3]


MEMORY_COUNTERS = 4096  # both copies of them and what lies between them and the rows


@row("M4", "a segment's header is overwritten", "the mirrored copy is used; if both are bad, exit 3 and no guess", ci=4)
def _(case):
    """Zeros or chance bytes in the first copy, the second or both, then who reads it is killed.

    The header of a lane, of the weights, or, where both copies are spoilt, the counters that the memory begins with.
    """
    chance = random.Random(case.seed)  # noqa: S311 - chooses bytes
    both = case.seed % 2 == 1
    readers = [("lane-0", "mlxe-exe-0"), ("weights", "mlxe-lrn"), *([("memory", "mlxe-mem")] if both else [])]
    name, reader = readers[case.seed // 2 % len(readers)]
    make = (bytes, chance.randbytes)[case.seed // 4 % 2]
    run = case.start({}, {**ENDLESS, "schedule": {"kind": "oa", "memorizer": "own"}})
    run.reached(200)
    if name == "memory":
        kill(run.living(reader), signal.SIGSTOP)  # or it would write a good copy once more
    with segment_of(run, name) as segment:
        if name == "memory":
            segment.buffer[:MEMORY_COUNTERS] = make(MEMORY_COUNTERS)
        else:
            second = segment.size - STAMP_BYTES
            for place in (0, second) if both else (chance.choice([0, second]),):
                segment.buffer[place : place + STAMP_BYTES] = make(STAMP_BYTES)
    kill(run.living(reader))
    if both:
        case.want(run.ended(30) is not None, "it ends by itself")
        case.checks(run, 3, last="bookkeeping" if name == "memory" else "header")
        return
    case.want(
        run.told("proc_start", 2, 20, process=reader),
        f"{name}: {reader} goes on by the other copy (exit code {run.process.poll()}: {run.error()[-200:]})",
    )
    steps = run.steps()
    case.want(run.reached(steps + 200, 30), f"{name}: steps are taken ({run.error()[-200:]})")
    case.stops(run)


PRIORITISED = """
import numpy as np
from mlxe_async.algorithms.mlxe.paper import MLxE
from mlxe_async.algorithms.interface import Priorities

class Prioritised(MLxE):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.priorities = Priorities("td", exponent=0.6, correction=0.4)
    def update(self, batch, clock):
        metrics, _ = super().update(batch, clock)
        return metrics, np.full(len(batch["obs"]), 0.5, np.float32)
"""


@row(
    "M5",
    "the priorities are corrupted",
    "derived data: checked at every draw, what cannot be one is replaced, which is told; the run goes on",
)
def _(case):
    """NaN, infinity and -1 in the priorities of all rows, from outside, while an algorithm draws by them."""
    from mlxe_async.memory.replay import ReplayMemory
    from mlxe_async.memory.shape import ReplayShape
    from mlxe_async.storage.checkpoints import load_whole

    folder = case.folder / "modules"
    folder.mkdir()
    (folder / "prioritised.py").write_text(PRIORITISED)
    tables = {
        "run": {"name": "fault", "seed": case.seed, "python_path": [str(folder)]},
        "task": {"env": "CartPole-v1"},
        "schedule": {"kind": case.kind, "executors": 2},
        "memory": {"capacity_rows": 4000},
        "checkpoint": {"interval_s": 0.3},
        "algorithm": {"name": "prioritised:Prioritised", "min_updates": 4, "batch": 64},
        **ENDLESS,
    }
    run = case.start_raw(tables)
    if not case.want(run.told("checkpoint", 2), f"it runs ({run.error()[-300:]})"):
        return
    kept = load_whole((run.runs / "latest").resolve() / "checkpoints").facts["state"]["memory_shape"]
    shape = {field.name: kept[field.name] for field in fields(ReplayShape) if field.name in kept}
    told = None
    with segment_of(run, "memory") as segment:
        memory = ReplayMemory(ReplayShape(**shape), segment.buffer)
        priorities = memory._ring["priority"]
        for _ in range(30):  # on a busy host new rows may come in everybody's place before any is drawn
            priorities[0::3], priorities[1::3], priorities[2::3] = float("nan"), float("inf"), -1.0
            told = run.until(lambda: [line for line in run.all("warning") if "priorities" in line["message"]], 1)
            if told:
                break
        del priorities, memory
    case.want(told, "it is told")
    versions = len(published(run))
    case.want(run.told("weights", versions + 5, 60), "it goes on learning")
    case.want(all(line["norm"] is not None for line in run.all("weights")), "all weights are finite")
    case.stops(run)


@row("M6", "the memory wraps around a hundred times", "the oldest are dropped and counted; the ledger exact", ci=1)
def _(case):
    """A memory of 60 rows."""
    run = case.start(
        {},
        {
            **ENDLESS,
            "memory": {"capacity_rows": 60, "keep_rows": 20, "block_rows": 10},
            "algorithm": {"batch": 60},
        },
    )
    case.want(run.reached(case.amount(3000, 12_000)), "it comes so far")
    case.proves(run, whole=False)
    case.stops(run)
    last = run.all("ledger")[-1]
    rows = last["kept"] + last["overwritten"]
    case.want(rows == last["ingested"], f"kept + overwritten = ingested ({rows} of {last['ingested']})")
    case.saw(f"wrapped {run.steps() // 60} times")


SHIFTED = """
import sys
import numpy as np
from mlxe_async.cli import main
from mlxe_async.ipc.shared.lanes import format_lane
from mlxe_async.supervisor.plan.blueprint import Blueprint
START = {start}
made = Blueprint.create_segments
def shifted(self):
    segments = made(self)
    memory, payload = self.memory_in(segments), self.layout.nbytes(self.block_rows)
    for lane in range(self.executors):
        segment, slots = segments[f"lane-{{lane}}"], self.settings.memory.lane_slots
        format_lane(segment, slots, payload, self.layout.schema_hash, START)
        memory._books.position[lane] = np.uint64(START).astype(np.int64)
        memory._books.store()
    return segments
Blueprint.create_segments = shifted
sys.exit(main([sys.argv[1], "--no-progress"]))
"""


@row(
    "M7",
    "sequence counters beyond 2^31, 2^32, 2^53, 2^63, 2^64",
    "arithmetic modulo 2^64; text above 2^53 in JSON",
    ci=1,
)
def _(case):
    """Lanes and memory begin just before; an executor is killed after the counters went over."""
    starts = (2**63 - 2, 2**64 - 66, 2**31 - 2, 2**32 - 2, 2**53 - 2)
    for start in starts[: case.amount(2, 5)]:
        tables = {**ENDLESS, "schedule": {"kind": "oa", "memorizer": "own"}, "logs": {"ledger_interval_s": 0.3}}
        run = case.driver(SHIFTED.format(start=start), tables)
        over = 100 * 20
        if not case.want(run.reached(over), f"{start}: it came so far ({run.steps()}: {run.error()[-300:]})"):
            continue
        kill(run.living("mlxe-exe-0"))
        case.want(run.told("proc_start", 2, 60, process="mlxe-exe-0"), f"{start}: the executor comes back")
        case.want(run.reached(run.steps() + 200), f"{start}: it goes on")
        case.proves(run)
        case.stops(run)
        blocks = run.all("ledger")[-1]["lanes"][0]["committed_blocks"]
        gone = (int(blocks) - start) % 2**64
        case.want(0 < gone < 2**20, f"{start}: counted on ({blocks})")
        case.want(isinstance(blocks, str) == (int(blocks) > 2**53), f"{start}: text above 2^53 ({blocks!r})")


@row("M8", "capacities of 1, below the batch, no power of two", "works, or exit 2", ci=1)
def _(case):
    """Capacity 1, 2, 3, 100 and 1000 of one executor and of two, with batches of 512 and of as many or fewer."""
    capacities = ((1, 1, 1), (1, 512, 1), (1, 1, 2), (2, 512, 2), (3, 2, 2), (100, 64, 2), (1000, 512, 2))
    for capacity, batch, executors in capacities:
        run = case.start(
            {},
            {
                "stop": {"env_steps": 300},
                "memory": {"capacity_rows": capacity, "keep_rows": capacity, "block_rows": min(capacity, 128)},
                "algorithm": {"batch": batch},
                "schedule": {"executors": executors},
            },
        )
        got = run.ended()
        told = f"capacity {capacity}, batch {batch}, {executors} executors"
        case.want(got in (0, 2), f"{told}: works or exit 2 ({got}: {run.error()[-200:]})")
        case.want(got == 0 or "memory." in run.error(), f"{told}: the key is named ({run.error()[-200:]})")
        case.saw(f"{told}: {'works' if got == 0 else 'refused'}")
        if got == 0:
            case.reads(run, 0)
        case.nothing_left(run)


# -- pipes -----------------------------------------------------------------------------------------------------------


@row("P1", "a peer stops reading", "a cap on what waits for it; the supervisor's memory stays flat", ci=1)
def _(case):
    """The learner is stopped for 6 s with a limit of 30 s."""
    run = case.start({}, {**ENDLESS, "schedule": {"kind": "oa", "memorizer": "own", "update_timeout_s": 30.0}})
    run.reached(200)
    before = memory_kb(run.pid)
    kill(run.living("mlxe-lrn"), signal.SIGSTOP)
    pause(6.0)
    grown = (memory_kb(run.pid) - before) / 1024
    case.want(grown < 20, f"the supervisor does not grow ({grown:.0f} MB)")
    kill(run.living("mlxe-lrn"), signal.SIGCONT)
    case.want(run.reached(run.steps() + 200), "it goes on")
    case.stops(run)


def survives_a_pipe(case, kwargs, words):
    run = case.start({"step": 60, "times": 1, **kwargs}, {**ENDLESS, **MANY_DEATHS})
    case.want(run.told("proc_start", 2, 60, process="mlxe-exe-0"), "the executor is replaced")
    deaths = [line for line in run.all("proc_exit", process="mlxe-exe-0") if not line["expected"]]
    case.want(
        deaths and any(words in line["sentence"] for line in deaths),
        f"told in words: {words} ({[d['sentence'] for d in deaths]})",
    )
    case.want(run.reached(run.steps() + 200), "it goes on")
    case.proves(run)
    case.stops(run)
    return run


@row("P2", "half a message, then death", "discarded; everything committed is kept")
def _(case):
    """The environment writes half a frame into its process's channel and exits."""
    survives_a_pipe(case, {"fault": "half a frame"}, "code 9")


@row("P3", "half a message, then silence", "the peer is unhealthy after 1 s; the loop never blocks")
def _(case):
    """The same, then it sleeps 20 s."""
    run = survives_a_pipe(case, {"fault": "half a frame", "seconds": 20.0}, "frame")
    died = next(line for line in run.all("proc_exit", process="mlxe-exe-0") if not line["expected"])
    worked = [line for line in run.lines() if line.get("idx") == 0 and line["seq"] < died["seq"]]
    if case.want(worked, "it worked before"):
        case.within(between(worked[-1], died), 2.0, "the silence is judged")
    case.want(not run.all("loop_lag"), "the supervisor's loop goes on meanwhile")


@row(
    "P4",
    "garbage in the pipe",
    "the peer is killed and replaced, with the first bytes in hexadecimal; the supervisor unharmed",
)
def _(case):
    """The environment writes 256 bytes of garbage into its process's channel."""
    survives_a_pipe(case, {"fault": "attack the pipe"}, "deadbeef")


@row(
    "P4.2",
    "whole messages of no known kind, without fields, with fields of another type, answers in another's place",
    "the peer is killed and replaced, told in words; the supervisor unharmed",
    ci=1,
)
def _(case):
    """The environment says eleven such things, one in each life."""
    run = case.start({"step": 60, "fault": list(FALSE_WORDS)}, {**ENDLESS, **MANY_DEATHS})
    lives = len(FALSE_WORDS)
    case.want(run.told("proc_start", lives + 1, process="mlxe-exe-0"), f"replaced each time ({run.error()[-300:]})")
    deaths = run.all("proc_exit", process="mlxe-exe-0", expected=False)
    mute = [line["sentence"] for line in deaths if "broke the protocol" not in line["sentence"]]
    case.want(len(deaths) == lives and not mute, f"each is told in words ({len(deaths)}, {mute[:2]})")
    case.want(not run.all("proc_exit", process="mlxe-exe-1", expected=False), "nobody else is ended for it")
    case.want(run.reached(run.steps() + 200), "it goes on")
    case.proves(run)
    case.stops(run)


@row("P5", "messages of a former life, twice, out of order", "dropped", ci=1)
def _(case):
    """The protocol's own tests of frames and channels are run."""
    files = [f"tests/ipc_processes/test_{name}.py" for name in ("frames", "channels")]
    done = subprocess.run(
        [PYTHON, "-m", "pytest", "-p", "no:cacheprovider", *files],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300, env={**os.environ, "PYTHONPATH": ROOT},
    )  # fmt: skip
    case.want(done.returncode == 0, f"the tests pass ({done.stdout[-200:]})")


@row("P6", "a child of the environment inherits the pipe", "death is seen within 50 ms all the same")
def _(case):
    """A forked child holds the channel; the executor is killed."""
    run = case.start({"fault": "fork", "step": 60}, {**ENDLESS, **MANY_DEATHS})
    run.until(lambda: len(run.all("episode_end", idx=0)) >= 6)
    now = time.monotonic_ns()
    kill(run.living("mlxe-exe-0"))
    if case.want(run.told("proc_exit", 1, 20, process="mlxe-exe-0"), "the death is told"):
        seconds = (run.all("proc_exit")[0]["mono_ns"] - now) / 1e9
        case.within(seconds, 0.05, "told")
        case.saw(f"told after {seconds * 1000:.0f} ms")
    case.want(run.reached(run.steps() + 100), "it goes on")
    case.stops(run)
