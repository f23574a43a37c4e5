"""Exporters write what a log tells into files of other tools: each target is a module of this folder, and listed here.

An exporter takes in the lines of a log in their order, as they come, and knows nothing of where they come from.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from mlxe_async.errors import SettingsError


class Exporter(Protocol):
    """Writes the lines of one run into a folder of its own, which is made if it is not there.

    Files that an earlier export left there give way; others stay.
    """

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

    def close(self) -> None:
        """Write what is left, and close the files; may be called twice.

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
    """

    module: str
    about: str
    package: str = ""


TARGETS = {
    "tensorboard": Target(
        "mlxe_async.analysis.exporters.tensorboard", "event files of TensorBoard (extra: tensorboard)", "tensorboard"
    ),
    "csv": Target("mlxe_async.analysis.exporters.tables", "a CSV file for each kind of line"),
}


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
