"""Things that threads of a process share, and use one at a time."""

import functools
import threading


@functools.cache
def torchs_generator() -> threading.Lock:
    """Held by the thread whose numbers torch's generator draws, where several learn and act in one process."""
    return threading.Lock()


torchs_generator()  # now: two threads that ask first could each make one
