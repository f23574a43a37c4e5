from __future__ import annotations

import os

import numpy as np
import pytest
from memory_tools import child

from mlxe_async.errors import NonFiniteWeights, ProtocolError
from mlxe_async.ipc.segments import STAMP_BYTES, Segment
from mlxe_async.ipc.weights import (
    BUFFERS,
    WeightsReader,
    WeightsWriter,
    all_finite,
    format_weights,
    weights_bytes,
)
from mlxe_async.ipc.words import WORD_STRIDE

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
    """Every number of version v is v: a copy that mixes two versions shows it. The writer never rests."""
    parameters = 1000
    with Segment.create("weights", weights_bytes(parameters)) as segment:
        format_weights(segment, parameters)
        WeightsWriter(segment).publish(full(1, parameters))

        def publish() -> None:
            writer, vector = WeightsWriter(segment), full(0, parameters)
            while True:
                vector[:] = (writer.version + 1) % 2**24
                writer.publish(vector)

        reader, into = WeightsReader(segment), full(0, parameters)
        torn = served = fresh = last = 0
        with child(publish) as pid:
            while served < reads or fresh < reads // 100:
                version = reader.read(into)
                if version is not None:
                    served += 1
                    torn += bool((into != version % 2**24).any()) or version < last
                    fresh += version > last
                    last = version
                if served % 1000 == 0:
                    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        assert torn == 0
        assert reader.stale < 0.01 * served
