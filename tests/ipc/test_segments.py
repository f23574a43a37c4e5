from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlxe_async.errors import ProtocolError, ResourceError
from mlxe_async.ipc.shared.segments import BytePlan, Segment, available_memory, read_stamp, write_stamp


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_new_memory_is_zero_and_has_the_size_asked_for():
    with Segment.create("zero", 10_000) as segment:
        assert (len(segment.buffer), segment.size, segment.name) == (10_000, 10_000, "zero")
        assert not any(segment.buffer)


def test_two_processes_see_the_same_bytes():
    with Segment.create("shared", 4096) as segment:
        code = (
            "from mlxe_async.ipc.shared.segments import Segment\n"
            f"Segment.attach('shared', {segment.fd}, 4096).buffer[:5] = b'hello'"
        )
        subprocess.run([sys.executable, "-c", code], pass_fds=[segment.fd], check=True, timeout=60)
        assert bytes(segment.buffer[:5]) == b"hello"


def test_what_is_forked_from_a_process_that_attached_it_has_it_not():
    with Segment.create("shared", 4096) as segment:
        code = (
            "import os, signal\n"
            "from mlxe_async.ipc.shared.segments import Segment\n"
            f"buffer = Segment.attach('shared', {segment.fd}, 4096).buffer\n"
            "if (pid := os.fork()) == 0:\n"
            "    buffer[0] = 1\n"
            "    os._exit(0)\n"
            "assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGSEGV\n"
            "buffer[1] = 2"
        )
        subprocess.run([sys.executable, "-c", code], pass_fds=[segment.fd], check=True, timeout=60)
        assert bytes(segment.buffer[:2]) == b"\0\2"


def test_nobody_can_change_the_size():
    with Segment.create("sealed", 4096) as segment:
        for size in (0, 8192):
            with pytest.raises(PermissionError):
                os.ftruncate(segment.fd, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(segment.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_the_descriptor_is_not_inherited_by_programs_that_are_started():
    with Segment.create("private", 4096) as segment:
        assert not os.get_inheritable(segment.fd)


def test_pages_are_reserved_at_once():
    with Segment.create("reserved", 1 << 20) as segment:
        assert os.fstat(segment.fd).st_blocks * 512 >= 1 << 20


@pytest.mark.parametrize("size", [1 << 60, 10**30])
def test_more_than_there_is_is_a_resource_error(size):
    before = open_descriptors()
    with pytest.raises(ResourceError, match="segment huge: "):
        Segment.create("huge", size)
    assert open_descriptors() == before


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_that_is_no_size_is_refused(size):
    with pytest.raises(ValueError, match="must be positive"):
        Segment.create("none", size)


def test_a_segment_of_another_size_than_agreed_is_refused():
    with Segment.create("mismatch", 4096) as segment:
        with pytest.raises(ProtocolError, match="expected 8192 bytes, found 4096"):
            Segment.attach("mismatch", segment.fd, 8192)
        assert os.fstat(segment.fd)


def test_a_descriptor_that_is_no_memory_is_refused():
    reading, writing = os.pipe()
    try:
        with pytest.raises(ProtocolError, match="segment pipe"):
            Segment.attach("pipe", reading)
    finally:
        os.close(reading)
        os.close(writing)
    with pytest.raises(ProtocolError, match="cannot be mapped"):
        Segment.attach("closed", reading)


def test_closing_twice_gives_everything_back_once():
    before = open_descriptors()
    segment = Segment.create("twice", 4096)
    segment.close()
    segment.close()
    assert open_descriptors() == before


def test_views_outlive_their_segment():
    before = open_descriptors()
    segment = Segment.create("views", 4096)
    numbers = segment.array(64, (2, 3), np.float32)
    numbers[:] = 7
    segment.close()
    assert numbers.sum() == 42
    del numbers
    assert open_descriptors() == before


def test_an_array_beyond_the_end_is_refused():
    with Segment.create("short", 4096) as segment, pytest.raises(ValueError, match="buffer"):
        segment.array(4000, 100, np.uint64)


def test_no_name_appears_in_the_file_system():
    with Segment.create("nameless", 4096):
        assert not list(Path("/dev/shm").glob("*nameless*"))  # noqa: S108 - nothing is made there, that is the point


def test_a_stamp_reads_back():
    with Segment.create("stamped", 4096) as segment:
        write_stamp(segment, b"MLXETEST", 1, 2**64 - 1)
        assert read_stamp(segment, b"MLXETEST", 2) == (1, 2**64 - 1)


PLACES = [0, 9, 16, 24, 33, 4096 - 128, 4095]


@pytest.mark.parametrize("place", PLACES)
def test_a_stamp_with_one_damaged_copy_is_read_from_the_other(place):
    with Segment.create("damaged", 4096) as segment:
        write_stamp(segment, b"MLXETEST", 1, 2)
        segment.buffer[place] ^= 1
        assert read_stamp(segment, b"MLXETEST", 2) == (1, 2)


@pytest.mark.parametrize("place", PLACES[:5])
def test_a_stamp_with_two_damaged_copies_is_refused(place):
    with Segment.create("damaged", 4096) as segment:
        write_stamp(segment, b"MLXETEST", 1, 2)
        for copy in (0, 4096 - 128):
            segment.buffer[copy + place] ^= 1
        with pytest.raises(ProtocolError, match="segment damaged"):
            read_stamp(segment, b"MLXETEST", 2)


def test_two_whole_stamps_that_contradict_each_other_are_refused():
    with Segment.create("double", 4096) as segment:
        write_stamp(segment, b"MLXETEST", 1, 2)
        first = bytes(segment.buffer[:128])
        write_stamp(segment, b"MLXETEST", 3, 4)
        segment.buffer[:128] = first
        with pytest.raises(ProtocolError, match="segment double"):
            read_stamp(segment, b"MLXETEST", 2)


def test_a_plan_adds_up_and_shows_each_part():
    plan = BytePlan()
    plan.add("lane 0", 3 << 20)
    plan.add("weights", 1 << 20)
    assert plan.total == 4 << 20
    assert [line.split("  ")[0].strip() for line in plan.lines()] == ["lane 0", "weights", "total"]
    assert "3.00 MiB" in plan.lines()[0]
    plan.check(4 << 20)


def test_many_parts_of_one_kind_and_size_are_one_line_of_the_plan():
    plan = BytePlan()
    plan.add("weights", 1 << 20)
    for number in range(1000):
        plan.add(f"lane-{number}", 3 << 19)
    for number, size in enumerate((1, 1, 2, 1, 1)):
        plan.add(f"page-{number}", size << 20)
    lines = [line.split("  ") for line in plan.lines()]
    names = ["lane-0 to 999, each 1.50 MiB", *(f"page-{number}" for number in range(5))]
    assert [line[0] for line in lines] == ["weights", *names, "total"]
    assert lines[1][-1].strip() == "1,500.00 MiB"
    assert plan.total == (1500 + 7) << 20


@pytest.mark.parametrize("nbytes", [5 << 20, 10**30, 10**4000])
def test_a_plan_that_does_not_fit_is_refused_with_all_of_it(nbytes):
    plan = BytePlan()
    plan.add("lane 0", 1)
    plan.add("memory", nbytes)
    with pytest.raises(ResourceError, match=r"(?s)lane 0.*memory.*total.*4\.00 MiB left"):
        plan.check(4 << 20)


def test_a_negative_part_of_a_plan_is_refused():
    with pytest.raises(ValueError, match="must not be negative"):
        BytePlan().add("lane 0", -1)


def test_this_host_has_memory():
    assert 1 << 20 < available_memory() < 1 << 50


def host(tmp_path: Path, cgroup: str, files: dict[str, str]) -> tuple[Path, Path]:
    """A made-up /proc with 8 GiB available, and a made-up /sys/fs/cgroup."""
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {8 << 20} kB\n")
    (proc / "self" / "cgroup").write_text(cgroup)
    cgroups.mkdir()
    for name, text in files.items():
        (cgroups / name).parent.mkdir(parents=True, exist_ok=True)
        (cgroups / name).write_text(text)
    return proc, cgroups


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/\n", {}, 8 << 30),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/b/memory.current": "1\n"}, 8 << 30),
        ("0::/a/b\n", {"a/b/memory.max": "4000", "a/b/memory.current": "1000"}, 3000),
        ("0::/a/b\n", {"a/b/memory.max": "4000", "a/memory.max": "500", "a/memory.current": "200"}, 300),
        ("0::/a\n", {"a/memory.max": "9", "a/memory.current": "9", "a/memory.stat": "anon 1\ninactive_file 6\n"}, 6),
        ("0::/a\n", {"a/memory.max": "9", "a/memory.current": "12"}, 0),
        ("0::/on/the/host\n", {"memory.max": "700", "memory.current": "0"}, 700),
        (
            "3:cpu,memory:/m\n1:name=systemd:/\n",
            {"memory/m/memory.limit_in_bytes": "5000", "memory/m/memory.usage_in_bytes": "4000"},
            1000,
        ),
        ("3:memory:/gone\n", {"memory/memory.limit_in_bytes": "5000", "memory/memory.usage_in_bytes": "1"}, 4999),
    ],
)
def test_the_tightest_control_group_counts(tmp_path, cgroup, files, expected):
    assert available_memory(*host(tmp_path, cgroup, files)) == expected


def test_a_host_without_control_groups_has_what_it_says(tmp_path):
    proc, cgroups = host(tmp_path, "", {})
    (proc / "self" / "cgroup").unlink()
    assert available_memory(proc, cgroups) == 8 << 30
