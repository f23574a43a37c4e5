"""Processes, pipes and shared memory. Knows no torch and no reinforcement learning."""
