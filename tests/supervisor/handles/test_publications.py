"""What is known of a version stays known for as long as its test may take, in memory that does not grow."""

from mlxe_async.supervisor.handles.context import Publications


def about(version):
    return {
        "episodes_started": version + 1,
        "env_steps": 10 * version,
        "updates": 2 * version,
        "seconds": version / 4,
        "cpu_seconds": version / 8,
        "published_ns": 2**53 + version,
    }


def test_the_newest_are_known_and_no_other():
    known = Publications(newest=4)
    assert known.get(0) is None
    for version in range(10):
        known.note(version, about(version))
    assert [version for version in range(12) if known.get(version)] == [6, 7, 8, 9]
    assert known.get(9) == about(9)


def test_what_is_under_test_is_known_however_many_were_published_since():
    known = Publications(newest=4)
    for version in range(100):
        known.note(version, about(version))
        if version in (3, 50, 51):
            known.hold(version)
    assert [version for version in range(60) if known.get(version)] == [3, 50, 51]
    known.release({50, 7})
    assert [version for version in range(60) if known.get(version)] == [50]
    assert known.get(50) == about(50)


def test_what_was_never_published_is_not_held():
    known = Publications()
    known.hold(5)
    assert known.get(5) is None
