"""Frames: what is sent arrives, however it is cut; what is not a frame is named and never taken for one."""

import contextlib
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxe_async.errors import ProtocolError
from mlxe_async.ipc.messages.frames import HEADER, LAYOUT_VERSION, MAGIC, MAX_PAYLOAD, Decoder, encode

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
MESSAGES = st.dictionaries(st.text(), PLAIN, max_size=4)


def frame(payload, *, magic=MAGIC, version=LAYOUT_VERSION, length=None, crc=None):
    length = len(payload) if length is None else length
    return HEADER.pack(magic, version, length, zlib.crc32(payload) if crc is None else crc) + payload


@settings(max_examples=40)
@given(st.lists(MESSAGES, max_size=3), st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_messages_arrive_in_order_however_the_stream_is_cut(messages, cuts):
    stream = b"".join(map(encode, messages))
    decoder, arrived, at, turn = Decoder(), [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        arrived += decoder.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert arrived == messages
    assert not decoder.partial


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_a_protocol_error_or_nothing(data):
    decoder = Decoder()
    with contextlib.suppress(ProtocolError):
        assert all(isinstance(message, dict) for message in decoder.feed(data))


@given(MESSAGES, st.data())
def test_a_flipped_bit_is_never_served(message, data):
    stream = bytearray(encode(message))
    bit = data.draw(st.integers(0, len(stream) * 8 - 1))
    stream[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(ProtocolError):
        assert Decoder().feed(bytes(stream)) == []  # a longer length waits for more


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"hello", "magic"),
        (b"Tr", "magic"),
        (frame(b"{}", magic=b"XXXX"), "magic 58585858"),
        (frame(b"{}", version=9), "version 9"),
        (frame(b"", length=2**31), "length 2147483648"),
        (frame(b"", length=MAX_PAYLOAD + 1), "length"),
        (frame(b"{}", crc=1), "checksum"),
        (frame(b"[]"), "a list"),
        (frame(b"{"), "not JSON"),
        (frame(b"\xff"), "not JSON"),
        (frame(b'{"x":1}{"y":2}'), "not JSON: more follows"),
        (frame(b' {"x":1}'), "not JSON"),
        (frame(b'{"x":NaN}'), "not JSON"),
        (frame(b'{"x":-Infinity}'), "not JSON"),
        (frame(b'{"x":1e999}'), "not JSON"),
        (frame(b'{"x":' + b"9" * 5000 + b"}"), "not JSON"),
        (frame(b"[" * 500_000), "not JSON"),
    ],
)
def test_bytes_that_are_no_frame_are_named_with_their_head_in_hexadecimal(data, why):
    with pytest.raises(ProtocolError, match=why) as caught:
        Decoder().feed(data)
    assert data[:8].hex() in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", {1, 2}, object()])
def test_what_is_not_plain_json_is_refused_before_it_is_sent(value):
    with pytest.raises(ProtocolError, match="cannot be framed"):
        encode({"value": value})


def test_a_message_over_sixteen_mebibytes_is_refused_before_it_is_sent():
    assert len(encode({"x": "a" * (MAX_PAYLOAD - 8)})) == HEADER.size + MAX_PAYLOAD
    with pytest.raises(ProtocolError, match="at most 16777216"):
        encode({"x": "a" * (MAX_PAYLOAD - 7)})


def test_a_message_nested_beyond_reason_is_refused_before_it_is_sent():
    deep = {}
    for _ in range(100_000):
        deep = {"x": deep}
    with pytest.raises(ProtocolError, match="cannot be framed"):
        encode(deep)


def test_an_unfinished_frame_is_known_to_be_one():
    decoder, whole = Decoder(), encode({"a": 1})
    assert decoder.feed(whole + whole[:3]) == [{"a": 1}]
    assert decoder.partial
    assert decoder.feed(whole[3:]) == [{"a": 1}]
    assert not decoder.partial


def test_the_header_is_four_little_endian_words():
    assert encode({}) == MAGIC + struct.pack("<III", 1, 2, zlib.crc32(b"{}")) + b"{}"
