"""After every test: no process, descriptor or thread of it is left."""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

import leaks
import warm

# Hundreds of children import the package: each is to find it compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell starts background jobs with SIGINT ignored, nohup with SIGHUP; children inherit that, and tests send both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How fast examples are made says how busy the machine is, and nothing about the program.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory):
    """Runs of tests are sealed by a secret of their own, and not by the user's."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    yield
    del os.environ["XDG_STATE_HOME"]


@pytest.fixture(autouse=True, scope="session")
def _warm():
    leaks.warm_up()
    # What was imported and collected stays; each of hundreds of full collections would take a quarter of a second.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _server():
    server = warm.Server(leaks.keep)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _starts(request, monkeypatch, _server):
    if request.node.get_closest_marker("cold") or request.path.parent.name == "ipc_processes":
        yield
        return
    with warm.starts(_server, monkeypatch):
        yield


@pytest.fixture(autouse=True)
def _nothing_left():
    with leaks.nothing_left():
        yield
