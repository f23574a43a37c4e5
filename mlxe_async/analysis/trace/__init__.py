"""A run's log as one timeline of all its processes, in the trace-event format that Perfetto and Chrome open.

`timeline` takes in the lines, `sittings` makes their clocks one, `spans` lays phases on threads, `lives` those of
processes, `arrows` follows rollouts to batches and versions, `counters` keeps what changes, `details` says what is
shown of a line, and `chrome` writes the file. One pass over the log; a run that goes on, or was killed, has one too.
"""
