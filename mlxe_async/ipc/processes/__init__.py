"""Processes: the nursery that forks them, their lives and restarts, and the limits that the kernel sets."""
