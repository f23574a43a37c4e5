"""Saving a run and finding what to go on from: weights, whole checkpoints, and when a tested version is the one.

Its modules:

    due, weights                                when a whole checkpoint is due; the newest and the best tested weights
    solved                                      when a task counts as solved
    resume_point, saved_state, log_end          what a run goes on from: found, checked, and how its log ended
"""
