"""Shared memory, messages and processes, in three rooms. Knows no torch and no reinforcement learning."""
