"""Rainbow: C51 with double, dueling and noisy networks, prioritised replay and several steps.

Paper: Hessel et al. 2018. This file has what Rainbow switches on, with the paper's exponents; the loop and the loss are
those of `c51.py`, its switches those of `parts/value_based.py`. Each can be switched off alone. Where we differ: as C51
here; rates and clocks suit small tasks, and are the paper's where the task shows pictures. The paper's priorities are
KL divergences, ours the losses: a row whose target is uncertain itself comes more often.

What do I change to make ...
  Rainbow as published        no code: the settings that pictures get, `of_pictures`.
  Rainbow without a part      no code: double, dueling, prioritised or noisy = false, n_step = 1.
  other atoms, other losses   as in `c51.py`.
"""

from __future__ import annotations

from typing import ClassVar

from mlxe_async.algorithms.c51 import C51, C51Settings
from mlxe_async.algorithms.parts import exploration, fields, value_based


class RainbowSettings(C51Settings):
    """The fields of `[algorithm]` beside `name = "rainbow"`."""

    n_step: int = fields.n_step(3, fields.BOOTSTRAPS)
    double: bool = value_based.double(True)
    dueling: bool = value_based.dueling(True)
    prioritised: bool = value_based.prioritised(True)
    priority_exponent: float = value_based.priority_exponent(0.5)
    noisy: bool = exploration.noisy(True)


class Rainbow(C51):
    """C51 with all switches on."""

    Settings = RainbowSettings
    settings: RainbowSettings
    of_pictures: ClassVar = C51.of_pictures | {
        **dict.fromkeys(("learning_rate", "learning_rate_last"), 6.25e-5),
        "batch": 32,
        "start_rows": 20_000,
        "train_every": 4,
        "target_every": 8000,
        "priority_correction_steps": 50_000_000,
    }
