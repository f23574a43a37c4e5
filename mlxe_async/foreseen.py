"""What a checkpoint must hold, by the settings of its run: known before any of its weights takes memory.

A manifest whose checksum fits may still have been written by anybody, and tell of any shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mlxe_async.algorithms import Algorithm, load_algorithm
from mlxe_async.errors import ResourceError, RunFailed
from mlxe_async.rows import Spaces
from mlxe_async.settings import Settings, algorithm_problems
from mlxe_async.settings.problems import dotted
from mlxe_async.storage.checkpoints import Unfit, check_facts
from mlxe_async.storage.safe_text import visible

COPIES = 8
"""So often the weights are in memory at once at most, while they are loaded."""
ODD_VALUES = (ArithmeticError, AttributeError, BufferError, LookupError, TypeError, ValueError)
"""What is raised where values are of the right types and do not fit together."""


class Foreseen:
    """Judges the facts of checkpoints, as `checkpoints.load` takes it.

    Args:
        settings: of the run.
        available: bytes of memory that there are.
    """

    def __init__(self, settings: Settings, available: int) -> None:
        self._settings, self._available = settings, available

    def __call__(self, facts: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        """See that they tell of what the run's algorithm makes of them, and that it fits into memory.

        Raises:
            Misfit: a fact is not what it must be.
            Unfit: they do not fit the settings, or the tensors.
            RunFailed: the algorithm no longer takes the run's settings.
            ResourceError: there is too little memory for the weights.
        """
        check_facts(facts, tensors)
        told = [(name, tuple(shape)) for name, shape in facts["parameters"]]
        expected = self._expected(Spaces.from_json(facts["spaces"]))
        if expected is not None and told != [(name, tuple(shape)) for name, shape in expected]:
            name = visible(self._settings.algorithm.name)
            raise Unfit(f"its weights are not those that {name} has with these settings, in this task")
        needed = COPIES * 4 * sum(math.prod(shape) for _, shape in told)
        if needed > self._available:
            most, there = f"{needed / 2**30:.1f} GiB", f"{self._available / 2**30:.1f} GiB"
            raise ResourceError(f"loading these weights may take {most} of memory, and there are {there}")

    def _expected(self, spaces: Spaces) -> Any:
        kind, settings = algorithm_of(self._settings)
        tell = getattr(kind, "parameters_for", None)  # one of the user's own need not be derived from ours
        try:
            return None if tell is None else tell(settings, spaces)
        except ODD_VALUES as error:
            raise Unfit(f"its facts do not fit the run's settings: {visible(str(error), 500)}") from error


def algorithm_of(settings: Settings, fields: Mapping[str, Any] | None = None) -> tuple[type[Algorithm], Any]:
    """The run's algorithm and its settings, some of them changed as far as it has them.

    Raises:
        RunFailed: it no longer takes the settings that the run was made with.
        SettingsError: there is no such algorithm, or it cannot be imported.
    """
    name = settings.algorithm.name
    kind = load_algorithm(name)
    known = kind.Settings.model_fields
    table = {**settings.algorithm.table, **{key: value for key, value in (fields or {}).items() if key in known}}
    if "name" not in known:
        del table["name"]
    if problems := algorithm_problems(kind.Settings, table):
        unfit = ", ".join(dotted(problem.path) for problem in problems)
        raise RunFailed(f"the run was made with settings that {visible(name)} no longer takes: {visible(unfit, 500)}")
    return kind, kind.Settings.model_validate(table)
