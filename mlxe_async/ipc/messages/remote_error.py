"""What a verb raised in a child, as its caller meets it in the supervisor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxe_async.errors import MlxeError

LONGEST_LINE = 300


class RemoteError(MlxeError):
    """A verb raised in the child, which lives on unless `fatal`. As text it is one line.

    Args:
        kind: name of the exception's class over there.
        message: its text.
        trace: its traceback as text.
        place: file and line that raised it, if it is none of our own errors.
        fatal: the child ends itself because of it.
        exit_code: of one of our own errors, else that of a failed run.
        details: the plain attributes of one of our own errors, such as `problems` or `env_index`.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        trace: str = "",
        *,
        place: str = "",
        fatal: bool = False,
        exit_code: int | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        said = first_line(f"{kind}: {message}")
        super().__init__(f"{said} ({place})" if place else said)
        self.kind = kind
        self.message = message
        self.trace = trace
        self.place = place
        self.fatal = fatal
        self.details = dict(details or {})
        if exit_code is not None:
            self.exit_code = exit_code


def first_line(text: str) -> str:
    """The first line of a text, with an ellipsis where more follows, or where it is long."""
    first, _, more = text.strip().partition("\n")
    cut = first.rstrip()[:LONGEST_LINE]
    return f"{cut} …" if more or len(first) > LONGEST_LINE else cut


def remote_error(error: Mapping[str, Any]) -> RemoteError:
    """The error of `birth.describe`, as a child sent it."""
    exit_code, details = error.get("exit_code"), error.get("details")
    return RemoteError(
        str(error.get("kind", "Exception")),
        str(error.get("message", "")),
        str(error.get("trace", "")),
        place=str(error.get("place", "")),
        fatal=error.get("fatal") is True,
        exit_code=exit_code if isinstance(exit_code, int) else None,
        details=details if isinstance(details, dict) else None,
    )
