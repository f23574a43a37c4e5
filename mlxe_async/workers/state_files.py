"""The states of a process's roles, to files and back."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlxe_async.errors import ResourceError
from mlxe_async.ipc.shared.words import ProgressPage
from mlxe_async.rows import Array


class StateFiles:
    """The verbs by which the roles of a process write their state to files, and take it up from there.

    Args:
        roles: those of the process, by name.
        page: progress words.
        limit_s: a stretch without progress that counts as hanging.
    """

    def __init__(self, roles: Mapping[str, Any], page: ProgressPage, limit_s: float) -> None:
        self._roles, self._page, self._limit_s = roles, page, limit_s

    def save(self, *, name: str, path: str) -> dict[str, Any]:
        """Write the state of the role called `name` to a new file.

        Returns:
            `nbytes` and `sha256` of the file, and `facts` that the role told besides.
        """
        from mlxe_async.storage.array_files import write_arrays

        self._tick()
        state = self._roles[name].state()
        arrays, facts = state if isinstance(state, tuple) else (state, {})
        if name.startswith("executor"):
            arrays = arrays | chance_state()
        try:
            written = write_arrays(Path(path), arrays, self._tick)
        except OSError as error:
            raise ResourceError(f"{name}: its state cannot be written: {error.strerror or error}") from error
        finally:
            self._page.leave()
        return {"nbytes": written.nbytes, "sha256": written.sha256, "facts": facts}

    def restore(self, *, name: str, path: str) -> dict[str, Any]:
        """Have the role called `name` go on from what is in a file; returns what it says to that."""
        from mlxe_async.storage.array_files import read_arrays

        self._tick("restore")
        # The memory and what waited in the lanes are in their segments already.
        arrays = read_arrays(Path(path), lambda array: not array.startswith(("memory.", "waiting.")))
        self._page.leave()
        said: dict[str, Any] = self._roles[name].restore(arrays)
        if name.startswith("executor"):
            take_up_chance(arrays)
        return said

    def _tick(self, call: str = "save") -> None:
        self._page.leave()
        self._page.enter(self._limit_s, call)


def chance_state() -> dict[str, Array]:
    """The state of the global generators, which some environments use, as arrays."""
    _, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "chance.python": np.array(words, np.uint32),
        "chance.gauss": np.array(np.nan if gauss is None else gauss),
        "chance.numpy": np.asarray(keys),
        "chance.position": np.array([position, has_gauss]),
        "chance.cached": np.array(cached),
    }


def take_up_chance(state: Mapping[str, Array]) -> None:
    """Let the global generators go on from there."""
    gauss = float(state["chance.gauss"])
    words = tuple(map(int, state["chance.python"]))
    random.setstate((3, words, None if np.isnan(gauss) else gauss))
    position, has_gauss = state["chance.position"].tolist()
    np.random.set_state(("MT19937", state["chance.numpy"], position, has_gauss, float(state["chance.cached"])))
