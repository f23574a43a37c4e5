"""Arguments of a command: argparse, with mistakes told in one harmless line."""

from __future__ import annotations

import argparse
import functools
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from mlxe_async.cli.console import Console
from mlxe_async.errors import SettingsError
from mlxe_async.storage.files import is_file, is_folder
from mlxe_async.storage.run_folder import find_run, newest_named
from mlxe_async.storage.safe_text import visible

WIDTH = 79  # columns of a page of help
RUN = 'folder of a run, its name or run.name in runs/, or "latest"'
CHECKPOINT = "best (of those tested), last, solved, or a number; when left out, solved if there is one, else last"
TRUST = "run code of a run from elsewhere: a module's name or a folder; may be repeated"


_NEGATIVE = re.compile(r"-\.?\d")


class Parser(argparse.ArgumentParser):
    """Like its parent, but a mistake is a `SettingsError`; options may not be shortened.

    Args:
        usage: arguments in short, the command first.
        about: what the command does.
        example: arguments that make sense, a command line in each line.
    """

    in_any_order = False
    _finds_runs = False
    _given: Sequence[str] = ()

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

    def add_dir(self) -> None:
        """Take `--dir FOLDER`, in which runs are that are named, and make paths of the names of runs."""
        self.add_argument("--dir", metavar="FOLDER", help="where runs are that are named; runs when left out")
        self._finds_runs = True

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The arguments; where `in_any_order` was set, words without a name may also stand behind options."""
        self._given = list(args or ())
        args = None if args is None else self._joined(args)
        if self.in_any_order:
            asked = self.parse_intermixed_args(args, namespace)
        else:
            asked = super().parse_args(args, namespace)
        if self._finds_runs:
            if hasattr(asked, "runs"):
                asked.runs = [_found(run, asked.dir) for run in asked.runs]
            else:
                asked.run = _found(asked.run, asked.dir)
        return asked

    def _joined(self, words: Sequence[str]) -> list[str]:
        """The words; numbers behind an option are its own, also where the first is negative: `--thresholds -4,-2`."""
        found = list[str]()
        for word in words:
            action = self._option_string_actions.get(found[-1]) if found else None
            if action is not None and action.nargs is None and _NEGATIVE.match(word):
                found[-1] += f"={word}"
            else:
                found.append(word)
        return found

    def format_help(self) -> str:
        """The page, in which the usage is wrapped too."""
        usage = f"usage: {self.usage}"
        wrapped = textwrap.fill(usage, WIDTH, subsequent_indent=" " * 7, break_long_words=False, break_on_hyphens=False)
        return super().format_help().replace(usage, wrapped, 1)

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting; options of other packages are answered."""
        from mlxe_async.cli.elsewhere import answered_by

        if self._given and (told := answered_by(self.usage or "", self._given, self._option_string_actions)):
            raise SettingsError([told])
        raise SettingsError([f"{visible(message, 300)}, expected: {self.usage}"])


def _is_there(path: Path) -> bool:
    return is_folder(path) or is_file(path)


def _found(run: str, folder: str | None) -> str:
    """The run as it was named, or its path where it is in another folder or was named by `run.name`."""
    base = Path("runs" if folder is None else folder)
    if _is_there(Path(run)) and (folder is None or run != "latest"):
        return run
    if _is_there(base / run):
        return run if folder is None else str(base / run)
    if newest := newest_named(run, base):
        Console(sys.stderr).line(f"{visible(run, 200)} is {visible(str(base / newest.name), 200)}")
        return str(newest)
    return run if folder is None else str(find_run(run, base))
