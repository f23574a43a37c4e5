"""Measure and keep what was printed: `python tests/benchmarks/kept.py [NAME ...]`; on a machine without other work.

Each NAME is one command of `COMMANDS`; left out, all are run, one after the other, which takes hours. What a command
prints goes to `results/NAME.txt` beside this file, under the command, the day, the machine and the commit. The tables
and figures of `README.md` are held against these files by `tests/test_pages.py`: what has changed is named there.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results"
COMMANDS = {
    "ipc_memory": "python tests/benchmarks/ipc_memory.py",
    "ipc_processes": "python tests/benchmarks/ipc_processes.py",
    "deaths": "python tests/benchmarks/deaths.py 40",
    "deaths-16": "python tests/benchmarks/deaths.py 15 --executors 16",
    "run": "python tests/benchmarks/run.py settings/oa.toml 60000",
    "tasks": "python tests/benchmarks/tasks.py",
    "view": "python tests/benchmarks/view.py",
    "rate": "python tests/benchmarks/rate.py settings/fast.toml 8",
    "rate-own-core": 'python tests/benchmarks/rate.py settings/fast.toml 8 --only "native oa" '
    "--set learner.own_core=false",
    "atari": "python tests/benchmarks/atari.py settings/pong.toml 40 --rounds 1",
    "atari-long": "python tests/benchmarks/atari.py settings/pong.toml 1825 --rounds 1 --precision float32",
    "pools": "python tests/benchmarks/pools.py 10",
    "profile_runs": "python tests/benchmarks/profile_runs.py 12",
    "memory": "python tests/benchmarks/memory.py --rounds 2",
    "scaling": "python tests/benchmarks/scaling.py --rounds 5",
    "protection": "python tests/benchmarks/protection.py --seconds 6 --pairs 4",
    "pushes": "python tests/benchmarks/pushes.py",
    "hogwild": "python tests/benchmarks/hogwild.py",
    "verdicts": "python tests/benchmarks/verdicts.py",
    "soak": "python tests/benchmarks/soak.py",
    "gpu": "python tests/benchmarks/gpu.py",
}


def processor() -> str:
    """Name of the processor; of virtual ones, which are all called alike, with family and model."""
    about = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    known = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in about)}
    name = known.get("model name", platform.machine())
    is_alike = name in ("AMD EPYC", "Intel(R) Xeon(R) Processor")
    return f"{name} (family {known['cpu family']}, model {known['model']})" if is_alike else name


def machine() -> str:
    """Processor, cores, system and Python, in one line."""
    return f"{os.cpu_count()} cores of {processor()}, {platform.platform()}, Python {platform.python_version()}"


def kept(command: str) -> str:
    """What is written down of one command: when, where, what it printed.

    Raises:
        subprocess.CalledProcessError: it failed; nothing is kept.
    """
    begun = dt.datetime.now(dt.UTC)
    words = [sys.executable if word == "python" else word for word in shlex.split(command)]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return f"$ {command}\n# {begun:%d %B %Y}, {machine()}, commit {commit or 'unknown'}\n\n{done.stdout}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(COMMANDS)}; all when left out")
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in COMMANDS]:
        parser.error(f"got {', '.join(unknown)}, expected some of {', '.join(COMMANDS)}")
    for name in asked.names or COMMANDS:
        text = kept(COMMANDS[name])
        (RESULTS / f"{name}.txt").write_text(text)
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
