"""Handles of the learner: alone, in a team of workers, or stepping by what workers push.

Its modules:

    learner                                     alone; a plan whose learner died is given up, its rows stay in memory
    team                                        with executors that make each update together with it
    pushing                                     stepping by what executors push
"""
