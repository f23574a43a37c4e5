"""An algorithm whose learner sleeps now and then, for `hogwild.py`."""

from __future__ import annotations

import os
import time
from typing import Any

from mlxe_async.algorithms.a2c import A2C
from mlxe_async.algorithms.interface import Clock, Rows


class SleepingLearner(A2C):
    """Its learner sleeps two seconds before each fiftieth update."""

    def update(self, batch: Rows, clock: Clock) -> Any:
        """As A2C's, later."""
        if "mlxe-lrn" in os.environ.get("MLXE_ROLE", "") and clock.updates % 50 == 49:
            time.sleep(2.0)
        return super().update(batch, clock)
