"""Arguments of a command: argparse, with mistakes told in one harmless line."""

from __future__ import annotations

import argparse
import functools
import textwrap
from typing import Any, NoReturn

from mlxe_async.errors import SettingsError
from mlxe_async.storage.safe_text import visible

WIDTH = 79  # columns of a page of help
RUN = 'folder of a run, its name in runs/, or "latest"'
CHECKPOINT = "best (of those tested), last, solved, or a number; when left out, solved if there is one, else last"
TRUST = "run code of a run from elsewhere: a module's name or a folder; may be repeated"


class Parser(argparse.ArgumentParser):
    """Like its parent, but a mistake is a `SettingsError`; options may not be shortened.

    Args:
        usage: arguments in short, the command first.
        about: what the command does.
        example: arguments that make sense, a command line in each line.
    """

    in_any_order = False

    def __init__(self, usage: str, about: str = "", example: str = "") -> None:
        lines = "".join(f"\n  python -m mlxe_async {line}" for line in example.splitlines())
        super().__init__(
            prog="python -m mlxe_async",
            usage=f"python -m mlxe_async {usage}",
            description="\n\n".join(textwrap.fill(part, WIDTH) for part in about.split("\n\n")),
            epilog=f"example:{lines}" if lines else None,
            formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, width=WIDTH, max_help_position=24),
            allow_abbrev=False,
        )

    def add_trust(self) -> None:
        """Take `--trust NAME`, as often as it is said, as a list `trust`."""
        self.add_argument("--trust", action="append", default=[], metavar="MODULE|FOLDER", help=TRUST)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The arguments; where `in_any_order` was set, words without a name may also stand behind options."""
        if self.in_any_order:
            return self.parse_intermixed_args(args, namespace)
        return super().parse_args(args, namespace)

    def format_help(self) -> str:
        """The page, in which the usage is wrapped too."""
        usage = f"usage: {self.usage}"
        wrapped = textwrap.fill(usage, WIDTH, subsequent_indent=" " * 7, break_long_words=False, break_on_hyphens=False)
        return super().format_help().replace(usage, wrapped, 1)

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        raise SettingsError([f"{visible(message, 300)}, expected: {self.usage}"])
