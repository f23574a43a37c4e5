"""Shared memory, messages and processes, in three rooms. Knows no torch and no reinforcement learning.

Its modules:

    shared                                      memory that survives its writer
    messages                                    short messages up and down
    processes                                   forking, supervising and restarting
"""
