"""A whole checkpoint: files of all roles, verified before they are used, however large they are."""

import json
import os
import shutil

import numpy as np
import pytest

from mlxe_async.errors import RunFailed
from mlxe_async.storage import array_files, checkpoints

TENSORS = {"w": np.arange(4, dtype=np.float32)}
ARRAYS = {
    "numbers": np.arange(300.0),
    "nothing": np.zeros(2 * array_files.PIECE + 5, np.uint8),
    "words": np.array([2**64 - 1], np.uint64),
    "one": np.array(3),
    "flags": np.array([True, False]),
    "empty": np.zeros((0, 3), np.float32),
}


def save(folder, number, *, whole=True, keep=9, **facts):
    if not whole:
        checkpoints.save(folder, number, TENSORS, facts, keep)
        return
    staged = checkpoints.stage(folder, number)
    arrays = {**ARRAYS, "one": np.array(number)}
    files = {f"{name}.safetensors": array_files.write_arrays(staged / f"{name}.safetensors", arrays) for name in "ab"}
    checkpoints.save(folder, number, TENSORS, {"version": number, **facts}, keep, files)


def newest(folder):
    rejected = []
    whole = checkpoints.load_whole(folder, lambda number, cause: rejected.append((number, cause)))
    return whole.number, rejected


def test_arrays_come_back_as_they_were_and_zeros_take_no_room(tmp_path):
    path = tmp_path / "x.safetensors"
    written = array_files.write_arrays(path, ARRAYS)
    assert written.nbytes == path.stat().st_size
    assert path.stat().st_blocks * 512 < array_files.PIECE
    found = array_files.read_arrays(path)
    assert {name: array.dtype for name, array in found.items()} == {name: array.dtype for name, array in ARRAYS.items()}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
    assert list(array_files.read_arrays(path, lambda name: name == "one")) == ["one"]
    into = np.ones(len(ARRAYS["nothing"]), np.uint8)
    array_files.read_into(path, "nothing", into)
    assert not into.any()
    with pytest.raises(RunFailed, match="expected 3 bytes"):
        array_files.read_into(path, "nothing", into[:3])


def test_other_programs_can_read_the_files(tmp_path):
    from safetensors.numpy import load_file

    array_files.write_arrays(tmp_path / "x", ARRAYS)
    np.testing.assert_array_equal(load_file(tmp_path / "x")["numbers"], ARRAYS["numbers"])


def test_the_newest_whole_one_is_loaded_though_there_are_newer_weights(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    save(tmp_path, 3, whole=False, version=9)
    assert newest(tmp_path) == (2, [])
    assert checkpoints.load(tmp_path)[1]["version"] == 9
    assert checkpoints.newest_version(tmp_path) == 9


def test_the_newest_whole_ones_are_kept_though_weights_alone_come_after_them(tmp_path):
    save(tmp_path, 1, keep=1)
    save(tmp_path, 2, keep=1, whole=False)
    save(tmp_path, 3, keep=1, whole=False)
    assert checkpoints.numbers(tmp_path) == [3, 1]
    save(tmp_path, 4, keep=1)
    assert checkpoints.numbers(tmp_path) == [4]


def damage(tmp_path, times):
    save(tmp_path, 1)
    save(tmp_path, 2)
    chance = np.random.default_rng(5)
    names = sorted(path.name for path in (tmp_path / "2").iterdir())
    for k in range(times):
        path = tmp_path / "2" / names[k % len(names)]
        good = path.read_bytes()
        if k % 2:
            bad = good[: chance.integers(len(good))]
        else:
            flipped = bytearray(good)
            flipped[chance.integers(len(good))] ^= 1 << int(chance.integers(8))
            bad = bytes(flipped)
        path.write_bytes(bad)
        number, rejected = newest(tmp_path)
        same = path.name == "manifest.json" and number == 2 and json.loads(bad) == json.loads(good)
        assert same or (number == 1 and rejected[0][0] == 2 and rejected[0][1]), (path.name, k)
        path.write_bytes(good)
    assert newest(tmp_path) == (2, [])


def test_damage_to_any_file_is_noticed_and_the_one_before_is_taken(tmp_path):
    damage(tmp_path, 40)


@pytest.mark.slow
def test_much_damage_is_noticed(tmp_path):
    damage(tmp_path, 500)


def test_files_that_are_missing_swapped_or_links_are_noticed(tmp_path):
    save(tmp_path, 1)
    for spoil in (
        lambda path: path.unlink(),
        lambda path: shutil.copy(path.parent.parent / "1" / path.name, path),
        lambda path: (path.unlink(), path.symlink_to(path.parent.parent / "1" / path.name)),
    ):
        save(tmp_path, 2)
        spoil(tmp_path / "2" / "a.safetensors")
        number, rejected = newest(tmp_path)
        assert (number, [which for which, _ in rejected]) == (1, [2])
        shutil.rmtree(tmp_path / "2")


def test_when_none_is_fit_all_are_named(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    for number in "12":
        os.truncate(tmp_path / number / "b.safetensors", 10)
    with pytest.raises(RunFailed, match=r"no whole checkpoint .* not fit: 2 \(b.safetensors is 10 bytes.*; 1 \("):
        checkpoints.load_whole(tmp_path)
    with pytest.raises(RunFailed, match="no whole checkpoint"):
        checkpoints.load_whole(tmp_path / "none")


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    save(tmp_path / "c", 1)
    (tmp_path / "c").chmod(0o777)
    with pytest.raises(RunFailed, match="only its owner"):
        checkpoints.load_whole(tmp_path / "c")


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 800]}}',
        b'{"a": {"dtype": "F32", "shape": [1152921504606846976], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [-2, -1], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "pickle", "shape": [2], "data_offsets": [0, 8]}}',
        b"[" * 5000,
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, header):
    path = tmp_path / "x"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(RunFailed):
        array_files.read_arrays(path)
    path.write_bytes((2**60).to_bytes(8, "little") + header)
    with pytest.raises(RunFailed, match="a header of"):
        array_files.read_arrays(path)
