"""Blocks for which the memory had no room when it was saved: each of their rows is taken in once, and only once."""

from types import SimpleNamespace

import numpy as np

from mlxe_async.ipc.shared.lanes import LaneReader, LaneWriter, begin_epoch, format_lane, lane_bytes
from mlxe_async.ipc.shared.segments import Segment
from mlxe_async.memory.rollouts import RolloutMemory, RolloutShape
from mlxe_async.roles.memorizer import Memorizer, MemorizerPlan
from mlxe_async.rows import Column, RowLayout
from mlxe_async.supervisor.startup.restore import refill

LAYOUT = RowLayout((Column("value", "<f4"), Column("last", "|u1"), Column("env", "<i4"), Column("version", "<i8")))
BLOCK, SLOTS, PAYLOAD = 4, 8, LAYOUT.nbytes(4)
SHAPE = RolloutShape(1, 1, 2, 8, LAYOUT.to_json())
ALGORITHM = SimpleNamespace(
    priorities=SimpleNamespace(kind="uniform"), memory="rollouts", parameters=(), derive=lambda _rows: {}
)


def commit(writer, values, *, last):
    rows = LAYOUT.views(writer.reserve(), BLOCK)
    count = len(values)
    rows["value"][:count], rows["env"][:count], rows["version"][:count] = values, 0, 1
    rows["last"][:count] = [0] * (count - 1) + [last]
    writer.commit(count)


def lane(start=0, epoch=0):
    segment = Segment.create("lane", lane_bytes(SLOTS, PAYLOAD))
    format_lane(segment, SLOTS, PAYLOAD, LAYOUT.schema_hash, start, epoch)
    return segment


def memorizer_of(memory, segment):
    plan = MemorizerPlan(seed=1, block_rows=BLOCK, redo=False, rollouts_per_update=1, plan_updates=4)
    reader = LaneReader(segment, LAYOUT.schema_hash)
    return Memorizer(plan, algorithm=ALGORITHM, memory=memory, layout=LAYOUT, lanes=[reader])


def values_of(memory, memorizer, plans):
    found, used = [], None
    for _ in range(plans):
        used = memorizer.memorize(settle=used)
        found.append(memory.gather(used)[0]["value"][:, 0].tolist())
    return found


def test_what_waits_in_a_lane_is_kept_and_taken_in_later():
    segment, memory = lane(), RolloutMemory(SHAPE, bytearray(SHAPE.nbytes))
    begin_epoch(segment)
    writer = LaneWriter(segment, LAYOUT.schema_hash)
    for k in range(3):
        commit(writer, [10 * k, 10 * k + 1], last=False)
        commit(writer, [10 * k + 2], last=True)
    writer.renew()
    commit(writer, [99], last=True)
    memorizer = memorizer_of(memory, segment)
    arrays, facts = memorizer.state()
    assert [[block["count"] for block in blocks] for blocks in facts["waiting"]] == [[2, 1, 1]]
    assert [block["epoch"] for block in facts["waiting"][0]] == [1, 1, 2]
    kept = {name: np.array(array) for name, array in arrays.items()}

    # Telling changed nothing, and taking up leads to the same.
    expected = [[0, 1, 2], [10, 11, 12], [20, 21, 22], [99]]
    assert values_of(memory, memorizer, 4) == expected
    other = RolloutMemory(SHAPE, bytearray(SHAPE.nbytes))
    for name, view in other.raw().items():
        view[:] = kept[f"memory.{name}"]
    other.reload()
    new = lane(other.position(0), other.epoch(0))
    refill(LaneWriter(new, LAYOUT.schema_hash), kept["waiting.0"], facts["waiting"][0])
    begin_epoch(new)
    successor = memorizer_of(other, new)
    assert values_of(other, successor, 4) == expected
    assert other.ledger() == memory.ledger()
    del memorizer, successor, writer
    for one in (segment, new):
        one.close()
