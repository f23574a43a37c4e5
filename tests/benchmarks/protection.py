"""What protection costs: `python tests/benchmarks/protection.py [FILE] [--seconds 20] [--pairs 3]`.

Nothing switches checksums, progress words, checks, ledger and hang watch off, so a run without them cannot be timed.
Instead the package's own functions are timed apart, in loops over what FILE's run hands them (CPU time; the median of
nine), and multiplied by how often a real run of FILE at full rate called them, as its log tells between its first and
its last update. The sum is told as a share of the CPU time that all processes of that run used meanwhile.

A recording can be switched on and off: `--pairs` runs with and without take turns, and their CPU time per row is
compared too. That is the whole difference, noise included; the table's lines on it are what it is by itself.

Ends with 1 where the sum is more than 5 %, or what recording costs by itself is more than 2 %.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts its pools

import argparse
import asyncio
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from rate import ONE_PASS, ROOT, measured, watched

from mlxe_async.ipc.messages import frames
from mlxe_async.ipc.processes.life import FEW, WATCH_S
from mlxe_async.ipc.shared import lanes, weights
from mlxe_async.ipc.shared.words import PAGE_BYTES, ProgressPage
from mlxe_async.logs.journal import Journal
from mlxe_async.roles.places import Places
from mlxe_async.settings import Settings, load_settings
from mlxe_async.supervisor.monitoring.status import tell_ledger
from mlxe_async.supervisor.plan.blueprint import Blueprint
from mlxe_async.supervisor.plan.budget import Bell, Budget, Counters
from mlxe_async.supervisor.plan.event_log import EventLog
from mlxe_async.supervisor.recording.file import Recording
from mlxe_async.supervisor.recording.steps import Learned, Memorized, Rollout
from mlxe_async.tasks.training import training_task

MOST_PERCENT, RECORDING_PERCENT = 5.0, 2.0
REPEATS, LOOP_S = 9, 0.03


@dataclass
class Seen:
    """One run: its log, the CPU seconds of all its processes between two moments, and its folder's facts."""

    lines: list[dict[str, Any]]
    since: float
    until: float
    cpu_seconds: float
    cpu_row: float
    settings: Settings
    facts: dict[str, Any]

    def all(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Its lines of one kind between the two moments."""
        return [
            line
            for line in self.lines
            if line["event"] == event
            and self.since < line["mono_ns"] / 1e9 <= self.until
            and all(line.get(name) == value for name, value in fields.items())
        ]


def run(file: str, seconds: float, **overrides: Any) -> Seen:
    """The command with FILE for so many seconds, its tests switched off."""
    said = {**ONE_PASS, "stop.seconds": seconds, "stop.env_steps": 10**12, "run.name": '"protection"', **overrides}
    del said["algorithm.epochs"]
    with tempfile.TemporaryDirectory() as place:
        lines, samples = watched(file, place, seconds, said)
        folder = Path(place) / "latest"
        settings, facts = (
            load_settings(folder / "settings.toml"),
            json.loads((folder / "run.json").read_text())["facts"],
        )
    found = measured(lines, samples)
    ends = [line["mono_ns"] / 1e9 for line in lines if line.get("phase") == "learn" and line["updates"]]
    within = [sample for sample in samples if ends[0] <= sample[0] <= ends[-1]]
    (since, _, first), (until, _, last) = within[0], within[-1]
    used = sum(last[name] - first[name] for name in first)
    return Seen(lines, since, until, used, sum(found["cpu_row"].values()), settings, facts)


# -- what one call costs -----------------------------------------------------------------------------------------------


def microseconds(call: Callable[[], object]) -> float:
    """CPU time of one call: the median over `REPEATS` loops."""
    loops = 1
    while True:
        began = time.process_time()
        for _ in range(loops):
            call()
        if (spent := time.process_time() - began) >= LOOP_S:
            break
        loops = max(2 * loops, math.ceil(loops * LOOP_S / spent) if spent else 0)
    found = [spent]
    for _ in range(REPEATS - 1):
        began = time.process_time()
        for _ in range(loops):
            call()
        found.append(time.process_time() - began)
    return 1e6 * statistics.median(found) / loops


def watching() -> float:
    """CPU microseconds of one look at a process's progress words, the loop's wake-up included."""
    page = ProgressPage(bytearray(PAGE_BYTES))
    page.enter(60.0)
    looks = 300

    async def look() -> float:
        began = time.process_time()
        for _ in range(looks):
            await asyncio.sleep(0.0005)
            page.overdue(time.monotonic_ns())
        return time.process_time() - began

    return 1e6 * statistics.median(asyncio.run(look()) for _ in range(REPEATS)) / looks


def checking(settings: Settings) -> tuple[str, float]:
    """What is checked of one step of all environments of an executor, and its CPU microseconds."""
    count = settings.schedule.envs_per_executor
    task = cast("Any", training_task(settings.task.model_dump(), count))
    try:
        obs = np.zeros((count, *task.spaces.observation_shape), task.spaces.observation_dtype)
        if task.resets_itself:
            rewards, flags = np.ones(count), np.zeros(count, dtype=bool)

            def check() -> None:
                task._check_finite(obs)
                task._check_finite(obs)  # what ended episodes, and what begins the next ones
                task._rewards(rewards)
                task._flags("terminated", flags)
                task._flags("truncated", flags)

            return "finite, and of the right kind (all environments, one step)", microseconds(check)
        # In a loop of their own they cost what the single environments' inlined checks cost at most.
        every = 16

        def check_each() -> None:
            for _ in range(every):
                _ = b"\0" in np.isfinite(obs).tobytes()
                for _env in range(count):
                    reward, over = 1.0, False
                    _ = type(reward) is not float or not -1e38 <= reward <= 1e38
                    _ = type(over) is not bool or type(over) is not bool
            task._check_bounds(obs)

        return "finite, of the right kind, within bounds (one step)", microseconds(check_each) / every
    finally:
        task.close()


@dataclass
class Line:
    """One line of the table."""

    what: str
    unit_us: float
    times: float

    @property
    def seconds(self) -> float:
        """CPU seconds of the run."""
        return 1e-6 * self.unit_us * self.times


def costs(seen: Seen, folder: Path) -> Iterator[Line]:
    """What each kind of protection cost the run."""
    settings, blueprint = seen.settings, Blueprint(seen.settings, seen.facts)
    generated, learned = seen.all("phase", phase="generate"), seen.all("phase", phase="learn")
    memorized, published = seen.all("phase", phase="memorize"), seen.all("weights")
    rows = sum(line["rows"] for line in generated)
    blocks = sum(math.ceil(line["rows"] / blueprint.block_rows) for line in generated)
    steps = rows / blueprint.envs
    seconds = seen.until - seen.since

    payload = memoryview(bytearray(blueprint.layout.nbytes(blueprint.block_rows)))
    crc = microseconds(lambda: lanes.checksum(7, 1, 0, blueprint.block_rows, payload))
    yield Line(f"CRC of a block of {blueprint.block_rows} rows, written", crc, blocks)
    yield Line("CRC of a block, read", crc, blocks)
    flat = np.zeros(blueprint.parameters, np.float32)
    summed = microseconds(lambda: weights.checksum(7, flat))
    yield Line(f"CRC of {blueprint.parameters:,} weights, published", summed, len(published))
    yield Line("CRC of weights, read", summed, len(generated))  # at most once a rollout
    yield Line("weights finite", microseconds(lambda: weights.all_finite(flat)), len(published))
    message = frames.encode({name: value for name, value in generated[0].items() if value is not None})
    told = 2 * (len(generated) + len(learned) + len(memorized)) + blocks
    framed = microseconds(lambda: frames.zlib.crc32(message))
    yield Line("CRC of a control message, both ends", 2 * framed, told)

    page = ProgressPage(bytearray(PAGE_BYTES))

    def progress() -> None:
        page.enter(60.0)
        page.leave()

    calls = steps + len(learned) + len(memorized)
    yield Line("progress words (in and out of a call)", microseconds(progress), calls)
    column = next(column for column in blueprint.layout.columns if column.name == "action")
    places = Places(blueprint.envs, column.dtype, column.shape)
    actions = np.zeros_like(places.action)

    def noted() -> None:
        places.action[...] = actions

    yield Line("last actions kept for crash reports", microseconds(noted), steps)
    looks = seconds / WATCH_S * len(blueprint.posts) / (1 if len(blueprint.posts) <= FEW else 2)
    yield Line("looks for hangs", watching(), looks)
    what, unit = checking(settings)
    yield Line(what, unit, steps)

    ledgers = seen.all("ledger")
    yield Line("ledger", ledger_cost(settings, seen.facts, folder), len(ledgers))
    recording = Recording(folder / "recording", {})
    positions = tuple(range(blueprint.executors))
    for name, step, times in (
        ("recording: a rollout", Rollout(0, 7, 7, 7, 7, 7, 7), len(generated)),
        ("recording: a plan", Memorized(7, True, 7, positions), len(memorized)),
        ("recording: an update", Learned(7, 7, 7, 0.5, 7, 1.0), len(learned)),
    ):
        yield Line(
            name,
            microseconds(lambda step=step: recording.note(step)),  # type: ignore[misc]  # a default is not inferred
            times,
        )
    recording.close()


def ledger_cost(settings: Settings, facts: dict[str, Any], folder: Path) -> float:
    """CPU microseconds of one account of all rows, its line in the log included."""
    blueprint = Blueprint(settings, facts)
    segments = blueprint.create_segments()
    try:
        counters = Counters()
        with Journal(folder / "log.jsonl", "protection") as journal:
            log = EventLog(journal, counters, Budget(settings.stop.model_dump(), counters, Bell()))
            memorizer = cast("Any", SimpleNamespace(held=7))
            return microseconds(lambda: tell_ledger(blueprint, segments, memorizer, log, former=0))
    finally:
        for segment in segments.values():
            segment.close()


def tell_recording(file: str, seconds: float, pairs: int) -> None:
    """CPU time per row with and without a recording, in turns."""
    per_row: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(pairs):
        for records in (True, False):
            found = run(file, seconds, **{"run.record": str(records).lower(), "schedule.memorizer": '"learner"'})
            per_row[records].append(found.cpu_row)
    on, off = (statistics.median(per_row[records]) for records in (True, False))
    told = {records: ", ".join(f"{cost:.3f}" for cost in values) for records, values in per_row.items()}
    print(f"CPU us/row with a recording {told[True]}, without {told[False]}: {100 * (on / off - 1):+.1f} % (medians)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", default=str(ROOT / "settings" / "fast.toml"))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--pairs", type=int, default=3, help="runs with and without a recording; 0: none")
    given = parser.parse_args()
    seen = run(given.file, given.seconds)
    print(
        f"{given.file}: {seen.until - seen.since:.1f} s, {seen.cpu_seconds:.1f} s of CPU, {seen.cpu_row:.2f} us a row"
    )
    print(f"{'what':<62}{'us':>9}{'times':>10}{'CPU s':>9}{'share':>9}")
    total = recording = 0.0
    with tempfile.TemporaryDirectory() as place:
        for line in costs(seen, Path(place)):
            share = 100 * line.seconds / seen.cpu_seconds
            total += share
            recording += share if line.what.startswith("recording") else 0.0
            print(f"{line.what:<62}{line.unit_us:9.2f}{line.times:10,.0f}{line.seconds:9.4f}{share:7.3f} %")
    print(f"{'all of it':<62}{'':>28}{total:7.3f} %  (of it recording {recording:.3f} %)")
    if given.pairs:
        tell_recording(given.file, given.seconds, given.pairs)
    return int(total > MOST_PERCENT or recording > RECORDING_PERCENT)


if __name__ == "__main__":
    sys.exit(main())
