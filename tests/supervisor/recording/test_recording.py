"""The file of a recording: what is written is read, and damage is seen."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxe_async.errors import ResourceError, SettingsError
from mlxe_async.storage.run_folder import RECORDING
from mlxe_async.supervisor.recording.file import Recorded, Recording
from mlxe_async.supervisor.recording.steps import (
    Applied,
    Ended,
    Ingested,
    Learned,
    Memorized,
    Published,
    Pushed,
    Rollout,
)

count = st.integers(0, 2**64 - 1)
small = st.integers(0, 2**32 - 1)
number = st.one_of(st.none(), st.floats(allow_nan=False))
positions = st.lists(count, min_size=1, max_size=4).map(tuple)
STEPS = [
    st.builds(Rollout, small, count, count, count, count, small, small),
    st.builds(Ingested, positions, st.booleans(), st.one_of(st.none(), small)),
    st.builds(
        Memorized,
        st.one_of(st.none(), st.integers(1, 2**40)),
        st.booleans(),
        small,
        positions,
        st.one_of(st.none(), small),
    ),
    st.builds(Pushed, small, count, small, count, count, count, count, count),
    st.builds(Applied, st.lists(st.tuples(small, count), max_size=4).map(tuple)),
    st.builds(Learned, count, count, count, number, count, number),
    st.builds(Published, count, number),
]
SOME = [
    Published(1, 0.5),
    Rollout(0, 1, 0, 0, 0, 20, 2),
    Ingested((1,), settled=True),
    Ingested((1,)),
    Memorized(64, False, 4, (2,)),
    Learned(20, 1, 0, None, 2, 1.5),
]


def written(folder, steps, *, ends=True):
    recording = Recording(folder / RECORDING, {"executors": 1})
    for step in steps:
        recording.note(step)
    if ends:
        recording.note(Ended("abc"))
    recording.close()
    return folder / RECORDING


@given(steps=st.lists(st.one_of(*STEPS), max_size=30))
def test_all_that_was_noted_is_read_again(steps, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recording")
    path = written(folder, steps)
    recorded = Recorded.read(folder)
    assert list(recorded.steps) == [*steps, Ended("abc")]
    assert recorded.end == Ended("abc")
    assert recorded.facts == {"executors": 1}
    assert recorded.is_whole
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_is_noted_after_the_end(tmp_path):
    written(tmp_path, [Ended("", "somebody died"), *SOME])
    assert list(Recorded.read(tmp_path).steps) == [Ended("", "somebody died")]


def test_a_file_that_was_cut_off_ends_with_the_last_whole_step(tmp_path):
    path = written(tmp_path, SOME, ends=False)
    whole = path.read_bytes()
    for length in range(len(whole) - 1, len(whole) - 40, -1):
        path.write_bytes(whole[:length])
        recorded = Recorded.read(tmp_path)
        assert not recorded.is_whole
        assert list(recorded.steps) == SOME[: len(recorded.steps)]
        assert len(recorded.steps) < len(SOME)


def test_every_flipped_bit_is_seen(tmp_path):
    path = written(tmp_path, SOME, ends=False)
    whole = path.read_bytes()
    for place in range(0, 8 * len(whole), 5):
        spoilt = bytearray(whole)
        spoilt[place // 8] ^= 1 << place % 8
        path.write_bytes(bytes(spoilt))
        try:
            recorded = Recorded.read(tmp_path)
        except SettingsError:
            continue
        assert list(recorded.steps) == SOME[: len(recorded.steps)]
        assert not recorded.is_whole


def test_damage_in_the_middle_is_not_mistaken_for_a_recording_that_was_cut_off(tmp_path):
    path = written(tmp_path, [Ingested((1, 2))] * 3)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(SettingsError, match=rf"damaged after step \d, at byte \d+ of {len(data)}"):
        Recorded.read(tmp_path)


def test_without_a_recording_it_is_said_how_to_get_one(tmp_path):
    with pytest.raises(SettingsError, match=r"run\.record = true"):
        Recorded.read(tmp_path)
    (tmp_path / RECORDING).write_bytes(b"something else")
    with pytest.raises(SettingsError, match="expected a recording"):
        Recorded.read(tmp_path)


def test_lanes_must_hold_what_is_played_before_it_is_taken_in(tmp_path):
    early, late = Rollout(0, 1, 0, 0, 0, 20, 3), Rollout(0, 1, 1, 0, 20, 20, 2)
    steps = [Published(1, None), early, Ingested((1,)), Memorized(None, False, 1, (3,)), late, Ingested((5,))]
    written(tmp_path, steps)
    assert Recorded.read(tmp_path).backlog() == 5


def test_a_disk_that_gives_up_ends_the_recording_and_not_the_run(tmp_path):
    (tmp_path / RECORDING).symlink_to("/dev/full")
    with pytest.raises(ResourceError, match="cannot be made"):
        Recording(tmp_path / RECORDING, {})
    (tmp_path / RECORDING).unlink()
    recording = Recording(tmp_path / RECORDING, {})
    descriptor = recording._descriptor
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, descriptor)
    os.close(full)
    for _ in range(1000):
        recording.note(SOME[0])
    assert "No space left" in recording.failure
    recording.close()
