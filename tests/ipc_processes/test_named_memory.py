"""Named memory of processes that are killed is removed, and nothing else."""

import mmap
import os
import signal
import time

import pytest

from mlxe_async.ipc.processes.named_memory import NamedMemory


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "shm"
    folder.mkdir()
    return folder


def mapping(path, *, access=mmap.ACCESS_WRITE, own_group=False):
    """A process that has mapped a file, in a group of its own; it goes on until it is killed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        if own_group:
            os.setpgid(0, 0)
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=access):
            os.write(writing, b"x")
            signal.pause()
    assert os.read(reading, 1) == b"x"
    os.close(reading)
    os.close(writing)
    return pid


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def named(place, name="sim"):
    (place / name).write_bytes(bytes(4096))
    return place / name


def memory(place):
    return NamedMemory(f"{place}/")


def test_what_a_killed_process_had_mapped_is_removed(place):
    known = memory(place)
    path, other = named(place), named(place, "other")
    pid = mapping(path)
    known.note([pid])
    known.remove()
    assert path.exists()  # it is still mapped
    kill(pid)
    known.remove()
    assert (path.exists(), other.exists()) == (False, True)
    known.remove()


def test_what_is_made_at_once_was_made_since_then(place):
    found = []
    for number in range(300):
        (folder := place / str(number)).mkdir()
        known = memory(folder)
        found.append((named(folder), known))
        until = time.monotonic() + (number % 50) * 1e-4
        while time.monotonic() < until:  # each begins at another time since the kernel's last tick
            pass
    assert [path for path, known in found if str(path) not in known._candidates()] == []


def test_all_processes_of_a_group_are_looked_at(place):
    known = memory(place)
    pid = mapping(named(place), own_group=True)
    known.note_group(os.getpgid(0))
    stranger = mapping(named(place, "strange"))
    known.note_group(pid)
    kill(pid)
    kill(stranger)
    known.remove()
    assert [one.name for one in place.iterdir()] == ["strange"]


def test_what_another_process_maps_stays_until_that_has_ended(place):
    known = memory(place)
    path = named(place)
    first, second = mapping(path), mapping(path)
    known.note([first])
    kill(first)
    known.remove()
    assert path.exists()
    kill(second)
    known.remove()
    assert not path.exists()


def test_files_that_were_there_before_the_run_stay(place):
    path = named(place)
    known = memory(place)
    known._began += 1000
    pid = mapping(path)
    known.note([pid])
    kill(pid)
    known.remove()
    assert path.exists()


def test_what_was_mapped_to_read_alone_stays(place):
    known = memory(place)
    path = named(place)
    pid = mapping(path, access=mmap.ACCESS_READ)
    known.note([pid])
    kill(pid)
    known.remove()
    assert path.exists()


def test_without_such_a_place_nothing_happens(tmp_path):
    known = memory(tmp_path / "nowhere")
    known.note_group(os.getpgid(0))
    known.note([os.getpid()])
    known.remove()
