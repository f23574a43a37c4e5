"""After every test: no process, descriptor or thread of it is left."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import leaks


@pytest.fixture(autouse=True, scope="session")
def _warm():
    leaks.warm_up()


@pytest.fixture(autouse=True)
def _nothing_left():
    with leaks.nothing_left():
        yield
