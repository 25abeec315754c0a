"""A reader of the words of a GQL query."""

from collections.abc import Callable
from typing import TypeVar

from userlock_emulator.datastore.errors import DatastoreError
from userlock_emulator.datastore.gql_lexer import Sort, Token, tokens, unexpected

_T = TypeVar("_T")


class Words:
    """A query's words, and a position among them. A missing mandatory word raises."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = tokens(text)
        self._position = 0

    @property
    def next(self) -> Token:
        """Return the next word."""
        return self._tokens[self._position]

    def advance(self) -> Token:
        """Take the next word, whichever it is."""
        token = self.next
        self._position += 1
        return token

    def peek(self, *words: str) -> bool:
        """Return whether one of these keywords comes next."""
        return self.next.sort is Sort.NAME and self.next.text.upper() in words

    def follows(self, *symbols: str) -> bool:
        """Return whether the word after the next is one of these symbols."""
        if self.next.sort is Sort.END:
            return False
        token = self._tokens[self._position + 1]
        return token.sort is Sort.SYMBOL and token.text in symbols

    def at_function(self, *names: str) -> bool:
        """Return whether one of these names comes next, with a parenthesis behind it."""
        return self.peek(*names) and self.follows("(")

    def word(self, word: str) -> bool:
        """Take a keyword if it comes next."""
        found = self.peek(word)
        self._position += found
        return found

    def keyword(self, word: str) -> None:
        """Take a keyword that must come next."""
        if not self.word(word):
            raise self.unexpected(word)

    def accept(self, symbol: str) -> bool:
        """Take a symbol if it comes next."""
        found = self.next.sort is Sort.SYMBOL and self.next.text == symbol
        self._position += found
        return found

    def symbol(self, symbol: str) -> None:
        """Take a symbol that must come next."""
        if not self.accept(symbol):
            raise self.unexpected(f'"{symbol}"')

    def several(self, rule: Callable[[], _T]) -> list[_T]:
        """Apply a rule once or more often, with commas between; return the results."""
        found = [rule()]
        while self.accept(","):
            found.append(rule())
        return found

    def parenthesized(self, rule: Callable[[], _T]) -> _T:
        """Apply a rule between parentheses; return its result."""
        self.symbol("(")
        found = rule()
        self.symbol(")")
        return found

    def name(self) -> str:
        """Take a name, in backquotes or not."""
        if self.next.sort not in (Sort.NAME, Sort.QUOTED_NAME):
            raise self.unexpected("a name")
        return self.advance().text

    def dotted_name(self) -> str:
        """Take the name of a property: several names with dots between."""
        names = [self.name()]
        while self.accept("."):
            names.append(self.name())
        return ".".join(names)

    def unexpected(self, expected: str) -> DatastoreError:
        """Return the error for an unexpected next word."""
        return unexpected(self.text, self.next, expected)
