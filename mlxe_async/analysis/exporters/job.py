"""One export: the lines of a run's log, so far or as they come, brought to an exporter until the run has ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mlxe_async.analysis.endings import ending_of, said_of
from mlxe_async.analysis.exporters import Exporter
from mlxe_async.errors import ResourceError, RunFailed
from mlxe_async.logs.reader import follow, log_of, read_log
from mlxe_async.storage.run_folder import is_held
from mlxe_async.storage.safe_text import visible

FLUSH_S = 0.5


class Job:
    """Brings the lines of a run to an exporter, which is made with the first of them.

    Args:
        run: as for `read_log`.
        make: makes an exporter for a folder.
        folder: where it writes.
    """

    def __init__(self, run: str, make: Callable[[Path], Exporter], folder: Path) -> None:
        self._run, self._make, self._folder = run, make, folder
        self._held: bool | None = None
        self._is_judged = self._has_end = False
        self._last = ""
        self._fed: list[list[int]] = []  # numbers of lines, as first and last of those in a row
        self.exporter: Exporter | None = None

    def read(self) -> None:
        """Take in all lines so far.

        Raises:
            NotFound: there is no such run.
            ResourceError: the files cannot be written.
            RunFailed: the log is none of this program's.
        """
        with self._told():
            self._held = is_held(log_of(self._run).parent)  # before: what a run wrote before it died is still told
            for line in read_log(self._run):
                self._feed(line)
            self._is_judged = True

    async def follow(self) -> None:
        """Take in all lines until the run ends; raises as `read` does."""
        with self._told():
            while not await self._is_followed():
                pass
            self._held = is_held(log_of(self._run).parent)
            self._is_judged = True

    def close(self) -> None:
        """Write what is left, and that the run died, if it did.

        Raises:
            ResourceError: it cannot be written.
        """
        if self.exporter is not None:
            with self._told():
                self.exporter.close(self.ending() if self._is_judged and self._held is False else "")

    def ending(self) -> str:
        """Return how a run ended that has no last word, and when that was; empty where it has one."""
        said = said_of(ending_of(has_end=self._has_end, is_held=self._held))
        return f"{said}, its last line is of {self._last}" if said else ""

    async def _is_followed(self) -> bool:
        """Follow the run; False: what was exported is void now, and all is to be taken in anew."""
        flushing = asyncio.create_task(self._flush_again_and_again())
        try:
            async for line in follow(self._run):
                if flushing.done():
                    await flushing
                if self._makes_void(line):
                    self._begin_anew()
                    return False
                self._feed(line)
        finally:
            flushing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await flushing
        return True

    async def _flush_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            if self.exporter is not None:
                self.exporter.flush()

    def _makes_void(self, line: Mapping[str, Any]) -> bool:
        """Return whether a line undoes lines that were exported, which the exporter cannot take back."""
        first, last = line.get("void_from"), line.get("void_to")
        if line.get("event") != "run_resume" or type(first) is not int or type(last) is not int:
            return False
        was_fed = any(begin <= last and first <= end for begin, end in self._fed)
        return was_fed and self.exporter is not None and not self.exporter.forgets

    def _begin_anew(self) -> None:
        assert self.exporter is not None  # noqa: S101 - lines were exported
        self.exporter.close()
        self.exporter, self._has_end = None, False
        self._fed.clear()

    def _feed(self, line: Mapping[str, Any]) -> None:
        if self.exporter is None:
            self.exporter = self._make(self._folder)
        self.exporter.feed(line)
        self._has_end = line["event"] == "run_end" or (self._has_end and line["event"] != "run_start")
        self._last = visible(str(line["ts"]), 60)
        number = line.get("seq")
        if type(number) is int:
            if self._fed and self._fed[-1][1] == number - 1:
                self._fed[-1][1] = number
            else:
                self._fed.append([number, number])

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Have what goes wrong told in a line."""
        try:
            yield
        except OSError as error:
            folder = visible(str(self._folder), 200)
            raise ResourceError(f"{folder} cannot be written to: {error.strerror or error}") from error
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            run = visible(self._run, 200)
            raise RunFailed(f"{run}: expected a log of this program, a line of it cannot be used: {error!r}") from error
