"""`executors = "auto"`: the cores that are left, within what this process may use."""

import os

import pytest
from settings_tools import minimal, problems_of

from mlxe_async.cores import left_to_play, threads_of_each, usable_cores
from mlxe_async.settings import dump_settings, load_settings

AUTO = {"schedule": {"executors": "auto"}}
EXECUTORS = ("schedule", "executors")


@pytest.fixture
def cores(monkeypatch):
    """`cores(n)`: this process may use so many."""

    def may_use(number):
        monkeypatch.setattr("mlxe_async.settings.model.usable_cores", lambda: number)

    return may_use


@pytest.mark.parametrize(
    ("number", "more", "expected"),
    [
        (1, {}, 1),
        (2, {}, 1),
        (8, {}, 6),
        (8, {"schedule": {"memorizer": "learner"}}, 7),
        (2, {"schedule": {"memorizer": "own"}}, 1),
        (3, {"schedule": {"memorizer": "own"}}, 1),
        (8, {"schedule": {"kind": "oa"}, "run": {"record": True}}, 7),
        (8, {"learner": {"threads": 3}}, 4),
        (8, {"learner": {"threads": 0}}, 6),
        (5000, {}, 1024),
    ],
)
def test_as_many_are_taken_as_cores_are_left_beside_learner_and_memorizer(cores, number, more, expected):
    cores(number)
    tree = minimal(**{**more, "schedule": {"executors": "auto", **more.get("schedule", {})}})
    assert load_settings(tree).schedule.executors == expected


def test_all_kinds_of_schedules_have_the_same_number(cores):
    cores(8)
    kinds = ("serial", "istb", "is", "ia", "oa")
    assert {load_settings(minimal(schedule={"executors": "auto", "kind": k})).schedule.executors for k in kinds} == {6}


def test_what_is_written_down_is_the_number(cores, tmp_path):
    cores(8)
    settings = load_settings(minimal(), ["schedule.executors=auto"])
    assert settings.places.automatic == {EXECUTORS}
    assert "executors = 6\n" in dump_settings(settings)
    (tmp_path / "again.toml").write_text(dump_settings(settings))
    cores(2)
    again = load_settings(tmp_path / "again.toml", of_run=True)
    assert (again.schedule.executors, again.places.automatic) == (6, frozenset())


def test_other_words_are_refused():
    (problem,) = problems_of(minimal(schedule={"executors": "all"}))
    assert 'got "all", expected a whole number from 1 to 1024 or "auto"' in problem


def test_what_contradicts_the_number_is_refused(cores):
    cores(4)
    (problem,) = problems_of(minimal(schedule={"executors": "auto", "min_executors": 3}))
    assert "expected at most schedule.executors = 2" in problem


def test_other_mistakes_are_told_beside(cores):
    cores(4)
    tree = minimal(schedule={"executors": "auto", "memorizer": 7}, learner={"threads": "many"})
    assert [line.partition(": got")[0].split(": ")[-1] for line in problems_of(tree)] == [
        "schedule.memorizer",
        "learner.threads",
    ]


@pytest.fixture
def root(tmp_path):
    """`root(path, **files)`: a system that says this process is in the control group `path`, with these files."""

    def made(groups, files):
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
        for name, text in files.items():
            file = tmp_path / "sys/fs/cgroup" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return made


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, 16),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "1000 100000\n"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "500000 100000\n"}, 5),
        ("0::/unseen\n", {"cpu.max": "400000 100000\n"}, 4),
        ("0::/\n", {"cpu.max": "what is this\n"}, 16),
        (
            "4:cpu,cpuacct:/job\n0::/\n",
            {"cpu/job/cpu.cfs_quota_us": "200000\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            2,
        ),
        (
            "4:cpuset:/job\n0::/\n",
            {"cpu/job/cpu.cfs_quota_us": "200000\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            16,
        ),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 16),
    ],
)
def test_the_quotas_of_all_control_groups_around_this_process_count(monkeypatch, root, groups, files, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))
    assert usable_cores(root(groups, files)) == expected


def test_affinity_counts_where_nothing_is_known_of_control_groups(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {1, 5, 7})
    assert usable_cores(tmp_path) == 3
    assert left_to_play(usable_cores(tmp_path)) == 1


@pytest.mark.parametrize(
    ("executors", "cores", "expected"), [(1, 2, 2), (2, 2, 1), (3, 2, 1), (2, 16, 8), (3, 16, 5), (1, 1, 1)]
)
def test_threads_of_all_executors_fit_on_the_cores(executors, cores, expected):
    assert threads_of_each(executors, cores) == expected
