"""Every damaged bit of a committed block is noticed, and nothing of it is served."""

from __future__ import annotations

import pytest
from memory_tools import SCHEMA, chance, lane_of

from mlxe_async.errors import CorruptRecord, ProtocolError
from mlxe_async.ipc.shared.lanes import SLOT_HEADER_BYTES, LaneReader, LaneWriter, begin_epoch
from mlxe_async.ipc.shared.segments import STAMP_BYTES, Segment

HEADER_BITS = 6 * 64  # mark, epoch, cut, count, length, crc


def filled(segment: Segment, seed: int) -> tuple[LaneReader, list[int]]:
    """A lane full of random blocks, and where in the segment the header of each begins."""
    draw = chance(seed)
    begin_epoch(segment)
    writer = LaneWriter(segment, SCHEMA)
    while (payload := writer.reserve()) is not None:
        payload[:] = draw.randbytes(len(payload))
        writer.commit(draw.randrange(1000))
    whole = bytes(segment.buffer)
    places = [whole.index(bytes(payload)) - SLOT_HEADER_BYTES for payload in writer.payloads]
    return LaneReader(segment, SCHEMA, retry_pause_s=0), places


def bit_of(segment: Segment, header: int, bit: int) -> tuple[int, int]:
    """Byte and mask of one bit of a block: the header's words first, then the payload."""
    byte = header + bit // 8 if bit < HEADER_BITS else header + SLOT_HEADER_BYTES + (bit - HEADER_BITS) // 8
    return byte, 1 << bit % 8


def caught(reader: LaneReader, into: bytearray) -> bool:
    try:
        reader.read(into)
    except CorruptRecord:
        return True
    return False


def test_each_single_bit_of_a_block_counts():
    with lane_of(slots=2, payload_bytes=64) as segment:
        reader, places = filled(segment, seed=1)
        into = bytearray(64)
        for bit in range(HEADER_BITS + 512):
            byte, mask = bit_of(segment, places[0], bit)
            segment.buffer[byte] ^= mask
            assert caught(reader, into), f"bit {bit} was flipped and nobody noticed"
            segment.buffer[byte] ^= mask
        assert reader.read(into) is not None


def test_a_thousand_random_bits_are_all_caught_and_all_other_blocks_are_served():
    draw = chance(2)
    served = found = 0
    for round_ in range(100):
        with lane_of(slots=32, payload_bytes=1000) as segment:
            reader, places = filled(segment, seed=round_)
            hit = set(draw.sample(range(32), 10))
            for slot in hit:
                byte, mask = bit_of(segment, places[slot], draw.randrange(HEADER_BITS + 8000))
                segment.buffer[byte] ^= mask
            into = bytearray(1000)
            for slot in range(32):
                if slot in hit:
                    assert caught(reader, into)
                    reader.skip()
                    found += 1
                else:
                    got = reader.read(into)
                    assert got is not None
                    assert got.cut == (slot == 0 or slot - 1 in hit)
                    served += 1
    assert (found, served) == (1000, 2200)


@pytest.mark.parametrize("fill", [0, 0xFF, 0x5A])
def test_a_block_of_one_byte_over_and_over_is_never_valid(fill):
    with lane_of(slots=2, payload_bytes=64) as segment:
        reader, places = filled(segment, seed=3)
        segment.buffer[places[0] : places[0] + SLOT_HEADER_BYTES + 64] = bytes([fill]) * (SLOT_HEADER_BYTES + 64)
        assert caught(reader, bytearray(64))


def test_garbage_in_every_word_is_never_served_and_never_followed():
    """The other side's words are not to be trusted: whatever they say, an answer comes, and it is an error."""
    draw = chance(4)
    outcomes = {"nothing": 0, CorruptRecord: 0, ProtocolError: 0}
    with lane_of(slots=4, payload_bytes=64) as segment:
        reader, places = filled(segment, seed=4)
        whole = bytes(segment.buffer)
        inside = range(STAMP_BYTES // 8, (places[-1] + SLOT_HEADER_BYTES) // 8)
        words = segment.buffer.cast("Q")
        for _ in range(500):
            for place in inside:
                # Small numbers as well as wild ones: a count that is nearly right is the more dangerous one.
                words[place] = draw.choice((draw.getrandbits(64), draw.randrange(10), words[place]))
            reader = LaneReader(segment, SCHEMA, retry_pause_s=0)
            try:
                assert reader.read(bytearray(64)) is None
                outcomes["nothing"] += 1
            except (CorruptRecord, ProtocolError) as error:
                outcomes[type(error)] += 1
            segment.buffer[:] = whole
    assert min(outcomes.values()) > 0
