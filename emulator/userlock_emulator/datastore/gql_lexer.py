"""The words of GQL: names, literals, binding sites and symbols."""

import re
from enum import Enum, auto
from typing import NamedTuple

from userlock_emulator.datastore.errors import DatastoreError, invalid

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<DOUBLE>(?a:[+-]?(?:\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)))
    | (?P<INTEGER>(?a:[+-]?\d+))
    | @(?P<BINDING>(?a:\d+)|[^\W\d][\w$]*|\$[\w$]*)
    | (?P<NAME>(?:[^\W\d]|\$)[\w$]*)
    | (?P<QUOTED_NAME>`(?:[^`\\]|``|\\.)+`)
    | (?P<STRING>'(?:[^'\\]|''|\\.)*'|"(?:[^"\\]|""|\\.)*")
    | (?P<SYMBOL><=|>=|!=|[=<>(),.*+])
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)|(['\"`])\2", re.DOTALL)
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_SELF_ESCAPES = "\\'\"`%_"


class Sort(Enum):
    """The type of a token."""

    DOUBLE = auto()
    INTEGER = auto()
    BINDING = auto()
    NAME = auto()
    QUOTED_NAME = auto()
    STRING = auto()
    SYMBOL = auto()
    END = auto()


class Token(NamedTuple):
    """A word. `text` is its meaning, without quotes and escapes.

    `start` and `end` are its position in the query, in characters.
    """

    sort: Sort
    text: str
    start: int
    end: int


def gql_error(what: str) -> DatastoreError:
    """Return the error for a query that is not GQL, or does not match its bindings."""
    return invalid(f"GQL query error: {what}")


def tokens(text: str) -> list[Token]:
    """Return the words of a query, the end included.

    Raises:
        DatastoreError: INVALID_ARGUMENT.
    """
    found = []
    position = 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            start = len(text) - len(text[position:].lstrip())
            raise gql_error(f"lexical error at {_place(text, start)}.")
        raw, start = match[match.lastgroup], match.start(match.lastgroup)
        if match.lastgroup in ("STRING", "QUOTED_NAME"):
            raw = _unescape(raw[0], raw[1:-1])
        found.append(Token(Sort[match.lastgroup], raw, start, match.end()))
        position = match.end()
    found.append(Token(Sort.END, "", len(text), len(text)))
    return found


def unexpected(query: str, token: Token, expected: str) -> DatastoreError:
    """Return the error for a word in the wrong place."""
    found = f'"{query[token.start : token.end]}"' if token.sort is not Sort.END else "the end"
    return gql_error(f"expected {expected} instead of {found} at {_place(query, token.start)}.")


def _place(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    return f"line {line}, column {column}"


def _unescape(quote: str, text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        escaped = match[1]
        if escaped is None:
            # A quote of the other sort means itself, however often it occurs.
            return match[2] if match[2] == quote else match[0]
        if escaped in _SELF_ESCAPES:
            return escaped
        if escaped not in _ESCAPES:
            raise gql_error(f"unknown escape sequence \\{escaped}.")
        return _ESCAPES[escaped]

    return _ESCAPE.sub(replace, text)
