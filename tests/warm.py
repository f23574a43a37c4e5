"""Processes of runs are forked from one that has imported torch already: a run starts two seconds sooner.

Most of the time that a short run takes goes into importing torch and the package, once for each nursery and command.
What is tested is not that. So one process per test session imports them. Nurseries, and commands that a test starts as
`python -m mlxe_async`, are forked from there, with the environment, descriptors and parent that they would have had.
Tests that are marked `cold`, and what is started in another way, begin by exec, as users begin.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

from mlxe_async.algorithms import REGISTRY
from mlxe_async.ipc.processes import nursery
from mlxe_async.supervisor.startup.preloading import PRELOADED, PRELOADED_MEANWHILE

_ADOPT = 36  # PR_SET_CHILD_SUBREAPER
_COMMAND = [sys.executable, "-m", "mlxe_async"]
_MODULES = [
    *PRELOADED,
    *PRELOADED_MEANWHILE,
    *("mlxe_async.ipc.processes.nursery_main", "mlxe_async.cli", "mlxe_async.supervisor"),
    *(f"mlxe_async.algorithms.{name}" for name in REGISTRY),
]
_OWN_NOTHING = (None, None, None, -1, False, -1)
"What `subprocess` calls gid, gids, uid, umask, start_new_session and process_group, where nobody asks for them."
_OF_INTERPRETERS = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_")
_cold, _program = nursery._popen, nursery.PROGRAM
_LIMITS = {one: resource.getrlimit(one) for one in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_NPROC)}


class Server:
    """The process that has imported them all; it is started when it is first needed.

    Args:
        on_started: called with its process id and the descriptor that is kept of it.
    """

    def __init__(self, on_started):
        self._on_started, self._channel = on_started, None

    @property
    def channel(self):
        """To ask it by."""
        if self._channel is None:
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            program = str(Path(__file__).with_name("warm_server.py"))
            env = _without_path(os.environ) | nursery.ONE_THREAD
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", program, str(theirs.fileno()), *_MODULES],
                    env=env,
                    pass_fds=[theirs.fileno()],
                )
            self._on_started(self._process.pid, self._channel.fileno())
        return self._channel

    def close(self):
        """End it."""
        if self._channel is not None:
            self._channel.close()
            self._process.wait()


class Nurseries:
    """Forks nurseries; `channel` leads to who does."""

    def __init__(self, channel):
        self._channel = channel

    def start(self, arguments, fd, errors, env):
        """As `nursery._popen`."""
        if _program != nursery.PROGRAM or not env.items() >= nursery.ONE_THREAD.items() or _is_limited():
            return _cold(arguments, fd, errors, env)
        null = os.open(os.devnull, os.O_RDWR)
        try:
            fds = {0: null, 1: null, 2: errors, fd: fd}
            path = nursery.module_path()
            return Forked(_asked(self._channel, "nursery", arguments, fds, os.environ | env, path.split(os.pathsep)))
        finally:
            os.close(null)


class Forked:
    """As much of `subprocess.Popen` as is used of a nursery."""

    def __init__(self, pid):
        self.pid = pid

    def wait(self):
        """Exit code; negative for a signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Popen(subprocess.Popen):
    """Commands of the package are forked by `server`, all others started as ever."""

    server = None

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others):
        shell, pipes = others[2], others[3:9]
        theirs = [pipe if pipe != -1 else std for std, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        env = os.environ if env is None else env
        is_plain = not (preexec_fn or pass_fds or shell) and executable in (None, sys.executable)
        is_plain = is_plain and others[10:] == _OWN_NOTHING
        path = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
        folder = str(Path(cwd or ".").absolute())
        if (
            isinstance(args, str)
            or [*map(str, args[:3])] != _COMMAND
            or not is_plain
            or _of_interpreters(env) != _of_interpreters(os.environ)
            or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
            or _is_limited()
            or _is_another([folder, *path])
        ):
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others)
            return
        fds = dict(enumerate(theirs))
        words = [os.fspath(one) for one in args[3:]]
        self.pid = _asked(self.server.channel, "command", words, fds, env, [folder, *path], folder)
        self._child_created = True
        self._close_pipe_fds(*pipes)


def _asked(channel, what, arguments, fds, env, path, folder=None):
    """Have a process forked that is a child of this one; returns its id."""
    umask = os.umask(0o77)
    os.umask(umask)
    asked = {
        "what": what,
        "arguments": arguments,
        "places": [*fds],
        "path": path,
        "env": {**env},
        "cwd": folder or str(Path.cwd()),
        "umask": umask,
        "cores": sorted(os.sched_getaffinity(0)),
        "parent": os.getpid(),
    }
    prctl = ctypes.CDLL(None).prctl
    prctl(_ADOPT, 1, 0, 0, 0)
    try:
        socket.send_fds(channel, [json.dumps(asked).encode()], [*fds.values()])
        pid = int(channel.recv(64))
        channel.recv(64)
    finally:
        prctl(_ADOPT, 0, 0, 0, 0)
    return pid


def _is_another(path):
    """Whether a changed copy of the package comes first there."""
    found = next((place for place in path if Path(place, "mlxe_async").is_dir()), None)
    return found is not None and not Path(found).samefile(Path(__file__).parents[1])


def _of_interpreters(env):
    """What decides how an interpreter starts."""
    return {name: value for name, value in _without_path(env).items() if name.startswith(_OF_INTERPRETERS)}


def _without_path(env):
    return {name: value for name, value in env.items() if name != "PYTHONPATH"}


def _is_limited():
    """Whether a test has set limits, which a process that exists already does not inherit."""
    return any(resource.getrlimit(one) != limit for one, limit in _LIMITS.items())


@contextlib.contextmanager
def starts(server, patch):
    """Nurseries and commands are forked by `server`; `patch` is pytest's."""
    with patch.context() as patched:
        patched.setattr(nursery, "_popen", lambda *given: Nurseries(server.channel).start(*given))
        patched.setattr(Popen, "server", server)
        patched.setattr(subprocess, "Popen", Popen)
        yield
