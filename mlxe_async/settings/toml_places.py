"""The place of each key of a TOML text, found before the text is parsed.

The standard library's parser gives values without line numbers, and has no limits: a few kilobytes of nested brackets
or a key of ten thousand parts occupy it for seconds or end in a RecursionError. This scanner reads the same text token
by token in linear time, notes the line of every key and refuses what is unreasonable. It judges no syntax: on malformed
text it returns what it has, and the parser, which comes next, says what is wrong.
"""

from __future__ import annotations

import re
import string
import tomllib
from collections.abc import Iterator

Path = tuple[str | int, ...]

MAXIMUM_DEPTH = 16
MAXIMUM_KEY_PARTS = 8
MAXIMUM_DIGITS = 64
MAXIMUM_KEYS = 2000
MAXIMUM_PLACES = 20_000  # places of list items beyond are not kept; their list's is

# Possessive loops with an optional end: an unterminated string is one token, so that nothing is scanned twice.
_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r]+|\#[^\n]*+)
    | (?P<newline>\n)
    | (?P<text>\"{3}(?:[^"\\]|\\.|"(?!""))*+(?:"{3,5})?
             | '{3}(?:[^']|'(?!''))*+(?:'{3,5})?
             | \"(?:[^"\\\n]|\\[^\n])*+"?
             | '[^'\n]*+'?)
    | (?P<bare>[^\s\[\]{}=,.\#"']+)
    | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL,
)


class TooMuch(ValueError):
    """The text goes beyond a limit; `line` says where."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


class _Malformed(Exception):
    """Not TOML; the parser will say why."""


class _Token:
    __slots__ = ("kind", "line", "start", "text")

    def __init__(self, kind: str, text: str, line: int, start: int) -> None:
        self.kind = kind
        self.text = text
        self.line = line
        self.start = start


def find_places(text: str) -> dict[Path, int]:
    """The line, counted from 1, of every table, key and list item in a TOML text.

    Raises:
        TooMuch: nesting, the parts of a key or the digits of a number are beyond the limits.
    """
    scanner = _Scanner(text)
    try:
        scanner.document()
    except _Malformed:
        pass
    except StopIteration:  # pragma: no cover - the end token stops every loop first
        pass
    return scanner.places


class _Scanner:
    def __init__(self, text: str) -> None:
        self.places: dict[Path, int] = {}
        self._keys = 0
        self._tokens = _tokens(text)
        self._items: dict[Path, int] = {}  # [[arrays of tables]] and how many items they have so far
        self._token = next(self._tokens)

    def document(self) -> None:
        prefix: Path = ()
        while self._token.kind != "end":
            if self._token.kind == "newline":
                self._advance()
            elif self._token.text == "[":
                prefix = self._header()
            else:
                self._pair(prefix, depth=0)

    def _advance(self) -> _Token:
        token = self._token
        if token.kind != "end":
            self._token = next(self._tokens)
        return token

    def _header(self) -> Path:
        opening = self._advance()
        self._count_key(opening.line)
        is_item = self._token.text == "[" and self._token.start == opening.start + 1
        if is_item:
            self._advance()
        key = self._key()
        path: Path = ()
        for position, part in enumerate(key):
            path += (part,)
            if path in self._items and position < len(key) - 1:
                path += (self._items[path] - 1,)
        self.places.setdefault(path, opening.line)
        if is_item:
            self._items[path] = self._items.get(path, 0) + 1
            path += (self._items[path] - 1,)
            self.places[path] = opening.line
        while self._token.kind not in ("newline", "end"):
            self._advance()
        return path

    def _pair(self, prefix: Path, depth: int) -> None:
        line = self._token.line
        path = prefix + self._key()
        self._count_key(line)
        for length in range(len(prefix) + 1, len(path) + 1):
            self.places.setdefault(path[:length], line)
        if self._token.text != "=":
            raise _Malformed
        self._advance()
        self._value(path, depth)

    def _count_key(self, line: int) -> None:
        self._keys += 1
        if self._keys > MAXIMUM_KEYS:
            raise TooMuch(line, f"more than {MAXIMUM_KEYS} keys, expected at most that many")

    def _key(self) -> tuple[str, ...]:
        parts = [self._key_part()]
        while self._token.text == "." and self._token.kind == "mark":
            line = self._advance().line
            if len(parts) == MAXIMUM_KEY_PARTS:
                raise TooMuch(line, f"a key of more than {MAXIMUM_KEY_PARTS} parts, expected at most that many")
            parts.append(self._key_part())
        return tuple(parts)

    def _key_part(self) -> str:
        token = self._advance()
        if token.kind == "bare":
            return token.text
        if token.kind != "text" or token.text[:3] in ('"""', "'''"):
            raise _Malformed
        try:
            return str(tomllib.loads(f"k={token.text}")["k"])
        except ValueError:
            raise _Malformed from None

    def _value(self, path: Path, depth: int) -> None:
        token = self._token
        if token.kind == "mark" and token.text in "[{":
            if depth == MAXIMUM_DEPTH:
                raise TooMuch(token.line, f"values nested more than {MAXIMUM_DEPTH} deep, expected at most that depth")
            self._advance()
            (self._list if token.text == "[" else self._inline_table)(path, depth + 1)
            return
        while not (
            self._token.kind in ("newline", "end") or (self._token.kind == "mark" and self._token.text in ",]}")
        ):
            token = self._advance()
            digits = string.hexdigits if token.text.startswith("0x") else string.digits
            if token.kind == "bare" and sum(token.text.count(digit) for digit in digits) > MAXIMUM_DIGITS:
                raise TooMuch(token.line, f"a number of {len(token.text)} digits, expected at most {MAXIMUM_DIGITS}")

    def _list(self, path: Path, depth: int) -> None:
        index = 0
        while True:
            self._skip_newlines()
            if self._token.kind == "end":
                raise _Malformed
            if self._token.kind == "mark" and self._token.text == "]":
                self._advance()
                return
            if len(self.places) < MAXIMUM_PLACES:
                self.places[(*path, index)] = self._token.line
            self._value((*path, index), depth)
            index += 1
            self._separator("]")

    def _inline_table(self, path: Path, depth: int) -> None:
        while True:
            self._skip_newlines()
            if self._token.kind == "mark" and self._token.text == "}":
                self._advance()
                return
            self._pair(path, depth)
            self._separator("}")

    def _separator(self, closing: str) -> None:
        self._skip_newlines()
        if self._token.kind == "mark" and self._token.text == ",":
            self._advance()
        elif self._token.text != closing:
            raise _Malformed

    def _skip_newlines(self) -> None:
        while self._token.kind == "newline":
            self._advance()


def _tokens(text: str) -> Iterator[_Token]:
    line = 1
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "mark"
        token = match.group()
        if kind != "space":
            yield _Token(kind, token, line, match.start())
        if kind in ("newline", "text"):
            line += token.count("\n")
    yield _Token("end", "", line, len(text))
