"""What may be read while its writer is killed: bytes that processes map, and rules by which half a write is told.

Its modules:

    segments, words, checksums                  memory without names; single words; sums by which half a write is told
    weights, kept, delayed                      versions of weights; a learner's state; simulated lag
    lanes                                       rows from executors, committed block by block
    pushes, meeting                             gradients for one learner; numbers exchanged among workers
    futex, hours, latencies                     waiting for a word; time by what was done; durations in buckets
"""
