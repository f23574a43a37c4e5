"""What compiles for torch: the C++ compiler that it would call."""

from __future__ import annotations

import os
import shutil


def cpp_compiler() -> str | None:
    """Path of the C++ compiler that torch would call, None if there is none."""
    return shutil.which(wanted_compiler())


def wanted_compiler() -> str:
    """Its name: that of the variable CXX, or g++."""
    return os.environ.get("CXX") or "g++"
