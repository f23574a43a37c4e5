"""Handles of the learner: alone, in a team of workers, or stepping by what workers push."""
