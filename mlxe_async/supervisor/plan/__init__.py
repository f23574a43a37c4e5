"""Facts of a run that all other wings share: who holds what, what is counted and told, and what it ran on.

Its modules:

    blueprint                                   bytes of shared memory, and what each process is told at its birth
    processes                                   which process holds which roles, and which memory it may map
    budget, cpu_time                            counters, stop conditions and clocks; time of the processor
    event_log                                   what happens, as events of the log
    provenance, results                         what a run ran on, and what it comes back with
"""
