"""All that a GPU is needed to see, in at most nine minutes: `python tests/benchmarks/gpu_truth.py [--minutes N]`.

Tests that skip without a GPU; whether the same updates come to the same bits, as torch does it of itself, by kernels
that repeat themselves, and with recorded graphs besides; how far each precision is from the CPU; what kernels that
repeat themselves cost; and steps per second of Pong with and without graphs (extra `atari`).

Each part is a process of its own, for what torch is told of kernels holds for all of a process. Parts come one after
the other, and one that does not fit into the time that is left is left out and says so. What was found is printed, and
kept as JSON (`results/gpu_truth.json`) after each part.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy starts its pools

import argparse
import copy
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from gpu import made, registered, seconds  # noqa: E402 - found beside this file, which a test imports from elsewhere

UPDATES = 12
SAME = ("mlxe", "dqn", "ppo", "ppo, pong.toml, 1 epoch")
PICTURES = "ppo, pong.toml, 1 epoch"
WAYS = ("as torch has it", "repeatable", "repeatable, graphs")
PRECISIONS = ("float32", "tf32", "bfloat16")
PONG = {"learner.device": "cuda", "algorithm.precision": '"bfloat16"', "algorithm.epochs": 1}
RATES = {
    "oa": {},
    "oa, graphs": {"learner.graphs": "true"},
    "is, repeatable": {},
}


class Part(NamedTuple):
    """One process.

    Args:
        name: what it is called.
        most_s: seconds that it may take.
        least_s: with fewer left it is not begun.
    """

    name: str
    most_s: float
    least_s: float


def parts() -> list[Part]:
    """In the order of what is most worth knowing."""
    return [
        Part("tests", 150, 45),
        *(Part(f"bits: {way}", 45, 20) for way in WAYS),
        *(Part(f"precision: {name}", 30, 15) for name in PRECISIONS),
        *(Part(f"cost: {name}, {way}", 30, 15) for name in PRECISIONS[:1] for way in WAYS[:2]),
        *(Part(f"rate: {name}", 75, 50) for name in RATES),
    ]


# -- what the parts do -------------------------------------------------------------------------------------------------


def tell_torch(way: str, device: str, precision: str = "float32") -> None:
    """Have this process compute in one of `WAYS`."""
    from mlxe_async.gpu import use_graphs, use_kernels

    if way != WAYS[0]:
        use_kernels(device, repeatable=True, precision=precision)
    elif precision != "float32":
        use_kernels(device, repeatable=False, precision=precision)
    use_graphs(way.endswith("graphs"))


def learned(case: str, device: str, updates: int, extra: dict[str, Any] | None = None) -> list[Any]:
    """The weights of a fresh learner after each of so many updates on the same batch."""
    from mlxe_async.algorithms import Clock

    algorithm, batch = made(case, device, extra)
    found = []
    for number in range(updates):
        algorithm.update(batch, Clock(updates=number, episodes=1, env_steps=1000, version=1))
        found.append(algorithm.weights())
    return found


def bits(way: str, device: str = "cuda", cases: Sequence[str] = SAME, updates: int = UPDATES) -> dict[str, Any]:
    """How far two learners of one seed are apart after the first and the last update, as the largest difference."""
    import numpy as np

    tell_torch(way, device)
    found: dict[str, Any] = {}
    for case in cases:
        first, second = (learned(case, device, updates) for _ in range(2))
        apart = [float(np.abs(one - other).max()) for one, other in zip(first, second, strict=True)]
        found[case] = {"after 1": apart[0], f"after {updates}": apart[-1], "equal": max(apart) == 0.0}
    return found


def precision(name: str, device: str = "cuda", case: str = PICTURES) -> dict[str, float]:
    """How far the first update is from the CPU's in float32: the difference of weights over their norm."""
    import numpy as np

    tell_torch(WAYS[1], device, name)
    (there,) = learned(case, device, 1, {"precision": name})
    (here,) = learned(case, "cpu", 1, {"precision": "float32"})
    return {"first update, of the weights' norm": float(np.linalg.norm(there - here) / np.linalg.norm(here))}


def cost(name: str, way: str, device: str = "cuda", case: str = PICTURES, repeats: int = 30) -> dict[str, float]:
    """Median milliseconds of an update."""
    from mlxe_async.algorithms import Clock

    tell_torch(way, device, name)
    algorithm, batch = made(case, device, {"precision": name})

    def update() -> None:
        algorithm.update(batch, Clock(updates=1, episodes=1, env_steps=1000, version=1))

    if device == "cpu":
        return {"ms": 1e3 * statistics.median(seconds(update, device, repeats, first=1))}
    with registered(batch) as batch:
        return {"ms": 1e3 * statistics.median(seconds(update, device, repeats, first=5))}


def rate(name: str, running_s: float = 40.0) -> dict[str, Any]:
    """Steps per second that were learned from, of Pong with an executor for each core but three."""
    try:
        import ale_py  # noqa: F401 - whether it is there
    except ImportError:
        return {"left out": 'ale_py is not installed (pip install -e ".[atari]")'}
    from rate import run, under

    executors = max(1, (os.cpu_count() or 1) - 3)
    asked = PONG | {"schedule.executors": executors} | RATES[name]
    with tempfile.TemporaryDirectory() as folder:
        file = under(name.partition(",")[0], str(ROOT / "settings" / "pong.toml"), folder)
        found = run(file, running_s, **asked)
    return {"executors": executors, "steps_per_second": found["rate"], "cpu": found["cpu"]}


def own_tests() -> dict[str, Any]:
    """The tests that are skipped where there is no GPU."""
    files = ["tests/algorithms/test_gpu.py", "tests/algorithms/test_gpu_kernels.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "slow", "-p", "no:cacheprovider", "--tb=short", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    told = {} if not done.returncode else {"output": done.stdout[-6000:]}
    return {"exit_code": done.returncode, "summary": lines[-1] if lines else "", "failed": failed} | told


def do(name: str) -> dict[str, Any]:
    """One part, in this process."""
    kind, _, rest = name.partition(": ")
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "tests": own_tests,
        "bits": lambda: bits(rest),
        "precision": lambda: precision(rest),
        "cost": lambda: cost(*rest.split(", ", 1)),
        "rate": lambda: rate(rest),
    }
    return ways[kind]()


# -- one after the other -----------------------------------------------------------------------------------------------


def asked(part: Part, left_s: float) -> dict[str, Any]:
    """What a process found for a part; or why it is left out, or that it failed."""
    if left_s < part.least_s:
        return {"left out": f"{left_s:.0f} s were left, expected at least {part.least_s:.0f} s"}
    limit, command = min(part.most_s, left_s), [sys.executable, str(Path(__file__)), "--part", part.name]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"it was not through after {limit:.0f} s"}
    if done.returncode:
        return {"failed": (done.stderr or done.stdout)[-4000:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def ask_all(minutes: float, keep: Callable[[dict[str, Any]], None], ask: Any = asked, now: Any = time.monotonic) -> int:
    """Do all parts within so many minutes; `keep` is given what is known after each. Returns how many failed."""
    began, found = now(), facts()
    for part in parts():
        left, before = 60 * minutes - (now() - began), now()
        found["parts"][part.name] = told = ask(part, left)
        told["seconds"] = round(now() - before, 1)
        print(f"{part.name:36} {json.dumps(told)[:400]}", flush=True)
        keep(copy.deepcopy(found))
    wrong = [name for name, told in found["parts"].items() if told.get("failed")]
    return len(wrong)


def facts() -> dict[str, Any]:
    """Where and when."""
    import torch

    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return {
        "day": time.strftime("%Y-%m-%d"),
        "device": device,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "commit": commit,
        "parts": {},
    }


def main() -> int:
    """Ask for all parts, or do one."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="all parts together take no longer")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "gpu_truth.json")
    parser.add_argument("--part", help="do one part in this process, and print what it found")
    given = parser.parse_args()
    if given.part:
        print(json.dumps(do(given.part)))
        return 0
    import torch

    if not torch.cuda.is_available():
        parser.error("expected a GPU, torch finds none that it can use; nothing here is worth knowing of a CPU")
    return int(ask_all(given.minutes, lambda found: given.results.write_text(json.dumps(found, indent=1) + "\n")) > 0)


if __name__ == "__main__":
    sys.exit(main())
