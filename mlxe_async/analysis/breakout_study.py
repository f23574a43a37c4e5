"""The published curves of a study of DQN and its variants on Breakout, to be shown beside runs of one's own.

Source: the raw curves that the study's authors published with its report; computed from them are the ten means below.
BreakoutNoFrameskip-v4, 10 million steps of four frames, whole rewards, lost lives end training episodes, one run of
each. A test was three games, every 10,000 steps: of the first three with the exploration of training (epsilon from 1 to
0.1), of the two with priorities greedily, which makes them look better. No importance weights.
"""

from __future__ import annotations

from dataclasses import dataclass

ENVIRONMENTS = ("ALE/Breakout-v5", "BreakoutNoFrameskip-v4")
THRESHOLDS = (50.0, 100.0)
MILLION = 1_000_000


@dataclass(frozen=True)
class Published:
    """One curve.

    Args:
        means: of the 100 tests of the 1st to the 10th million steps.
        highest: of all tests.
        reached: steps until the mean of ten tests in a row was 50 and 100.
    """

    means: tuple[float, ...]
    highest: float
    reached: tuple[float, float]


CURVES = {
    "DQN": Published((9.8, 34, 53, 82, 100, 114, 113, 106, 121, 128), 302.7, (1.97e6, 3.49e6)),
    "dueling": Published((11, 33, 56, 84, 106, 97, 109, 98, 115, 122), 370.7, (2.21e6, 3.47e6)),
    "double": Published((10, 32, 48, 69, 98, 106, 115, 118, 118, 116), 290.3, (2.41e6, 4.03e6)),
    "PER": Published((16, 44, 64, 75, 85, 104, 131, 147, 189, 217), 695.3, (1.35e6, 4.61e6)),
    "PER and dueling": Published((17, 47, 76, 104, 161, 162, 175, 281, 303, 358), 636.7, (1.44e6, 2.52e6)),
}
CAVEAT = (
    "Published: one run each, 10 million steps, thresholds by ten tests of three games; DQN, dueling and double were "
    "tested with exploration, those with PER (prioritised replay) greedily: they are not to be held against each other."
)
