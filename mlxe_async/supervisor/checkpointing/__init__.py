"""Saving a run and going on with it: weights, whole checkpoints, resuming."""
