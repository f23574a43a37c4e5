"""What the live view costs: CPU time of a refresh, share of a core, and bytes sent to the terminal.

python tests/benchmarks/view.py
"""

import os
import pty
import struct
import termios
import threading
import time
from fcntl import ioctl

from mlxe_async.cli.console import Console
from mlxe_async.cli.view.display import TERMINAL_INTERVAL_S, Display

SECONDS = 60
PER_SECOND = 40  # phases of each role


def events(executors):
    """A minute of a busy run, with the times at which they come."""
    ns = 10**9
    schedule = {"kind": "oa", "executors": executors}
    settings = {"stop": {"env_steps": 10**6, "episodes": 500, "solved": True}, "schedule": schedule}
    settings["evaluation"] = {"enabled": True, "passes": 3}
    head = {"run": "20260101T000000Z-bench", "algorithm": "mlxe", "env": "CartPole-v1", "schedule": "oa", "seed": 0}
    yield {"event": "run_start", "mono_ns": ns, "settings": settings, **head}
    roles = [("executor", index, "generate") for index in range(executors)]
    roles += [("learner", None, "learn"), ("memorizer", None, "memorize"), ("evaluator", None, "evaluate")]
    step = ns // PER_SECOND
    for number in range(SECONDS * PER_SECOND):
        now = ns + number * step
        for role, index, phase in roles:
            seconds = (0.2 + 0.6 * ((number * 7 + (index or 0)) % 10) / 10) / PER_SECOND
            work = {"rows": 300 + number % 77, "updates": 8, "lag_mean": number % 9 / 3, "lag_max": number % 9}
            line = {"event": "phase", "phase": phase, "role": role, "idx": index, "mono_ns": now, **work}
            yield {**line, "start_ns": now - round(seconds * ns), "seconds": seconds}
        steps = {"episodes": number, "env_steps": 300 * number}
        yield {"event": "episode_end", "mono_ns": now, "episode_return": number % 500, **steps}


def measure(columns, rows, executors):
    """Refreshes, milliseconds of CPU time each, share of a core at the interval used, bytes a second, us an event."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    stop = threading.Event()

    def drain():
        while not stop.is_set() and os.read(ours, 65536):
            pass

    reader = threading.Thread(target=drain)
    reader.start()
    with os.fdopen(theirs, "w") as stream:
        console = Console(stream)
        now = [0.0]
        display = Display(console, clock=lambda: now[0])
        display.show()  # imports rich
        drawing, feeding, refreshes, count, next_at = 0.0, 0.0, 0, 0, TERMINAL_INTERVAL_S
        for event in events(executors):
            now[0] = event["mono_ns"] / 1e9 - 1
            began = time.thread_time()
            display.feed(event)
            feeding += time.thread_time() - began
            count += 1
            if now[0] >= next_at:
                next_at += TERMINAL_INTERVAL_S
                began = time.thread_time()
                display.show()
                drawing += time.thread_time() - began
                refreshes += 1
        stop.set()
        console.finish("end")
    reader.join()
    os.close(ours)
    return refreshes, drawing / refreshes, drawing / SECONDS, console.written / SECONDS, feeding / count


def main():
    os.environ["TERM"] = "xterm"
    print("| terminal | executors | refreshes | ms each | share of a core | bytes/s | us per event fed |")
    print("|---|---|---|---|---|---|---|")
    for columns, rows, executors in ((80, 24, 2), (140, 40, 2), (80, 24, 16), (140, 40, 64)):
        refreshes, each, share, sent, feed = measure(columns, rows, executors)
        where = f"{columns} x {rows}"
        print(
            f"| {where} | {executors} | {refreshes} | {each * 1e3:.2f} | {share:.2%} | {sent:,.0f} | {feed * 1e6:.1f} |"
        )


if __name__ == "__main__":
    main()
