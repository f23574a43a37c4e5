"""Everything before the first process plays: probe, limits of the host, and what a run goes on from is filled in.

Its modules:

    start                                       from settings to a run that can be assembled
    probe, surveying, preloading                a child tries task and algorithm; a closer look; modules before the fork
    cautions, host_limits                       what is unsound or odd; what the host allows
    restore                                     memory and roles from a checkpoint
"""
