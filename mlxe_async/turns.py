"""Things that threads of a process share, and use one at a time."""

import threading

TORCHS_GENERATOR = threading.Lock()
"""Held by the thread whose numbers torch's generator draws, where several learn and act in one process."""
