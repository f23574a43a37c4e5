"""Episodes as data: files of reset options, and seeds of levels, those of training apart from those of tests."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from mlxe_async.errors import TaskError
from mlxe_async.settings.task import Task, seeds_in

MOST_BYTES = 2**28
LONGEST_SHOWN = 60


class Items:
    """The items of a file, each read when it is asked for.

    Args:
        path: of a file of JSON objects, one a line; empty lines are passed over.
        key: of the settings, for what is wrong with it.

    Raises:
        TaskError: it cannot be read, or a line is none: file, line, got, expected.
    """

    def __init__(self, path: str, key: str) -> None:
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - as it was written, which may be a name that Path changes
                if (size := os.fstat(file.fileno()).st_size) > MOST_BYTES:
                    raise TaskError(f"{key}: {path}: got {size} bytes, expected at most {MOST_BYTES}")
                lines = file.read().split(b"\n")
        except OSError as error:
            raise TaskError(
                f"{key}: {path} cannot be read ({error.strerror}), expected JSON objects, one a line"
            ) from None
        self._lines = [line for line in lines if line.strip()]
        for number, line in enumerate(lines, 1):
            if line.strip() and not _is_object(line):
                got = ascii(line[:LONGEST_SHOWN])[1:]
                raise TaskError(f'{key}: {path}:{number}: got {got}, expected a JSON object such as {{"level": 3}}')
        if not self._lines:
            raise TaskError(f"{key}: {path}: got no item, expected JSON objects, one a line")

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, place: int) -> dict[str, Any]:
        """The item at a place, a fresh one each time: an environment may change it."""
        found: dict[str, Any] = json.loads(self._lines[place])
        return found


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


class EpisodeSet:
    """Seeds and options that episodes of a task are reset with, of its train set or of its test set.

    Args:
        task: with `seeds`, `reset_options` or `test_options`.
        evaluation: take the test set.

    Raises:
        TaskError: a file of items cannot be used.

    Attributes:
        seeds: of the set; None: any will do.
        items: of the set; None: there are none.
    """

    def __init__(self, task: Task, *, evaluation: bool) -> None:
        told, key = task.seeds, "test_options" if evaluation and task.test_options else "reset_options"
        self.seeds: Sequence[int] | None = None
        if told is not None:
            self.seeds = seeds_in(told.test if evaluation else told.train)
        path = getattr(task, key)
        self.items = None if path is None else Items(path, f"task.{key}")
        # Other seeds lead to one of the set; a test's number always does, for tests count on from evaluation.seed.
        chosen = self.seeds
        self._known = () if evaluation or chosen is None else chosen if isinstance(chosen, range) else frozenset(chosen)

    def of(self, number: int, options: Mapping[str, Any] | None) -> tuple[int, Mapping[str, Any] | None]:
        """The seed and the options of an episode.

        Args:
            number: its seed, or the number of a test.
            options: those that it is to have; None: the item of this number, modulo how many there are.
        """
        seed = number
        if self.seeds is not None and number not in self._known:
            seed = self.seeds[number % len(self.seeds)]
        if options is None and self.items is not None:
            options = self.items[number % len(self.items)]
        return seed, options
