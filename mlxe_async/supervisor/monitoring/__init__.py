"""What is watched beside the schedule as long as a run lasts: status, learner's core, slow executors, a late loop.

Its modules:

    periodic                                    periodic work beside the schedule
    status, pace, loop_lag                      status of the run; what limits its pace; a loop that is late
    stragglers, affinity                        slow executors; a core of its own for the learner
    exports                                     exports while a run goes on
"""
