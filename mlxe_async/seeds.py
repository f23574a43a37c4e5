"""Seeds for everything random, derived from the run's one seed so that no two users of chance ever share a stream."""

from __future__ import annotations

import zlib

import numpy as np


def derive_seed(run_seed: int, role: str, *counters: int) -> int:
    """A 32-bit seed for one use of chance.

    Args:
        run_seed: `[run] seed`.
        role: what the randomness is for, such as `"executor.reset"`.
        counters: index, epoch, environment, episode and whatever else tells this use from all others; each >= 0.
    """
    entropy = [run_seed, zlib.crc32(role.encode()), *counters]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def generator(run_seed: int, role: str, *counters: int) -> np.random.Generator:
    """A numpy generator seeded as in `derive_seed`, with the full entropy."""
    return np.random.Generator(
        np.random.PCG64(np.random.SeedSequence([run_seed, zlib.crc32(role.encode()), *counters]))
    )
