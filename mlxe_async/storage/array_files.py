"""Arrays in files of safetensors that may be as large as a memory: written and read a piece at a time.

This is how the roles keep their state in a whole checkpoint. A small file, such as that of the weights, is read at once
by the library itself; see `checkpoints`.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlxe_async.errors import RunFailed
from mlxe_async.rows import Array
from mlxe_async.storage.files import new_file, open_plain

LONGEST_HEADER = 2**20
PIECE = 2**20
MOST_DIMENSIONS = 32

_KINDS = {
    "<f8": "F64",
    "<f4": "F32",
    "<f2": "F16",
    "|b1": "BOOL",
    "|i1": "I8",
    "|u1": "U8",
    **{f"<{kind}{size}": f"{kind.upper()}{8 * size}" for kind in "iu" for size in (2, 4, 8)},
}


@dataclass(frozen=True)
class Written:
    """A file, as it was written.

    Args:
        nbytes: its size.
        sha256: of its content, in hexadecimal.
    """

    nbytes: int
    sha256: str


def write_arrays(path: Path, arrays: Mapping[str, Array], tick: Callable[[], None] = lambda: None) -> Written:
    """Write a new safetensors file durably, a piece at a time; where whole pieces are zero it takes no room on disk.

    Args:
        path: the file, which must not exist.
        arrays: name -> array of any shape; not copied as a whole if they are contiguous.
        tick: called now and then, to show that this is alive.

    Raises:
        OSError: it cannot be written; nothing of it is left.
        ValueError: an array is of a type that safetensors do not know.
    """
    about: dict[str, Any] = {}
    end = 0
    for name, array in arrays.items():
        if array.dtype.str not in _KINDS:
            raise ValueError(f"{name}: expected an array of numbers, got {array.dtype}")
        about[name] = {
            "dtype": _KINDS[array.dtype.str],
            "shape": array.shape,
            "data_offsets": [end, end + array.nbytes],
        }
        end += array.nbytes
    text = json.dumps(about).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    digest = hashlib.sha256()
    with new_file(path, durable=True) as descriptor:
        at = 0
        for piece in _pieces(header, arrays):
            digest.update(piece)
            if piece.count(0) < len(piece):
                rest = memoryview(piece)
                while rest:
                    written = os.pwrite(descriptor, rest, at + len(piece) - len(rest))
                    rest = rest[written:]
            at += len(piece)
            tick()
        os.ftruncate(descriptor, at)
    return Written(at, digest.hexdigest())


def read_arrays(path: Path, wanted: Callable[[str], bool] = lambda _name: True) -> dict[str, Array]:
    """The wanted arrays of a file that `write_arrays` wrote, as copies.

    Raises:
        RunFailed: it is no such file.
        OSError: it cannot be read.
    """
    result = {}
    with open_plain(path) as file:
        for name, (dtype, shape, start, nbytes) in _header(file, path).items():
            if wanted(name):
                data = bytearray(nbytes)
                file.seek(start)
                if file.readinto(data) != nbytes:
                    raise RunFailed(f"{path}: {name} is cut off")
                result[name] = np.frombuffer(data, dtype).reshape(shape)
    return result


def read_into(path: Path, name: str, target: Array) -> None:
    """Read one array of a file into `target` (n,), bytes that it fills exactly, a piece at a time.

    Raises:
        RunFailed: there is no array of this name and size.
        OSError: it cannot be read.
    """
    with open_plain(path) as file:
        dtype, _, start, nbytes = _header(file, path).get(name, ("", (), 0, -1))
        if nbytes != target.nbytes or target.dtype != np.uint8 or not dtype:
            raise RunFailed(f"{path}: expected {target.nbytes} bytes of {name}, got {nbytes}")
        file.seek(start)
        for offset in range(0, nbytes, PIECE):
            piece = file.read(min(PIECE, nbytes - offset))
            target[offset : offset + len(piece)] = np.frombuffer(piece, np.uint8)


def _pieces(header: bytes, arrays: Mapping[str, Array]) -> Iterator[bytes]:
    yield header
    for array in arrays.values():
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        for offset in range(0, len(data), PIECE):
            yield bytes(data[offset : offset + PIECE])


def _header(file: io.BufferedReader, path: Path) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
    """Type, shape, place and bytes of each array of a file, all of it checked against the file's size."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if length > min(LONGEST_HEADER, size - 8):
        raise RunFailed(f"{path}: a header of {length} bytes, expected at most {LONGEST_HEADER}")
    kinds = {kind: dtype for dtype, kind in _KINDS.items()}
    found, place = {}, ""
    try:
        for name, about in json.loads(file.read(length)).items():
            place = f"{ascii(name)[1:61]}: "
            dtype, shape, (start, end) = kinds[about["dtype"]], tuple(about["shape"]), about["data_offsets"]
            fits = all(type(one) is int for one in (*shape, start, end)) and len(shape) <= MOST_DIMENSIONS
            fits = fits and min((0, *shape)) >= 0 and end - start == math.prod(shape) * np.dtype(dtype).itemsize
            if not fits or not 0 <= start <= end <= size - 8 - length:
                raise ValueError(name)  # noqa: TRY301 - as every other oddity of the header
            found[name] = (dtype, shape, 8 + length + start, end - start)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RunFailed(f"{path}: {place}its header is not that of safetensors") from None
    return found
