"""Places where the keys of a tree of settings were written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlxe_async.settings.problems import Path, Problem, dotted

BY_HAND = "settings"
"""Source of a tree that is no file, but a program's own mapping: it has no lines."""


class Places:
    """The place of each key, for later messages; two trees from different files may still be equal.

    Args:
        source: the file's name.
        places: of each key `file:line` or `--set a.b`.
        written: keys that the user wrote, the table's name first; whether by an override.
        remarks: what the loader passed over, in words.
    """

    def __init__(
        self,
        source: str = BY_HAND,
        places: dict[Path, str] | None = None,
        written: Mapping[Path, bool] | None = None,
        remarks: Sequence[str] = (),
    ) -> None:
        self.source = source
        self._places = places or {}
        self.written = written or {}
        self.remarks = tuple(remarks)
        self.automatic: frozenset[Path] = frozenset()
        'Keys that were left to this program, which put a value in the place of "auto".'

    def without_words(self) -> Places:
        """Copy the places, with all keys as defaults."""
        same = Places(self.source, self._places, remarks=self.remarks)
        same.automatic = self.automatic
        return same

    def of(self, path: Path) -> str:
        """`file:line` or `--set a.b` of a key, or of the nearest table around it that was written."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._places:
                return self._places[path[:length]]
        return self.source if self.source == BY_HAND else f"{self.source}:1"

    def line(self, problem: Problem) -> str:
        """One problem with its place in front."""
        other = f" ({self.of(problem.other)})" if problem.other and problem.other in self._places else ""
        return f"{self.of(problem.path)}: {dotted(problem.path)}: {problem.message}{other}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places)

    def __hash__(self) -> int:
        return 0
