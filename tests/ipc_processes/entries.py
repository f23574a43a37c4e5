"""Children for the tests: plain entries and roles, forked by a real nursery."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

from mlxe_async.errors import EnvironmentFault, TaskError
from mlxe_async.ipc.processes.serve import serve
from mlxe_async.ipc.shared.words import PAGE_BYTES, ProgressPage


class Rude(Exception):
    """Cannot be shown, pickled or made with one argument."""

    def __init__(self, a, b):
        super().__init__(a, b)

    def __str__(self):
        raise RuntimeError("no")

    __repr__ = __str__


class Fatal(Exception):
    fatal = True


def _open_files():
    found = {}
    for entry in list(pathlib.Path("/proc/self/fd").iterdir()):
        # The listing's own descriptor is gone by now.
        with contextlib.suppress(FileNotFoundError):
            found[int(entry.name)] = str(entry.readlink()).split(":")[0]
    return found


def _own_cause():
    error = RuntimeError("its own cause")
    error.__cause__ = ValueError("between")
    error.__cause__.__cause__ = error
    return error


class Echo:
    def __init__(self, spec, channel, page):
        self.spec, self.channel, self.page = spec, channel, page

    def echo(self, **args):
        return args

    def facts(self):
        return {
            "pid": os.getpid(),
            "group": os.getpgrp(),
            "parent": os.getppid(),
            "name": pathlib.Path("/proc/self/comm").read_text().strip(),
            "fds": sorted(_open_files().values()),
            "threads": threading.active_count(),
            "oom": int(pathlib.Path("/proc/self/oom_score_adj").read_text()),
            "omp": os.environ["OMP_NUM_THREADS"],
            "path": sys.path,
            "spec": self.spec,
            "modules": sorted(name for name in sys.modules if "." not in name),
        }

    def inherited(self):
        code = "import entries; print(entries._open_files())"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment)
        return run.stdout.decode().strip()

    def terminated(self, how):
        if how == "exec":
            run = subprocess.Popen(["/bin/sleep", "1000000"])
            run.terminate()
            return run.wait()
        pid = os.fork()
        if pid == 0:
            time.sleep(1e6)
        # The child restores its signals before the fork returns in it; until then the signal is lost on it.
        while True:
            os.kill(pid, signal.SIGTERM)
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.WTERMSIG(status)

    def notices(self, count):
        for i in range(count):
            self.channel.send({"notice": {"i": i}})

    def fail(self, how):
        raise {
            "value": lambda: ValueError("x" * 10_000_000),
            "rude": lambda: Rude(1, 2),
            "exit": lambda: SystemExit(3),
            "interrupt": lambda: KeyboardInterrupt(),
            "fault": lambda: EnvironmentFault("bad shape", phase="step", env_index=3, seed=7, step=12),
            "fatal": lambda: Fatal("the device is lost"),
            "eof": lambda: EOFError("the simulator hung up"),
            "task": lambda: TaskError("no such environment"),
            "loop": _own_cause,
        }[how]()

    def unsayable(self):
        return {"nan": float("nan")}

    def end(self, how):
        if how == "exit 0":
            os._exit(0)
        if how == "segv":
            ctypes.string_at(0)
        if how == "close all":
            os.closerange(3, 256)
            return
        os.kill(os.getpid(), getattr(signal, how))

    def hang(self, how, limit_s=0.2):
        self.page.enter(limit_s, "step")
        if how == "sleep":
            time.sleep(1e6)
        elif how == "gil":
            ctypes.PyDLL(None).sleep(10**6)
        elif how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(1e6)
        elif how == "deaf":
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            time.sleep(1e6)

    def brood(self, says):
        self.page.note(says)
        time.sleep(1e6)

    def sleep(self):
        time.sleep(1e6)

    def limited(self, limit_s):
        self.page.enter(limit_s)
        self.page.leave()

    def die_in_call(self):
        self.page.enter(0.5)
        os.kill(os.getpid(), signal.SIGKILL)

    def daemon(self):
        """A simulator that leaves the group, the session and its parent, as daemons do."""
        inner = "import os, time; print(os.getpid(), flush=True); time.sleep(1e6)"
        outer = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {inner!r}], start_new_session=True)"
        run = subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE)
        pid = int(run.stdout.readline())
        run.wait()
        return {"pid": pid}

    def grandchildren(self, session=False):
        code = "import os, time; print(os.getpid(), flush=True); time.sleep(1e6)"
        run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=session)
        return {"pid": int(run.stdout.readline())}

    def garbage(self, digits):
        self.channel._sock.send(bytes.fromhex(digits))
        time.sleep(1e6)

    def printing(self, text):
        print(text)
        os.write(2, b"\xff raw\n")

    def simulator(self, path):
        code = "import signal, sys, pathlib; signal.signal(signal.SIGTERM, lambda *_: sys.exit(tidy()))\n"
        code += f"def tidy(): pathlib.Path({path!r}).touch()\nprint('ready', flush=True)\nwhile True: signal.pause()"
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE).stdout.readline()

    def linger(self):
        threading.Thread(target=time.sleep, args=(1e6,)).start()
        import atexit

        atexit.register(time.sleep, 1e6)

    def disarm(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)


def echo(spec, channel, fds):
    page = ProgressPage(mmap.mmap(fds["page"], PAGE_BYTES)) if "page" in fds else None
    serve(channel, {"echo": Echo(spec, channel, page)}, page, facts={"epoch": channel.epoch})


def pair(spec, channel, fds):
    serve(channel, {"left": Echo({"side": "left"}, channel, None), "right": Echo({"side": "right"}, channel, None)})


class Meeting(Echo):
    """Its verbs need two threads at once."""

    both = threading.Barrier(2)

    def meet(self, times=1):
        for _ in range(times):
            self.both.wait(20)
            self.channel.send({"notice": {"thread": threading.current_thread().name, "text": "x" * 50_000}})
        return {"thread": threading.current_thread().name}

    def close(self):
        if "path" in self.spec:
            with pathlib.Path(self.spec["path"]).open("a") as file:
                file.write(f"{self.spec['side']}\n")


def threads(spec, channel, fds):
    page = ProgressPage(mmap.mmap(fds["page"], PAGE_BYTES))
    sides = {side: Meeting({**spec, "side": side}, channel, page) for side in ("left", "right")}
    serve(channel, {**sides, "main": Echo({}, channel, None)}, threaded={"left": "left", "right": "right"})


def broken(spec, channel, fds):
    raise RuntimeError("cannot be built")


def unbuildable(spec, channel, fds):
    raise TaskError("no such environment")


def silent(spec, channel, fds):
    time.sleep(1e6)


def held(spec, channel, fds):
    channel.send({"descriptors": len({fd for fd in fds.values() if os.fstat(fd)})})


def stopped_at_first(spec, channel, fds):
    os.kill(os.getpid(), signal.SIGSTOP)
    echo(spec, channel, fds)


def impostor(spec, channel, fds):
    channel.send({"hello": {"pid": 1, "epoch": channel.epoch, "facts": {}}})
    time.sleep(1e6)


def prattler(spec, channel, fds):
    channel.send({"weather": "fine"})
    time.sleep(1e6)


def parrot(spec, channel, fds):
    channel.send({"id": 1, "result": {}})
    time.sleep(1e6)


def stubborn(spec, channel, fds):
    class Stubborn(Echo):
        def close(self):
            time.sleep(1e6)

    serve(channel, {"echo": Stubborn(spec, channel, None)})


def tidy(spec, channel, fds):
    class Tidy(Echo):
        def close(self):
            pathlib.Path(spec["path"]).write_text("yes")

    class Untidy(Echo):
        def close(self):
            raise SystemExit(9)

    serve(channel, {"tidy": Tidy(spec, channel, None), "untidy": Untidy(spec, channel, None)})


def flaky(spec, channel, fds):
    if channel.epoch <= spec["failures"]:
        raise RuntimeError("not yet")
    echo(spec, channel, fds)
