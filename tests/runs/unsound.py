"""Algorithms that state what they cannot do."""

import fake_rollouts


class Uncorrected(fake_rollouts.Fake):
    off_policy = "ignores"


class MonteCarlo(fake_rollouts.Fake):
    bootstraps = False
