"""The command itself as a child of a test: start it, follow its log, signal it, see what is left."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import leaks

LIMIT_S = 60.0


class Command:
    """`python -m mlxe_async FILE`, with its run folder below `folder`."""

    def __init__(self, folder, toml, *arguments):
        file = Path(folder) / "settings.toml"
        file.write_text(toml)
        self.runs = Path(folder) / "runs"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlxe_async", str(file), "--set", f'run.dir="{self.runs}"', *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self):
        return self.process.pid

    def wait(self):
        """(exit code, stdout, stderr)."""
        out, error = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out, error

    def lines(self):
        """The whole lines of the log so far."""
        try:
            text = (self.runs / "latest" / "log.jsonl").read_text()
        except OSError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def saw(self, event, times=1):
        """Wait until the log has told of `event` so often, or fail when the command has ended before."""
        pidfd = os.pidfd_open(self.pid)
        deadline = time.monotonic() + LIMIT_S
        try:
            while True:
                ended = bool(select.select([pidfd], [], [], 0.01)[0])
                found = [line for line in self.lines() if line["event"] == event]
                if len(found) >= times:
                    return found[times - 1]
                assert not ended, f"ended before {event}: {self.process.communicate()[1]}"
                assert time.monotonic() < deadline, f"no {event} within {LIMIT_S} s"
        finally:
            os.close(pidfd)

    def signal(self, number):
        self.process.send_signal(number)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()


def left_after(seconds):
    """What is still alive of this test session's processes, by name."""
    return leaks.processes_after(seconds)
