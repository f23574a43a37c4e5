"""The exit code that the log tells is the one the command ends with."""

import asyncio

import pytest

from mlxe_async.supervisor.ending import verdict


@pytest.mark.parametrize(
    ("asked", "requested", "code"),
    [("SIGTERM", "SIGTERM", 143), ("env_steps", "SIGTERM", 143), (None, "SIGINT", 130), ("env_steps", None, 3)],
)
def test_a_run_that_was_cancelled_by_a_second_signal_tells_the_first(asked, requested, code):
    assert verdict(asked, asyncio.CancelledError(), lambda: True, requested) == ("cancelled", code)
