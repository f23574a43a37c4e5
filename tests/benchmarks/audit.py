"""What the audit of the updates costs: `python tests/benchmarks/audit.py [--rounds 15] [--only NAME]`.

Each algorithm with the settings of its file in `settings/` is given a made-up batch of the size that they say. Updates
that are audited and updates that are not take turns; told are the medians, and what part of a learner's time goes into
the audit with `learner.audit_every` as it is by default.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy starts its pools

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from gpu import CASES, made

from mlxe_async.algorithms import Clock
from mlxe_async.fast import updates
from mlxe_async.fast.audit import Audit
from mlxe_async.settings.model import Learner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="audited updates of each algorithm")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    given = parser.parse_args()
    every = Learner().audit_every
    print(f"medians of {given.rounds}; audit_every = {every}")
    print(f"{'':28} {'update ms':>10} {'audited ms':>10} {'share of the time':>18}")
    for case in CASES:
        if given.only not in case:
            continue
        algorithm, batch = made(case, "cpu")
        batch["version"] = -1 + 0 * batch["step"]  # of versions long ago: their log-probabilities are not looked at
        way = updates(algorithm)
        plain, audited = Audit(way, 0), Audit(way, 1)
        seen: dict[Audit, list[float]] = {plain: [], audited: []}
        for number in range(given.rounds + 1):
            for one, times in seen.items():
                began = time.perf_counter()
                one.update(batch, Clock(updates=number))
                if number:
                    times.append(1e3 * (time.perf_counter() - began))
        ordinary, twice = (statistics.median(times) for times in seen.values())
        share = (twice - ordinary) / (every * ordinary)
        print(f"{case:28} {ordinary:10.2f} {twice:10.2f} {share:17.3%}", flush=True)


if __name__ == "__main__":
    main()
