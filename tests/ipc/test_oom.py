"""The kernel's count of kills for memory, and what may be concluded from it."""

import pytest

from mlxe_async.ipc.processes import limits
from mlxe_async.ipc.processes.limits import FRESH_S, OomKills


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now_s = 100.0

        def monotonic(self):
            return self.now_s

    clock = Clock()
    monkeypatch.setattr(limits, "time", clock)
    return clock


@pytest.mark.parametrize(
    "text", ["low 0\noom 7\noom_kill {}\noom_group_kill 0\n", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"]
)
def test_a_kill_is_the_kernels_if_it_has_counted_one_just_now(tmp_path, clock, text):
    file = tmp_path / "memory.events"
    file.write_text(text.format(3))
    kills = OomKills([tmp_path / "nowhere", file, tmp_path / "other"])
    assert not kills.one_just_now()
    file.write_text(text.format(5))
    assert kills.one_just_now()
    clock.now_s += FRESH_S / 2
    assert kills.one_just_now(), "the second of two that were killed together"
    assert not kills.one_just_now(), "a third was not the kernel's"
    file.write_text(text.format(6))
    assert kills.one_just_now()
    file.write_text(text.format(8))
    assert kills.one_just_now()
    clock.now_s += FRESH_S
    assert not kills.one_just_now(), "what nobody has claimed is forgotten"


def test_where_the_kernel_counts_nothing_nothing_is_concluded(tmp_path, clock):
    (tmp_path / "memory.events").write_text("low 0\n")
    kills = OomKills([tmp_path / "memory.events", tmp_path])
    assert not kills.one_just_now()


def test_a_file_that_goes_away_is_no_kill(tmp_path, clock):
    file = tmp_path / "memory.events"
    file.write_text("oom_kill 1\n")
    kills = OomKills([file])
    file.unlink()
    assert not kills.one_just_now()


def test_this_host_has_a_count():
    assert any(limits._kills_in(place) is not None for place in limits._memory_files())
