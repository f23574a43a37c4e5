"""Executor, memorizer, learner and evaluator as plain objects."""
