"""Where an exception comes from, in the words of whoever wrote the code."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

LONGEST = 300  # letters of what an exception says
_LIBRARIES = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib"))


def place_of(error: BaseException) -> str:
    """One line: the innermost line that is no library's, and what was raised there."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<") and not _is_library(frame.filename)]
    said = " ".join(str(error).split())[:LONGEST]
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    if not own:
        return what
    return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}: {what}"


def _is_library(filename: str) -> bool:
    path = Path(filename).resolve()
    return any(path.is_relative_to(folder) for folder in _LIBRARIES)
