"""What a run looks like while it goes on: a picture drawn from its log, on a terminal or in plain lines.

`picture` knows what the events say, as `activity` in few numbers, `drawing` how that looks, and `display` when it is
shown. Nothing else than the log's events goes in, so that another process's run looks the same as one's own.
"""
