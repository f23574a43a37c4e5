"""Imported by a nursery: the kernel refuses it as many forks as REFUSED_FORKS says, as among too many processes."""

import os

fork, refused = os.fork, int(os.environ["REFUSED_FORKS"])


def refusing():
    global refused
    if refused:
        refused -= 1
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()


os.fork = refusing
