"""Processes: the nursery that forks them, their lives and restarts, and the limits that the kernel sets.

Its modules:

    nursery, nursery_main, guard, birth         forks from a warm copy; what ends the rest; what a fork does first
    process, life, serve                        the supervisor's view of a child; one life of it, where hangs are
                                                seen and ended; and the child's side
    restarts                                    when, and how often, one is started again; when it counts as hung
    companion, companion_main                   processes beside a run that only look on
    linux, limits, named_memory, breakpoints    calls of Linux; control groups; what simulators leave; debuggers
"""
