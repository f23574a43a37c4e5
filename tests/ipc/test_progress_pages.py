"""Several threads of one process, each with its page: the process hangs as soon as one of them does."""

import time

from mlxe_async.ipc.shared.words import PAGE_BYTES, ProgressPage, ProgressPages


def made():
    buffer = bytearray(3 * PAGE_BYTES)
    pages = [ProgressPage(buffer, k * PAGE_BYTES) for k in range(3)]
    return pages, ProgressPages(pages)


def test_the_call_that_is_longest_over_its_limit_counts():
    pages, together = made()
    now = time.monotonic_ns()
    assert together.overdue(now) is None
    for page, limit_s in zip(pages, (60.0, 1.0, 2.0), strict=True):
        page.enter(limit_s)
    began = [page.pulse()[1] for page in pages]
    assert together.overdue(began[0] + 900_000_000) is None
    later = began[1] + 5_000_000_000
    assert abs(together.overdue(later) - 4.0) < 1e-6
    pages[1].leave()
    assert 2.9 < together.overdue(later) <= 3.0
    # However busily the others move.
    for _ in range(5):
        pages[0].leave()
        pages[0].enter(60.0)
    assert 2.9 < together.overdue(later) <= 3.0


def test_any_thread_that_moves_is_a_pulse_and_any_call_shows():
    pages, together = made()
    before = together.pulse()
    assert before[1] == 0
    pages[2].enter(1.0)
    assert together.pulse()[1] > 0
    pages[2].leave()
    assert together.pulse() != before
    assert together.pulse()[1] == 0
    together.clear()
    assert together.pulse() == (0, 0)


def test_the_thread_that_is_longest_over_its_limit_says_what_they_do():
    pages, together = made()
    assert together.doing(0) == ""
    pages[1].note("act")
    assert together.doing(0) == "act"
    for page, limit_s, call in zip(pages, (60.0, 1.0, 2.0), ("make", "step", "reset"), strict=True):
        page.enter(limit_s, call)
    later = pages[1].pulse()[1] + 5_000_000_000
    assert together.doing(later) == "step"
    pages[1].leave()
    assert together.doing(later) == "reset"
