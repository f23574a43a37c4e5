"""Environments that this program alone knows, such as those of a notebook's cells."""

from __future__ import annotations

import sys


def of_this_program(env: str) -> str:
    """That an environment is known here alone, as one that a notebook's cell registered, if it is so."""
    gymnasium = sys.modules.get("gymnasium")
    if env.partition(":")[0] != "__main__" and (gymnasium is None or env not in gymnasium.registry):
        return ""
    return (
        "; it is known to this program only, and made in other processes, which import modules: write it into a file, "
        'as envs.py, and name it: task.env = "envs:Name"'
    )
