"""How fast shared memory is: lanes in blocks of 128 rows, and weights of 100 KB.

    python tests/benchmarks/ipc_memory.py [--seconds 1.0]

Rows are written column by column into the slot, committed, read into the reader's own memory with all checks, and given
back. "without CRC" replaces the checksum by a constant on both sides. "one core" is writer and reader in turn in one
process; "two processes" is a writer and a reader that run at once. Copying alone is the same bytes from array to array.
"""

from __future__ import annotations

import argparse
import mmap
import os
import platform
import signal
import time
from collections.abc import Callable

import numpy as np
from kept import processor

from mlxe_async.ipc.shared import lanes, weights
from mlxe_async.ipc.shared.lanes import LaneReader, LaneWriter, begin_epoch, format_lane, lane_bytes
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.ipc.shared.weights import WeightsReader, WeightsWriter, format_weights, weights_bytes
from mlxe_async.rows import Column, RowLayout, Spaces, standard_columns

ROWS = 128
SLOTS = 16
PARAMETERS = 25_000  # 100 KB

CARTPOLE = RowLayout(standard_columns(Spaces(observation_shape=(4,), actions=2)))
FRAMES = RowLayout(
    (
        Column("obs", "|u1", (84, 84)),
        Column("action", "<i8"),
        Column("reward", "<f4"),
        Column("terminated", "|u1"),
        Column("truncated", "|u1"),
        Column("log_prob", "<f4"),
        Column("version", "<i8"),
    )
)


class Block:
    """A lane for one kind of row, its writer and its reader, and a block of random rows to send."""

    def __init__(self, layout: RowLayout) -> None:
        self.layout, self.nbytes = layout, layout.nbytes(ROWS)
        self.segment = Segment.create("bench", lane_bytes(SLOTS, self.nbytes))
        format_lane(self.segment, SLOTS, self.nbytes, layout.schema_hash)
        self.segment.buffer[:: mmap.PAGESIZE].tobytes()  # every page is there
        begin_epoch(self.segment)
        draw = np.random.default_rng(0)
        source = layout.views(bytearray(draw.bytes(self.nbytes)), ROWS)
        self.columns = list(source.values())
        self.into = memoryview(bytearray(self.nbytes))
        self.turn = 0
        self.attach()

    def attach(self) -> None:
        self.writer = LaneWriter(self.segment, self.layout.schema_hash)
        self.reader = LaneReader(self.segment, self.layout.schema_hash)
        self.payloads = self.writer.payloads
        self.slots = [list(self.layout.views(payload, ROWS).values()) for payload in self.payloads]

    def write(self) -> bool:
        if self.writer.reserve() is None:
            return False
        for target, column in zip(self.slots[self.writer.slot], self.columns, strict=True):
            np.copyto(target, column)
        self.writer.commit(ROWS)
        return True

    def read(self) -> bool:
        got = self.reader.read(self.into)
        if got is None:
            return False
        self.reader.release(got.sequence)
        return True

    def in_turn(self) -> None:
        self.write()
        self.read()

    def copy_alone(self) -> None:
        self.turn = (self.turn + 1) % SLOTS  # a lane is larger than a cache may be: so is this
        for target, column in zip(self.slots[self.turn], self.columns, strict=True):
            np.copyto(target, column)
        self.into[:] = self.payloads[self.turn]


def seconds_each(act: Callable[[], object], seconds: float) -> float:
    """The best of five runs: time of one `act`."""
    act()
    number, best = 1, 0.0
    while True:
        began = time.perf_counter()
        for _ in range(number):
            act()
        spent = time.perf_counter() - began
        if spent > seconds / 5:
            break
        number *= 2
    best = spent / number
    for _ in range(4):
        began = time.perf_counter()
        for _ in range(number):
            act()
        best = min(best, (time.perf_counter() - began) / number)
    return best


def two_processes(block: Block, seconds: float) -> float:
    """Time of one block through the lane while a writer and a reader run at once."""
    begin_epoch(block.segment)
    pid = os.fork()
    if pid == 0:
        try:
            block.attach()
            while True:
                if not block.write():
                    os.sched_yield()
        finally:
            os._exit(1)
    try:
        blocks, began = 0, time.perf_counter()
        while (spent := time.perf_counter() - began) < seconds:
            if block.read():
                blocks += 1
            else:
                os.sched_yield()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    while block.read():
        pass
    begin_epoch(block.segment)
    block.attach()
    return spent / max(1, blocks)


def without_crc(measure: Callable[[], float]) -> float:
    """The measure with checksums that cost nothing and say nothing."""
    kept = lanes.checksum, weights.checksum
    lanes.checksum, weights.checksum = (lambda *_: 7), (lambda *_: 7)
    try:
        return measure()
    finally:
        lanes.checksum, weights.checksum = kept


def lane_table(seconds: float) -> None:
    print(f"{'lane, blocks of 128 rows':<34}{'rows/s':>14}{'GB/s':>8}{'us/block':>10}")
    for name, layout in (("CartPole rows", CARTPOLE), ("84x84 uint8 frames", FRAMES)):
        row_bytes = sum(column.row_bytes for column in layout.columns)
        block = Block(layout)
        print(f"{name}, {row_bytes} B/row")
        for label, measure in (
            ("copying alone", lambda block=block: seconds_each(block.copy_alone, seconds)),
            ("one core, without CRC", lambda block=block: without_crc(lambda: seconds_each(block.in_turn, seconds))),
            ("one core, with CRC", lambda block=block: seconds_each(block.in_turn, seconds)),
            ("two processes, without CRC", lambda block=block: without_crc(lambda: two_processes(block, seconds))),
            ("two processes, with CRC", lambda block=block: two_processes(block, seconds)),
        ):
            each = measure()
            rate, flow = ROWS / each, ROWS * row_bytes / each / 1e9
            print(f"  {label:<32}{rate:>14,.0f}{flow:>8.2f}{each * 1e6:>10.1f}")
        block.segment.close()


def weights_table(seconds: float) -> None:
    with Segment.create("bench", weights_bytes(PARAMETERS)) as segment:
        format_weights(segment, PARAMETERS)
        segment.buffer[:: mmap.PAGESIZE].tobytes()
        writer, reader = WeightsWriter(segment), WeightsReader(segment)
        vector = np.random.default_rng(0).standard_normal(PARAMETERS, dtype=np.float32)
        into = np.empty_like(vector)
        blob = segment.array(1024, PARAMETERS, np.float32)
        writer.publish(vector)
        copy = seconds_each(lambda: np.copyto(into, blob), seconds / 2)
        finite = seconds_each(lambda: weights.all_finite(vector), seconds / 2)
        crc = seconds_each(lambda: weights.checksum(1, vector), seconds / 2)
        reading = seconds_each(lambda: reader.read(into), seconds / 2)
        reading_bare = without_crc(
            lambda: (writer.publish(vector), seconds_each(lambda: reader.read(into), seconds))[1]
        )
        writing = seconds_each(lambda: writer.publish(vector), seconds / 2)
        polling = seconds_each(reader.latest, seconds / 4)
    print(f"\n{'weights, 100 KB':<50}{'us':>8}")
    for label, each in (
        ("copy alone", copy),
        ("checksum alone", crc),
        ("finite check alone", finite),
        ("publication (finite check, copy, CRC)", writing),
        ("pick-up without CRC", reading_bare),
        ("pick-up (copy, CRC)", reading),
        ("asking whether there is a newer version", polling),
    ):
        print(f"  {label:<48}{each * 1e6:>8.2f}")


def machine() -> str:
    python = f"Python {platform.python_version()}, numpy {np.__version__}"
    return f"{processor()}, {len(os.sched_getaffinity(0))} cores, {python}, load {os.getloadavg()[0]:.1f}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=float, default=1.0, help="time per figure")
    seconds = arguments.parse_args().seconds
    print(machine())
    lane_table(seconds)
    weights_table(seconds)


if __name__ == "__main__":
    main()
