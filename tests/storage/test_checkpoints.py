"""A checkpoint is whole or not there, verified before it is used, and cannot run anything."""

import contextlib
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys

import numpy as np
import pytest

from mlxe_async.errors import NotFound, ResourceError, RunFailed
from mlxe_async.storage import checkpoints, files
from mlxe_async.storage.run_folder import RunFolder

TENSORS = {
    "policy.0.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "steps": np.array(7, dtype=np.int64),
    "mask": np.array([True, False]),
    "transposed": np.arange(6.0).reshape(2, 3).T,
}

SAVER = """
import sys
from pathlib import Path
import numpy as np
from mlxe_async.storage import checkpoints
number = int(sys.argv[2])
print("ready", flush=True)
while True:
    number += 1
    checkpoints.save(Path(sys.argv[1]), number, {"a": np.full(50_000, number, np.float32)}, {"value": number}, 2)
"""


def save(folder, number, keep=3, **facts):
    return checkpoints.save(folder, number, TENSORS, facts, keep)


def test_what_was_saved_is_loaded(tmp_path):
    with RunFolder.create(tmp_path, "x") as folder:
        size = folder.save_checkpoint(1, TENSORS, {"version": 4, "counters": {"env_steps": 9}})
        tensors, facts = checkpoints.load(folder.checkpoints_path)
    assert facts == {"version": 4, "counters": {"env_steps": 9}, "number": 1}
    assert size == sum(path.stat().st_size for path in (folder.checkpoints_path / "1").iterdir())
    assert {name: array.dtype for name, array in tensors.items()} == {n: a.dtype for n, a in TENSORS.items()}
    assert {name: array.shape for name, array in tensors.items()} == {n: a.shape for n, a in TENSORS.items()}
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(tensors[name], array)


def test_the_newest_are_kept_and_besides_the_solved_and_the_best(tmp_path):
    for number in range(1, 10):
        save(tmp_path, number, keep=2, solved=number == 3, score={5: 50.0}.get(number, float(number)))
    assert checkpoints.numbers(tmp_path) == [9, 8, 5, 3]
    assert checkpoints.load(tmp_path, "last")[1]["number"] == 9
    assert checkpoints.load(tmp_path, "best")[1]["number"] == 5
    assert checkpoints.load(tmp_path, "solved")[1]["number"] == 3
    assert checkpoints.load(tmp_path, 8)[1]["number"] == 8


def test_what_is_kept_for_its_score_alone_takes_no_place_of_the_newest_and_gives_way_to_a_better_one(tmp_path):
    save(tmp_path, 1, keep=2, version=1)
    save(tmp_path, 2, keep=2, version=1, best=True, score=5.0)
    save(tmp_path, 3, keep=2, version=2)
    save(tmp_path, 4, keep=2, version=3)
    assert checkpoints.numbers(tmp_path) == [4, 3, 2]
    save(tmp_path, 5, keep=2, version=3, best=True, score=7.0)
    assert checkpoints.numbers(tmp_path) == [5, 4, 3]
    assert checkpoints.load(tmp_path, "best")[1]["number"] == 5


def test_of_two_alike_the_newer_one_is_the_best(tmp_path):
    for number in range(1, 7):
        save(tmp_path, number, keep=1, version=number, score=9.0 if number in (2, 4) else 1.0)
    assert checkpoints.numbers(tmp_path) == [6, 4]
    assert checkpoints.load(tmp_path, "best")[1]["number"] == 4


def test_the_last_is_the_one_with_the_newest_weights_though_older_ones_were_saved_after_it(tmp_path):
    save(tmp_path, 1, version=9)
    save(tmp_path, 2, version=4, best=True, score=5.0)
    save(tmp_path, 3, version=3, solved=True)
    assert checkpoints.load(tmp_path, "last")[1]["number"] == 1
    (tmp_path / "1" / "manifest.json").write_text("{}")
    assert checkpoints.load(tmp_path, "last")[1]["number"] == 2


def test_a_missing_kind_is_told(tmp_path):
    with pytest.raises(NotFound, match='no checkpoint for "last"'):
        checkpoints.load(tmp_path / "none")
    save(tmp_path, 1)
    for kind, wanted in (("solved", 'for "solved"'), ("best", 'for "best"'), (99, "with number 99")):
        with pytest.raises(NotFound, match=f"no checkpoint {wanted} can be loaded from .*; there: 1$"):
            checkpoints.load(tmp_path, kind)


def test_a_number_is_used_once(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(ValueError, match="exists already"):
        save(tmp_path, 1)


def test_files_are_private(tmp_path):
    old = os.umask(0)
    try:
        save(tmp_path / "c", 1)
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "c").rglob("*")}
    assert modes == {"1": 0o700, "manifest.json": 0o600, "tensors.safetensors": 0o600}


@pytest.mark.parametrize("name", ["manifest.json", "tensors.safetensors"])
def test_every_damage_is_noticed_and_the_one_before_is_loaded(tmp_path, name):
    save(tmp_path, 1)
    save(tmp_path, 2)
    path = tmp_path / "2" / name
    good = path.read_bytes()
    chance = np.random.default_rng(3)
    damaged = [good[:length] for length in sorted({0, 1, len(good) - 1, *chance.integers(len(good), size=60).tolist()})]
    for _ in range(120):
        flipped = bytearray(good)
        flipped[chance.integers(len(good))] ^= 1 << int(chance.integers(8))
        damaged.append(bytes(flipped))
    damaged += [b"", b"{}", b"[]", b"null", b"[" * 100_000, good + b"x", (tmp_path / "1" / name).read_bytes()[::-1]]
    for data in damaged:
        path.write_bytes(data)
        rejected = []
        loaded = checkpoints.load(tmp_path, "last", lambda number, cause: rejected.append((number, cause)))  # noqa: B023 - called at once
        if loaded[1]["number"] == 2:  # white space in the manifest may change without changing what it says
            assert json.loads(data) == json.loads(good)
            continue
        assert loaded[1]["number"] == 1
        assert rejected[0][0] == 2
        assert rejected[0][1]


def test_swapped_and_missing_files_are_noticed(tmp_path):
    for number in (1, 2, 3):
        checkpoints.save(tmp_path, number, {"a": np.full(3, number, np.float32)}, {}, 9)
    (tmp_path / "2").rename(tmp_path / "7")
    (tmp_path / "3" / "tensors.safetensors").unlink()
    rejected = []
    assert checkpoints.load(tmp_path, "last", lambda number, _: rejected.append(number))[1]["number"] == 1
    assert rejected == [7, 3]


def test_when_none_is_fit_all_causes_are_told(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    for number in (1, 2):
        (tmp_path / str(number) / "manifest.json").write_text("{}")
    with pytest.raises(RunFailed, match=r"not fit: 2 \(its manifest says no format\); 1 \(its manifest"):
        checkpoints.load(tmp_path)


def test_another_format_is_told_by_number(tmp_path):
    save(tmp_path, 1)
    path = tmp_path / "1" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(RunFailed, match="its format is 2, this version reads 1"):
        checkpoints.load(tmp_path)


def forge(folder, data):
    """A checkpoint whose sums are right, as someone else could make it."""
    save(folder, 1)
    body = json.loads((folder / "1" / "manifest.json").read_text())["body"]
    body |= {"bytes": len(data), "sha256": checkpoints.hashlib.sha256(data).hexdigest()}
    manifest = {"format": 1, "sha256": checkpoints._digest(body), "body": body}
    (folder / "1" / "manifest.json").write_text(json.dumps(manifest))
    (folder / "1" / "tensors.safetensors").write_bytes(data)


def header(tensors):
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


FORGED = {
    "a pickle": pickle.dumps(Bomb()),
    "a header longer than the file": (2**60).to_bytes(8, "little") + b"{}",
    "a huge shape": header({"a": {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 8]}}) + b"12345678",
    "a shape that overflows": header({"a": {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 0]}}),
    "overlapping tensors": header({name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for name in ("a", "b")})
    + b"12345678",
    "other tensors": header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}) + b"12345678",
    "nothing": b"",
}


@pytest.mark.parametrize("name", FORGED)
def test_what_others_forged_is_refused_and_never_run(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    forge(tmp_path / "c", FORGED[name])
    with pytest.raises(RunFailed, match="not fit: 1"):
        checkpoints.load(tmp_path / "c")
    assert not (tmp_path / "exploded").exists()


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    save(tmp_path, 1)
    for path in (tmp_path / "1", tmp_path):
        path.chmod(0o777)
        with pytest.raises(RunFailed, match="only its owner"):
            checkpoints.load(tmp_path)
        path.chmod(0o700)
    assert checkpoints.load(tmp_path)[1]["number"] == 1


def test_links_are_not_followed(tmp_path):
    save(tmp_path / "a", 1)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1").symlink_to(tmp_path / "a" / "1")
    with pytest.raises(RunFailed):
        checkpoints.load(tmp_path / "b")
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "a" / ".staged-2").symlink_to(target)
    with pytest.raises(ResourceError):
        save(tmp_path / "a", 2)
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("function", ["write", "fsync", "open"])
def test_a_disk_that_fails_at_any_call_leaves_the_old_ones_and_nothing_half(tmp_path, monkeypatch, function):
    save(tmp_path, 1)
    original, failures = getattr(os, function), 0
    for call in range(12):
        calls = iter(range(1000))

        def fail(*args, _call=call, _calls=calls, **kwargs):
            if next(_calls) == _call:
                raise OSError(28, "No space left on device")
            return original(*args, **kwargs)

        monkeypatch.setattr(files.os, function, fail)
        number = call + 2
        with contextlib.suppress(ResourceError):
            save(tmp_path, number, keep=50)
            failures -= 1
        failures += 1
        monkeypatch.undo()
        assert checkpoints.load(tmp_path)[1]["number"] in (number, *range(1, number))
        assert not list(tmp_path.glob(".staged*"))
        shutil.rmtree(tmp_path / str(number), ignore_errors=True)
    assert failures > 0


def kills(folder, count):
    """Kill a process that saves without pause, at moments spread over its work, and load what it left."""
    chance = np.random.default_rng(5)
    number = 0
    for _ in range(count):
        saver = subprocess.Popen([sys.executable, "-c", SAVER, str(folder), str(number)], stdout=subprocess.PIPE)
        with saver:
            assert saver.stdout.readline() == b"ready\n"
            try:
                saver.wait(chance.uniform(0.0, 0.15))
            except subprocess.TimeoutExpired:
                saver.kill()
        checkpoints.remove_staged(folder)
        if checkpoints.numbers(folder):
            tensors, facts = checkpoints.load(folder)
            assert facts["number"] == checkpoints.numbers(folder)[0]
            assert (tensors["a"] == facts["value"]).all()
            number = facts["number"]
    assert number > 0


def test_a_process_killed_while_saving_leaves_only_whole_checkpoints(tmp_path):
    kills(tmp_path, 5)


@pytest.mark.slow
def test_many_processes_killed_while_saving_leave_only_whole_checkpoints(tmp_path):
    kills(tmp_path, 200)


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    save(tmp_path, 1, keep=1)
    with pytest.raises(ResourceError, match="checkpoint 2 cannot be saved: its manifest would have"):
        save(tmp_path, 2, keep=1, returns=["x" * 1000] * 2000)
    assert checkpoints.numbers(tmp_path) == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1"]
