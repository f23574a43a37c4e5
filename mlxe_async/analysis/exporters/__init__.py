"""Exporters write what a log tells into files of other tools: each target is a module of this folder, and listed here.

An exporter takes in the lines of a log in their order, as they come, and knows nothing of where they come from.

    job, beside                                 one export; an export while the run goes on
    cells, scalars                              a line as cells of a table; values by environment steps
    tables, parquet                             CSV and Parquet files
    tensorboard, wandb, mlflow                  files of these tools
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from mlxe_async.errors import SettingsError


class Exporter(Protocol):
    """Writes the lines of one run into a folder, which is made if it is not there.

    Files that an earlier export of the same run left there give way; others stay.

    Args:
        forgets: true if it takes back by itself what a resumption of the run made void; others begin anew then.
    """

    forgets: bool

    def feed(self, line: Mapping[str, Any]) -> None:
        """Take in the next line.

        Raises:
            OSError: it cannot be written.
            ValueError, KeyError, TypeError: it is no line of this program's.
        """

    def flush(self) -> None:
        """Let readers see all that was fed so far.

        Raises:
            OSError: it cannot be written.
        """

    def close(self, died: str = "") -> None:
        """Write what is left, and close the files; may be called twice.

        Args:
            died: of a run that died, a sentence that says so and when; it is kept where the format has room for it.

        Raises:
            OSError: it cannot be written.
        """

    def told(self) -> str:
        """Return in a few words how much was written, and how it is looked at."""


@dataclass(frozen=True)
class Target:
    """Something that can be exported to.

    Args:
        module: has a class `Files`, an exporter that is made with the folder.
        about: a few words for the page of help.
        package: a package that is needed and that is no dependency of this one, if any.
        shared: the folder may hold several runs, each in a place of its own; else each run needs one to itself.
    """

    module: str
    about: str
    package: str = ""
    shared: bool = False


TARGETS = {
    "tensorboard": Target(
        "mlxe_async.analysis.exporters.tensorboard", "event files of TensorBoard (extra: tensorboard)", "tensorboard"
    ),
    "wandb": Target(
        "mlxe_async.analysis.exporters.wandb", "an offline run of Weights & Biases (extra: wandb)", "wandb", shared=True
    ),
    "mlflow": Target("mlxe_async.analysis.exporters.mlflow", "a run in a file store of MLflow", shared=True),
    "csv": Target("mlxe_async.analysis.exporters.tables", "a CSV file for each kind of line"),
    "parquet": Target(
        "mlxe_async.analysis.exporters.parquet", "a Parquet file for each kind of line (extra: parquet)", "pyarrow"
    ),
}


def lacking(target: str) -> str:
    """Return which package a target lacks, and what brings it; empty if it lacks none. Nothing is imported."""
    package = TARGETS[target].package
    found = importlib.util.find_spec(package) if package else None
    if not package or (found is not None and found.origin is not None):  # a mere folder of that name has no origin
        return ""
    return f'{package} is not installed: pip install "mlxe_async[{target}]"'


def exporter_to(target: str) -> Callable[[Path], Exporter]:
    """Return what makes an exporter to one of `TARGETS`, which writes into the folder that it is given.

    Raises:
        SettingsError: a package is missing; the message names the extra that brings it.
    """
    chosen = TARGETS[target]
    try:
        module = importlib.import_module(chosen.module)
    except ModuleNotFoundError as error:
        if not chosen.package or (error.name or "").split(".")[0] != chosen.package:
            raise
        missing = f'pip install "mlxe_async[{target}]" ({error})'
        raise SettingsError([f"export --to {target}: needs a package that is not installed: {missing}"]) from error
    return cast("Callable[[Path], Exporter]", module.Files)
