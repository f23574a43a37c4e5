"""The state of a numpy generator as an array, so that it can be kept beside weights and taken up again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = 2**64 - 1


def generator_words(rng: np.random.Generator) -> NDArray[np.uint64]:
    """State of a PCG64 generator, which `numpy.random.default_rng` makes, as (6,) words.

    Raises:
        ValueError: it is of another kind.
    """
    state = rng.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise ValueError(f"generator: expected PCG64, got {state['bit_generator']}")
    numbers = [state["state"]["state"], state["state"]["inc"]]
    words = [half for number in numbers for half in (number >> 64, number & _MASK)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], dtype=np.uint64)


def set_generator(rng: np.random.Generator, words: NDArray[np.uint64]) -> None:
    """Let a PCG64 generator go on from the words (6,) of another one."""
    high, low, increment_high, increment_low, has_half, half = (int(word) for word in words)
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": increment_high << 64 | increment_low},
        "has_uint32": has_half,
        "uinteger": half,
    }
