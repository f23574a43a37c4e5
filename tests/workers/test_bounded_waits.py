"""A process that waits says now and then that it lives."""

import socket
import threading
from types import SimpleNamespace

import pytest

from mlxe_async.ipc.messages.channel import ControlLost
from mlxe_async.ipc.shared.words import PAGE_BYTES, ProgressPage
from mlxe_async.workers import workshop
from mlxe_async.workers.workshop import WAIT_S, Workshop, _waiter


class Page:
    """Counts how often it hears that nothing hangs."""

    def __init__(self):
        self.heard = 0

    def spending(self, mode):
        assert mode == "room"
        return threading.Lock()

    def leave(self):
        self.heard += 1


def test_a_long_wait_is_told_of_again_and_again():
    here, there = socket.socketpair()
    page = Page()
    with here, there:
        wait = _waiter(here, page)
        wait(3.5 * WAIT_S)
        assert page.heard >= 4
        wait(0.0)
        assert page.heard >= 5


def test_it_ends_when_the_supervisor_is_gone():
    here, there = socket.socketpair()
    with here:
        wait = _waiter(here, Page())
        there.close()
        with pytest.raises(ControlLost):
            wait(60.0)
    assert workshop.WAIT_S < 1


@pytest.mark.parametrize("is_within", [True, False])
def test_a_wait_for_another_worker_leaves_the_update_as_it_was(is_within):
    """At its end workers meet once more: who waits there is in no update, and has no limit afterwards."""
    page = ProgressPage(bytearray(PAGE_BYTES))
    shop = SimpleNamespace(settings=SimpleNamespace(schedule=SimpleNamespace(update_timeout_s=3.0)))
    if is_within:
        page.enter(3.0, "update")
    with Workshop._no_hang(shop, page):
        assert page.pulse()[1] == 0
    assert (page.pulse()[1] != 0) == is_within
