"""What may be shown and written: control characters made visible, secrets left out."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

REDACTED = "<redacted>"

_SECRET = re.compile(r"secret|passw|passphrase|credential", re.IGNORECASE)
# "key" and "token" as words of a name only: `api_key` and `authToken` are secrets, `keep` and `monkey` are not.
_SECRET_WORD = re.compile(
    r"(?:^|[_\-.])(?:api_?)?(?:token|key)s?(?:$|[_\-.])|[a-z](?:Token|Key)s?(?:$|[A-Z_])", re.ASCII
)
_MAXIMUM_DEPTH = 20


def visible(text: str, limit: int = 0) -> str:
    r"""`text` on one line, harmless to a terminal: control, bidirectional and broken characters as `\x1b`, `\u202e`.

    Args:
        text: anything, from anywhere.
        limit: number of characters after which text is cut, with an ellipsis; 0 means never.
    """
    cut = text[:limit] if limit else text
    shown = cut if cut.isprintable() else "".join(map(_visible_character, cut))
    return shown + "…" if limit and len(text) > limit else shown


def _visible_character(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


_SCALARS = frozenset({int, float, str, bool, type(None)})


@functools.lru_cache(maxsize=1024)  # the same few names come with every line of a log
def is_secret(key: str) -> bool:
    """Return whether a value under this name should not be written anywhere."""
    return bool(_SECRET.search(key) or _SECRET_WORD.search(key) or _SECRET_WORD.search(key.lower()))


def redact(value: Any, depth: int = 0) -> Any:
    """A copy of nested mappings and sequences with every text under a secret name replaced.

    Numbers stay where the name only sounds like a token or a key (`max_tokens = 128`), and go under `password` or
    `secret`.
    """
    if type(value) in _SCALARS:  # most of what is written
        return value
    if depth > _MAXIMUM_DEPTH:
        return REDACTED
    if isinstance(value, Mapping):
        return {
            key: _hide(item, certain=bool(_SECRET.search(str(key)))) if is_secret(str(key)) else redact(item, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact(item, depth + 1) for item in value]
    return value


def _hide(value: Any, *, certain: bool) -> Any:
    if isinstance(value, Mapping):
        return {key: _hide(item, certain=certain) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hide(item, certain=certain) for item in value]
    if value is None or isinstance(value, bool) or (isinstance(value, int | float) and not certain):
        return value
    return REDACTED
