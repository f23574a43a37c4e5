"""Waiting for a word of shared memory to change, and waking those who wait: Linux's futex(2), across processes.

Python offers no such call. Where the machine's number of it is not known here, waiting is a short sleep.
"""

from __future__ import annotations

import functools
import platform
import time
from typing import Any

_NUMBERS = {"x86_64": 202, "AMD64": 202, "aarch64": 98, "riscv64": 98}
_WAIT, _WAKE, _EVERYONE = 0, 1, 2**31 - 1
_SLEEP_S = 100e-6


class Futex:
    """The low half of a word in shared memory, as processes wait for it.

    Args:
        words: memory of whole words of 64 bits, as `memoryview.cast("Q")` gives it.
        place: which of them.
    """

    def __init__(self, words: memoryview, place: int) -> None:
        import ctypes  # its import takes 10 ms, and few processes wait this way

        self._library = ctypes.CDLL(None, use_errno=True)
        self._number = _NUMBERS.get(platform.machine())
        self._held = (ctypes.c_uint32 * 2).from_buffer(words, 8 * place)
        self._address = ctypes.addressof(self._held)

    def wait(self, known: int, seconds: float) -> None:
        """Sleep until the word is no longer what was `known`, a `wake` comes, or time is up.

        May return earlier: look at the word again.
        """
        if self._number is None:
            time.sleep(min(_SLEEP_S, seconds))
            return
        limit = _timespec()(int(seconds), int(seconds % 1 * 1e9))
        self._library.syscall(self._number, self._place(), _WAIT, _word(known), _pointer(limit), None, 0)

    def wake(self) -> None:
        """Wake all that wait for this word."""
        if self._number is not None:
            self._library.syscall(self._number, self._place(), _WAKE, _EVERYONE, None, None, 0)

    def release(self) -> None:
        """Let go of the memory."""
        del self._held
        self._address = 0

    def _place(self) -> Any:
        import ctypes

        return ctypes.c_void_p(self._address)


@functools.cache
def _timespec() -> Any:
    import ctypes

    return type("timespec", (ctypes.Structure,), {"_fields_": [("s", ctypes.c_long), ("ns", ctypes.c_long)]})


def _pointer(limit: Any) -> Any:
    import ctypes

    return ctypes.byref(limit)


def _word(value: int) -> Any:
    import ctypes

    return ctypes.c_uint32(value & 0xFFFFFFFF)
