"""What log, live view and page cost a run: `python tests/benchmarks/watching.py [FILE] [--rounds 7] [--seconds 24]`.

Three forms of one command take turns: `bare` writes no line of its log and shows nothing (this program puts that form
together: no switch does it), `log` writes it, `all` writes it, shows the live view on a terminal of 120 x 40, and
serves the page to a reader that listens to its stream. Counted are environment steps and the CPU time of all processes,
the page's own included, from some seconds after the first update to the end, by `status.json` and by `/proc`.

Told are steps/s and CPU microseconds a step, medians, and of the ratios to `bare` within each round the median and its
95 % bootstrap interval. Other programs disturb rates most. So the answer is what log, view and page do themselves, all
of it in the supervisor's process and the page's. Their part of the run's CPU time is told, medians; what is more of it
than in `bare` is the cost. A machine that becomes slower meanwhile makes both slower, and the part stays.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy starts its pools

import argparse
import contextlib
import json
import pty
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rate import ONE_PASS, ROOT, cpu_seconds

from mlxe_async.cli.dashboard.serving import TOKEN

FORMS = ("bare", "log", "all")
SECRET = "benchmark-of-the-page"  # noqa: S105 - of a page that lives as long as this program
SETTLED_S = 6.0
"""Seconds after the first update until steps are counted: the page has begun by then, which happens once."""
RESAMPLED = 10_000


class Found(NamedTuple):
    """Of one run: environment steps a second, CPU seconds of all processes a step, and of supervisor and page."""

    rate: float
    cpu: float
    watching: float


# -- a run without a log ----------------------------------------------------------------------------------------------


def run_bare(words: list[str]) -> int:
    """The command, with a log that takes its first and its last line alone."""
    from mlxe_async.cli import main
    from mlxe_async.logs.journal import Journal
    from mlxe_async.supervisor.plan.event_log import EventLog

    emit = Journal.emit

    def generated(self: Any, index: int, report: dict[str, Any]) -> None:
        del index
        self.throttled_s += report["lane_wait_s"]
        self.returns.extend(report["episodes"]["return"][-self.returns.maxlen :])

    def only_the_ends(self: Any, event: Any, *about: Any) -> None:
        if event.name in {"run_start", "run_end"}:
            emit(self, event, *about)

    def nothing(*_: Any, **__: Any) -> None:
        pass

    EventLog.generated = generated  # type: ignore[method-assign] - this form exists here alone
    Journal.emit = only_the_ends  # type: ignore[method-assign] - as above
    Journal.emit_routine = Journal.emit_all = nothing  # type: ignore[method-assign] - as above
    return main(words)


# -- one run of a form -------------------------------------------------------------------------------------------------


def measured(form: str, file: str, seconds: float) -> Found:
    """Run the command in one of its forms.

    Raises:
        SystemExit: it failed, or its page was not read.
    """
    said = {**ONE_PASS, "stop.seconds": seconds, "stop.env_steps": 10**12, "run.name": '"watching"'}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        words = [word for key, value in said.items() for word in ("--set", f"{key}={value}")]
        words = [file, *words, "--set", f'run.dir="{folder}"']
        program = [sys.executable, __file__, "--bare"] if form == "bare" else [sys.executable, "-m", "mlxe_async"]
        output: Any = opened.enter_context((Path(folder) / "said").open("w"))
        reader = None
        if form == "all":
            output = opened.enter_context(terminal())
            port = free_port()
            words += ["--dashboard", "--dashboard-port", str(port)]
            reader = Reader(port, Path(folder) / "latest")
        else:
            words.append("--no-progress")
        process = subprocess.Popen([*program, *words], stdout=output, stderr=output, env={**os.environ, TOKEN: SECRET})
        try:
            found = between(process, Path(folder) / "latest" / "status.json", reader)
        finally:
            process.kill()
            process.wait()
        if reader is not None and reader.bytes == 0:
            raise SystemExit("nobody read the page: the form `all` would be measured without it")
        return found


def between(process: subprocess.Popen[bytes], status: Path, reader: Reader | None) -> Found:
    """Steps and CPU time from `SETTLED_S` after the first update to the last time that both were seen."""
    samples: list[tuple[float, int, float, float]] = []
    begun = 0.0
    while process.poll() is None:
        time.sleep(0.1)
        try:
            seen = json.loads(status.read_text())
        except (OSError, ValueError):
            continue
        if reader is not None:
            reader.begin()
        now, cpu = time.monotonic(), sum(tree(process.pid))
        watching = (cpu_seconds(process.pid) or 0.0) + sum(cpu_seconds(pid) or 0.0 for pid in pages_of(process.pid))
        if seen.get("updates"):
            begun = begun or now
            if now - begun >= SETTLED_S and (not samples or seen["env_steps"] > samples[-1][1]):
                samples.append((now, seen["env_steps"], cpu, watching))
    if process.returncode or len(samples) < 3:
        raise SystemExit(f"the run ended with {process.returncode}, and was seen {len(samples)} times")
    # The very last one may be of a run that is ending, whose processes are gone.
    (since, first, before, watched), (until, last, after, watching) = samples[0], samples[-2]
    steps = last - first
    return Found(steps / (until - since), (after - before) / steps, (watching - watched) / steps)


def tree(pid: int) -> Iterator[float]:
    """CPU seconds of a process and of all that live below it."""
    yield cpu_seconds(pid) or 0.0
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                yield from tree(int(child))


def pages_of(pid: int) -> list[int]:
    """The processes that serve a page, of those that a process started."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            below = [int(child) for child in children.read_text().split()]
            found += [child for child in below if b"dashboard.serving" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return found


@contextlib.contextmanager
def terminal() -> Iterator[Any]:
    """A terminal of 120 x 40 whose screen is read and thrown away."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

    def drain() -> None:
        with contextlib.suppress(OSError):  # its other end is closed
            while os.read(ours, 65536):
                pass

    thread = threading.Thread(target=drain)
    thread.start()
    with os.fdopen(theirs, "w") as stream:
        yield stream
    thread.join()
    os.close(ours)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Reader:
    """Listens to the page's stream until the run has ended."""

    def __init__(self, port: int, latest: Path) -> None:
        self._port, self._latest = port, latest
        self._thread: threading.Thread | None = None
        self.bytes = 0

    def begin(self) -> None:
        """Listen, if that has not begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._listen, daemon=True)
            self._thread.start()

    def _listen(self) -> None:
        url = f"http://127.0.0.1:{self._port}/run/{self._latest.resolve().name}/stream?token={SECRET}"
        for _ in range(100):
            try:
                with urllib.request.urlopen(url, timeout=30) as stream:
                    while line := stream.readline():
                        self.bytes += len(line)
            except (OSError, urllib.error.URLError):
                time.sleep(0.1)
            else:
                return


# -- all of them, by turns --------------------------------------------------------------------------------------------


def interval(ratios: list[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    rng = np.random.default_rng(0)
    drawn = np.median(rng.choice(ratios, (RESAMPLED, len(ratios))), axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


def main() -> int:
    if sys.argv[1:2] == ["--bare"]:
        return run_bare(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default=str(ROOT / "settings" / "fast.toml"))
    parser.add_argument("--seconds", type=float, default=24.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--forms", default=",".join(FORMS), help="which of them, bare among them")
    given = parser.parse_args()
    forms = [form for form in FORMS if form in {"bare", *given.forms.split(",")}]
    found: dict[str, list[Found]] = {form: [] for form in forms}
    for number in range(given.rounds):
        turn = number % len(forms)
        turned = [*forms[turn:], *forms[:turn]]
        for form in turned:
            found[form].append(one := measured(form, given.file, given.seconds))
            told = f"{1e6 * one.cpu:8.3f} us of CPU a step, {1e6 * one.watching:.4f} of supervisor and page"
            print(f"{number + 1}: {form:<5}{one.rate:12,.0f} steps/s {told}", flush=True)
    parts = {form: statistics.median(one.watching / one.cpu for one in found[form]) for form in forms}
    print(
        "| form | steps/s | beside bare | us of CPU a step | beside bare | supervisor and page | more than bare |"
        "\n|---|---:|---|---:|---|---:|---:|"
    )
    for form in forms:
        cells = []
        for name, scale, digits in (("rate", 1.0, ",.0f"), ("cpu", 1e6, ".3f")):
            values = [getattr(one, name) for one in found[form]]
            ratios = [a / getattr(b, name) for a, b in zip(values, found["bare"], strict=True)]
            low, high = interval(ratios)
            cells.append(f"{scale * statistics.median(values):{digits}}")
            cells.append("1" if form == "bare" else f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})")
        cells += [f"{100 * parts[form]:.2f} %", f"{100 * (parts[form] - parts['bare']):.2f} %"]
        print(f"| {form} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
