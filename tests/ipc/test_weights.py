from __future__ import annotations

import numpy as np
import pytest
from memory_tools import in_fresh_process

from mlxe_async.errors import NonFiniteWeights, ProtocolError
from mlxe_async.ipc.shared.segments import STAMP_BYTES, Segment
from mlxe_async.ipc.shared.weights import (
    BUFFERS,
    WeightsReader,
    WeightsWriter,
    all_finite,
    format_weights,
    weights_bytes,
)
from mlxe_async.ipc.shared.words import WORD_STRIDE

P = 50


@pytest.fixture
def segment():
    with Segment.create("weights", weights_bytes(P)) as made:
        format_weights(made, P)
        yield made


def full(value: float, parameters: int = P) -> np.ndarray:
    return np.full(parameters, value, dtype=np.float32)


def test_before_the_first_publication_there_is_nothing(segment):
    reader = WeightsReader(segment)
    into = full(-1)
    assert reader.latest() == 0
    assert reader.read(into) is None
    assert (reader.stale, set(into)) == (0, {-1})


def test_each_publication_is_one_version_later_and_is_what_readers_get(segment):
    writer, reader, into = WeightsWriter(segment), WeightsReader(segment), full(0)
    for version in range(1, 10):
        assert writer.publish(full(version)) == version
        assert (reader.latest(), reader.read(into)) == (version, version)
        assert set(into) == {version}


def test_every_buffer_is_aligned_and_alone(segment):
    blobs = WeightsReader(segment)._blobs
    assert len(blobs) == BUFFERS
    assert {blob.ctypes.data % 128 for blob in blobs} == {0}


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_never_published(segment, poison):
    writer, reader, into = WeightsWriter(segment), WeightsReader(segment), full(0)
    writer.publish(full(1))
    bad = full(2)
    bad[17] = poison
    with pytest.raises(NonFiniteWeights, match="1 of 50 values"):
        writer.publish(bad)
    assert (writer.version, reader.read(into), set(into)) == (1, 1, {1})
    assert writer.publish(full(3)) == 2


def test_huge_finite_weights_are_finite():
    biggest = np.finfo(np.float32).max
    assert all_finite(full(biggest, 1000))
    assert not all_finite(np.array([np.inf, -np.inf], dtype=np.float32))


def test_a_restarted_writer_goes_on_counting(segment):
    WeightsWriter(segment).publish(full(1))
    again = WeightsWriter(segment)
    assert again.version == 1
    assert again.publish(full(2)) == 2


def test_a_writer_that_died_half_way_leaves_the_last_version(segment):
    writer, reader, into = WeightsWriter(segment), WeightsReader(segment), full(0)
    writer.publish(full(1))
    writer._headers[2].set("sequence", 3)
    writer._blobs[2][:20] = 2
    assert (reader.read(into), set(into)) == (1, {1})
    assert WeightsWriter(segment).publish(full(2)) == 2
    assert (reader.read(into), set(into)) == (2, {2})


def test_a_copy_that_stays_torn_is_counted_and_not_served(segment):
    writer, reader = WeightsWriter(segment), WeightsReader(segment)
    writer.publish(full(1))
    writer._headers[1].set("sequence", 7)
    assert reader.read(full(0)) is None
    assert (reader.stale, reader.retries) == (1, 3)


def test_every_flipped_bit_of_published_weights_is_caught(segment):
    writer, reader, into = WeightsWriter(segment), WeightsReader(segment), full(0)
    writer.publish(full(1))
    start = STAMP_BYTES + WORD_STRIDE + (writer._blobs[1].ctypes.data - writer._blobs[0].ctypes.data)
    start += 2 * WORD_STRIDE
    for bit in range(P * 32):
        segment.buffer[start + bit // 8] ^= 1 << bit % 8
        assert reader.read(into) is None
        segment.buffer[start + bit // 8] ^= 1 << bit % 8
    assert (reader.read(into), reader.stale) == (1, P * 32)


@pytest.mark.parametrize(
    "vector",
    [np.zeros(P), np.zeros(P - 1, np.float32), np.zeros((P, 1), np.float32), np.zeros(2 * P, np.float32)[::2]],
    ids=["float64", "too short", "two axes", "with gaps"],
)
def test_vectors_of_another_kind_are_refused(segment, vector):
    with pytest.raises(ValueError, match="expected a contiguous float32 vector"):
        WeightsWriter(segment).publish(vector)
    with pytest.raises(ValueError, match="expected a contiguous float32 vector"):
        WeightsReader(segment).read(vector)


def test_memory_that_holds_no_weights_is_refused():
    with Segment.create("blank", 4096) as blank:
        for side in (WeightsWriter, WeightsReader):
            with pytest.raises(ProtocolError, match="segment blank"):
                side(blank)
        with pytest.raises(ValueError, match="expected a segment of"):
            format_weights(blank, P)


def test_no_parameters_are_refused():
    with pytest.raises(ValueError, match="must be positive"):
        weights_bytes(0)


@pytest.mark.parametrize("reads", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_no_read_is_torn_under_a_writer_at_full_duty(reads):
    tally = in_fresh_process("stress:reads_under_full_duty", reads, 1000)
    assert (tally["torn"], tally["served"] >= reads, tally["fresh"] >= reads // 100) == (0, True, True)
    assert tally["stale"] < 0.01 * tally["served"]


def test_no_version_is_torn_or_given_twice_whenever_its_writer_is_killed():
    tally = in_fresh_process("stress:kill_publishers", 50, 4)
    assert (tally["torn"], tally["backwards"], tally["stale"]) == (0, 0, 0)
    assert tally["half_written"] > 0, "no kill met a publication half way: the test would not see a broken protocol"


def test_who_has_let_go_keeps_nothing_mapped():
    own = Segment.create("weights", weights_bytes(P))
    format_weights(own, P)
    writer, reader = WeightsWriter(own), WeightsReader(own)
    writer.publish(np.ones(P, np.float32))
    for one in (writer, reader):
        one.release()
    own.buffer.release()  # refused with BufferError as long as anybody has a view
    with pytest.raises(ValueError, match="released"):
        reader.latest()
    own.close()
