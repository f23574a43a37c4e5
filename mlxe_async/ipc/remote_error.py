"""What a verb raised in a child, as its caller meets it in the supervisor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxe_async.errors import MlxeError


class RemoteError(MlxeError):
    """A verb raised in the child, which lives on unless `fatal`.

    Args:
        kind: name of the exception's class over there.
        message: its text.
        trace: its traceback as text.
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
        fatal: bool = False,
        exit_code: int | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.trace = trace
        self.fatal = fatal
        self.details = dict(details or {})
        if exit_code is not None:
            self.exit_code = exit_code


def remote_error(error: Mapping[str, Any]) -> RemoteError:
    """The error of `birth.describe`, as a child sent it."""
    exit_code, details = error.get("exit_code"), error.get("details")
    return RemoteError(
        str(error.get("kind", "Exception")),
        str(error.get("message", "")),
        str(error.get("trace", "")),
        fatal=error.get("fatal") is True,
        exit_code=exit_code if isinstance(exit_code, int) else None,
        details=details if isinstance(details, dict) else None,
    )
