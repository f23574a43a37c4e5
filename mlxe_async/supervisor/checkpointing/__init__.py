"""Saving a run and finding what to go on from: weights, whole checkpoints, and when a tested version is the one."""
