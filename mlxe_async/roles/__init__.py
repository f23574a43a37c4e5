"""Executor, memorizer, learner and evaluator as plain objects.

Its modules:

    executor, row_writer                        steps environments; writes rows into a lane
    executor_plan, places, history, legacy      what an executor is made with; what a successor takes up
    lessons, dealing, wrapper_states            what the next episodes are: stages, items of data, states of wrappers
    discounted, fault_budget                    returns of episodes under way, faults that are forgiven
    memorizer                                   takes blocks out of the lanes, keeps rows, draws plans
    learner                                     leaves out rows that are too old, updates, publishes
    keeping, states                             what a learner keeps for its successor, and how that takes it up
    likeness                                    compares what acts with the learner's own object before a publication
    promotion, best_score                       back to the best version after a while; networks by the best episode
    quantiles                                   quantiles of actions, weights and gradients, for the log
    team, worker                                several workers that make each update together
    parameter_server, pushing                   a learner that steps by pushed gradients, and the workers that push
    in_turn                                     workers of one process, one at a time
    evaluator, trials                           tests of frozen versions, and one such test with its rules
    benches, videos                             many versions at once on a task's own simulator; films
"""
