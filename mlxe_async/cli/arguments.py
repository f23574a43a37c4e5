"""Arguments of a command: argparse, with mistakes told in one harmless line."""

from __future__ import annotations

import argparse
from typing import NoReturn

from mlxe_async.errors import SettingsError
from mlxe_async.logs.safe import visible


class Parser(argparse.ArgumentParser):
    """Like its parent, but a mistake is a `SettingsError`; options may not be shortened."""

    def __init__(self, usage: str) -> None:
        super().__init__(prog="python -m mlxe_async", usage=f"python -m mlxe_async {usage}", allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        raise SettingsError([f"{visible(message, 300)}, expected: {self.usage}"])
