"""The exit code that the log tells is the one the command ends with."""

import asyncio

import pytest

from mlxe_async.errors import RunFailed
from mlxe_async.supervisor.ending import verdict, what_is_saved


@pytest.mark.parametrize(
    ("asked", "requested", "code"),
    [("SIGTERM", "SIGTERM", 143), ("env_steps", "SIGTERM", 143), (None, "SIGINT", 130), ("env_steps", None, 3)],
)
def test_a_run_that_was_cancelled_by_a_second_signal_tells_the_first(asked, requested, code):
    assert verdict(asked, asyncio.CancelledError(), lambda: True, requested) == ("cancelled", code)


@pytest.mark.parametrize(
    ("asked", "failure", "code"), [("env_steps", None, 4), ("SIGTERM", None, 4), ("env_steps", RunFailed("x"), 3)]
)
def test_a_run_whose_last_weights_are_not_on_disk_is_not_fine(asked, failure, code):
    reason, exit_code = verdict(asked, failure, lambda: True, unsaved="the disk is full")
    assert exit_code == code
    assert ("the disk is full" in reason) == (code == 4)


@pytest.mark.parametrize("unsaved", [None, "the disk is full"])
def test_what_is_said_to_be_saved_is_what_was(unsaved):
    said = what_is_saved("stopped in the middle of a round", unsaved)
    assert ("weights are saved" in said) == (unsaved is None)
    assert ("the disk is full" in said) == (unsaved is not None)
