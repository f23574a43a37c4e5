from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_tools import in_fresh_process

from mlxe_async.fences import lock_pair
from mlxe_async.ipc.shared.words import CALLS, MASK, PAGE_BYTES, WORD_STRIDE, ProgressPage, Words

SECOND = 1_000_000_000


@given(st.integers(-(2**70), 2**70))
def test_a_word_keeps_its_value_modulo_two_to_the_sixty_four(value):
    words = Words(bytearray(2 * WORD_STRIDE), 0, ("left", "right"))
    words.set("right", value)
    assert (words.get("left"), words.get("right")) == (0, value % 2**64)


def test_each_word_stands_alone_on_its_line():
    memory = bytearray(3 * WORD_STRIDE)
    words = Words(memory, WORD_STRIDE, ("left", "right"))
    words.set("left", MASK)
    words.set("right", MASK)
    assert [place for place in range(0, len(memory), 8) if any(memory[place : place + 8])] == [128, 256]
    assert words.nbytes == 256


def test_an_unaligned_word_is_refused():
    with pytest.raises(ValueError, match="multiple of 128"):
        Words(bytearray(512), 64, ("word",))


def test_a_buffer_too_small_is_refused():
    with pytest.raises(ValueError, match="256 bytes needed"):
        Words(bytearray(256), 128, ("left", "right"))


def test_nobody_ever_sees_half_a_word():
    """One process flips all 64 bits at full speed; the other must meet only the two values that were stored."""
    assert in_fresh_process("stress:flipping_word", 10_000) == {"seen": [0, MASK], "enough": True}


def test_the_fence_of_other_machines_can_be_called_again_and_again():
    fence = lock_pair()
    for _ in range(3):
        fence()


def page() -> ProgressPage:
    return ProgressPage(bytearray(PAGE_BYTES))


def entered(limit_s: float | None) -> tuple[ProgressPage, int]:
    """A page whose worker is in a call, and the moment the call began."""
    worker = page()
    worker.enter(limit_s)
    return worker, worker.get("in_call_since_ns")


def test_a_call_within_its_limit_is_not_overdue():
    worker, began = entered(5.0)
    assert worker.overdue(began + 5 * SECOND) is None


def test_a_call_beyond_its_limit_is_overdue_by_the_difference():
    worker, began = entered(0.25)
    assert worker.overdue(began + SECOND) == pytest.approx(0.75)


@pytest.mark.parametrize("limit_s", [None, 0, 0.0])
def test_a_call_without_a_limit_is_never_overdue(limit_s):
    worker, began = entered(limit_s)
    assert worker.overdue(began + 10**6 * SECOND) is None


def test_the_smallest_limit_is_a_limit():
    worker, began = entered(1e-9)
    assert worker.overdue(began + SECOND) == pytest.approx(0.999)


def test_a_worker_outside_calls_is_never_overdue():
    worker, began = entered(0.25)
    worker.leave()
    assert worker.overdue(began + 10**6 * SECOND) is None


def test_each_call_that_returns_is_progress():
    worker = page()
    worker.set("progress", MASK)
    for _ in range(3):
        worker.enter(1)
        worker.leave()
    assert worker.get("progress") == 2


def test_a_cleared_page_says_nothing():
    worker, began = entered(0.25)
    for name in ("state", "pid", "epoch"):
        worker.set(name, 7)
    worker.clear()
    assert [worker.get(name) for name in worker.names] == [0] * 7
    assert worker.overdue(began + SECOND) is None


@pytest.mark.parametrize("call", CALLS)
def test_the_page_says_what_the_worker_is_doing_until_it_is_done(call):
    worker = page()
    worker.enter(1, call)
    assert worker.doing(0) == call
    worker.leave()
    assert worker.doing(0) == ""
    worker.note(call)
    assert worker.doing(0) == call


def test_a_damaged_word_says_nothing():
    worker = page()
    worker.set("call", len(CALLS))
    assert worker.doing(0) == ""
