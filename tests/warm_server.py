"""A process that has imported what runs import, and forks one for each request: see `warm`.

python -P warm_server.py FD MODULE ...
"""

import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import resource
import runpy
import select
import socket
import sys
from pathlib import Path

MAX_FDS = 4


class Served:
    """Forks processes for whoever holds the other end of a channel.

    Args:
        channel: one packet for each request, with its descriptors.
        path: where a fresh interpreter looks for modules, `PYTHONPATH` aside.
    """

    def __init__(self, channel, path):
        self._channel, self._path = channel, path

    def forever(self):
        """Fork a process for each request, in which this returns it; None once the other end is closed."""
        while True:
            request, fds, _, _ = socket.recv_fds(self._channel, 1 << 20, MAX_FDS)
            if not request:
                return None
            if (child := os.fork()) == 0:
                return self._fork_again(json.loads(request), fds)
            for fd in fds:
                os.close(fd)
            os.waitpid(child, 0)
            self._channel.send(b"its parent has ended")

    def _fork_again(self, asked, fds):
        """Leave the process to whoever adopts orphans: the one who asks is to be its parent."""
        between = os.pidfd_open(os.getpid())
        if pid := os.fork():
            self._channel.send(str(pid).encode())
            os._exit(0)
        self._channel.close()
        select.select([between], [], [])  # readable once it has ended, and its child is another's
        if os.getppid() != asked["parent"]:
            os._exit(1)  # who asked is gone
        os.chdir(asked["cwd"])
        os.umask(asked["umask"])
        os.sched_setaffinity(0, asked["cores"])
        for name in os.environ.keys() - asked["env"].keys():
            del os.environ[name]
        os.environ.update(asked["env"])
        _place(dict(zip(asked["places"], fds, strict=True)))
        sys.path[:] = [*asked["path"], *self._path]
        return asked


def _place(fds):
    """Move descriptors to where they belong, and close all others."""
    apart = {place: fcntl.fcntl(fd, fcntl.F_DUPFD, 200) for place, fd in fds.items()}
    for place, fd in apart.items():
        os.dup2(fd, place)
    places = sorted(fds)
    for low, high in zip([-1, *places], [*places, resource.getrlimit(resource.RLIMIT_NOFILE)[0]], strict=True):
        if low + 1 < high:  # an empty range is taken for all
            os.closerange(low + 1, high)


def main():
    """Import, then serve."""
    gc.disable()  # as a nursery does while it imports
    fd, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    path = [*sys.path]
    sys.path.insert(0, str(Path(__file__).parent))
    import warm  # noqa: F401 - for commands, which are to find nothing of ours in their path

    from mlxe_async.algorithms import load_algorithm
    from mlxe_async.fast import TWINS
    from mlxe_async.fast.manifest import Watch

    sys.path[:] = path
    for name in TWINS:  # what is equal to its file here is asked only whether it has changed
        Watch(load_algorithm(name), name).difference()
    gc.freeze()
    with socket.socket(fileno=int(fd)) as channel:
        asked = Served(channel, path).forever()
    if asked is not None and asked["what"] == "command":
        asked = _served_command(asked, path)
    if asked is not None:
        _be_a_nursery(asked)


def _be_a_nursery(asked):
    from mlxe_async.ipc.processes import nursery_main

    os.setsid()
    sys.argv[:] = ["-m", *asked["arguments"]]
    nursery_main.main(asked["arguments"])
    os._exit(70)


def _served_command(asked, path):
    """A command, and beside it a process that forks its nurseries; returns in those."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        os.setsid()  # what is typed at a terminal is not meant for it
        null = os.open(os.devnull, os.O_RDWR)
        _place({0: null, 1: null, 2: null, theirs.fileno(): theirs.fileno()})
        with theirs, contextlib.suppress(ConnectionError):
            return Served(theirs, path).forever()
        return None
    theirs.close()
    gc.enable()
    _open_streams()
    from mlxe_async.ipc.processes import nursery

    nursery._popen = sys.modules["warm"].Nurseries(ours).start
    sys.argv[:] = ["mlxe_async", *asked["arguments"]]
    runpy.run_module("mlxe_async", run_name="__main__", alter_sys=True)
    return None


def _open_streams():
    """Standard streams as a fresh interpreter opens them."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        raw = open(fd, "rb" if fd == 0 else "wb", closefd=False)  # noqa: SIM115 - they stay open
        errors = "backslashreplace" if name == "stderr" else "strict"
        stream = io.TextIOWrapper(raw, "utf-8", errors, line_buffering=name == "stderr" or raw.isatty())
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    main()
