"""`python -m mlxe_async`: see `cli`."""

import contextlib
import os
import signal
import sys
from types import FrameType

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _stop(number: int, _frame: FrameType | None) -> None:
    """End by a signal as long as no command minds it: while its modules are imported, say."""
    with contextlib.suppress(OSError):  # its reader may be gone
        os.write(2, f"stopped by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)


def _command() -> int:
    before = signal.getsignal(signal.SIGINT)
    for number in _STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _stop)
    # The arrays of this process are small. And where OpenBLAS is refused a thread, it sends the process SIGINT.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from mlxe_async.cli import main

    signal.signal(signal.SIGINT, before)
    code = main(sys.argv[1:])
    for number in _STOPPING:  # all is said and done, while the interpreter takes its time to end
        signal.signal(number, signal.SIG_IGN)
    return code


if __name__ == "__main__":
    sys.exit(_command())
