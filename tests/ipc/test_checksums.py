"""Checksums of shared bytes: whatever changes, they do."""

import zlib

import numpy as np
import pytest

from mlxe_async.ipc.shared.checksums import STRETCH_BYTES, checksum_of

SIZES = [0, 100, STRETCH_BYTES - 1, STRETCH_BYTES, 2 * STRETCH_BYTES + 77]


def data(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("size", SIZES)
def test_a_changed_bit_and_another_beginning_change_the_checksum(size):
    one = data(size)
    expected = checksum_of(one.data)
    assert checksum_of(bytes(one)) == expected
    assert checksum_of(one.data, 1) != expected
    for place in np.unique(np.linspace(0, max(size - 1, 0), 200, dtype=int)) if size else ():
        for bit in (0, 7):
            one[place] ^= 1 << bit
            assert checksum_of(one.data) != expected
            one[place] ^= 1 << bit
    assert checksum_of(one.data) == expected


def test_what_is_small_has_the_crc_and_what_is_large_goes_on_from_what_lies_before():
    small, large = data(STRETCH_BYTES - 1), data(3 * STRETCH_BYTES)
    assert checksum_of(small.data) == zlib.crc32(small.data)
    assert checksum_of(large.data) == checksum_of(large.data[STRETCH_BYTES:], checksum_of(large.data[:STRETCH_BYTES]))


def test_halves_of_two_and_stretches_in_another_order_are_noticed():
    one, other = data(4 * STRETCH_BYTES), data(4 * STRETCH_BYTES, 1)
    torn = np.concatenate([one[: one.size // 2], other[one.size // 2 :]])
    assert len({checksum_of(some.data) for some in (one, other, torn, np.roll(one, STRETCH_BYTES))}) == 4
