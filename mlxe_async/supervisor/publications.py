"""How far the run was when each version was published: for the one that turns out to have solved the task."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

_FIELDS = np.dtype(
    [
        ("version", "i8"),
        ("episodes_started", "i8"),
        ("env_steps", "i8"),
        ("updates", "i8"),
        ("seconds", "f8"),
        ("cpu_seconds", "f8"),
        ("published_ns", "i8"),
    ]
)
_NAMES = _FIELDS.names or ()


class Publications:
    """The newest versions, and those that were put under test, in memory that does not grow.

    Args:
        newest: so many of the newest versions are known.
    """

    def __init__(self, newest: int = 4096) -> None:
        self._rows = np.zeros(newest, _FIELDS)
        self._rows["version"] = -1
        self._held: dict[int, dict[str, Any]] = {}

    def note(self, version: int, about: Mapping[str, Any]) -> None:
        """A version was published when the run was so far."""
        self._rows[version % len(self._rows)] = (version, *(about[name] for name in _NAMES[1:]))

    def hold(self, version: int) -> None:
        """A version is put under test: it must be known for as long as the verdict may take."""
        about = self.get(version)
        if about is not None:
            self._held[version] = about

    def release(self, still: Collection[int]) -> None:
        """The verdicts on all versions that were held are there, but for those that are `still` needed."""
        self._held = {version: about for version, about in self._held.items() if version in still}

    def get(self, version: int) -> dict[str, Any] | None:
        """What was noted of it, None if that is not known any more."""
        if version in self._held:
            return dict(self._held[version])
        row = self._rows[version % len(self._rows)].tolist()
        return dict(zip(_NAMES[1:], row[1:], strict=True)) if row[0] == version else None
