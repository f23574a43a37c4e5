"""The collaborators a schedule talks to: each verb is a call into a process that may die, hang or be restarted.

What happens then is decided here, once, so that the schedules need not know: an executor's rollout is begun again
(`executor`), rows stay in the lanes until the next memorizer takes them (`memorizer`), a test is repeated or dropped
(`evaluator`); the learner's handle is `supervisor.learning`. What they share is the `context`. `answers` says what an
answer must hold, `crashes` where an executor was when it died, and `process_events` tells the log of deaths and
restarts.
"""
