"""What compares modules with the manifest is kept for all tests of a process: it compares anew at each call."""

import functools

import pytest

from mlxe_async import fast


@pytest.fixture(autouse=True, scope="session")
def _one_watch_for_each_class():
    watch_of = fast.watch_of
    fast.watch_of = functools.cache(watch_of)
    yield
    fast.watch_of = watch_of
