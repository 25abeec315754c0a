"""What a record says, read without the code under test."""

from __future__ import annotations

import json
from typing import NamedTuple


class Seen(NamedTuple):
    """A record, as far as the watch needs it.

    Attributes:
        holder: the token in its first line.
        done: the tokens that are done, and by whom if somebody else said so.
        line: the tokens that stand in line, in the order of the lines.
        batch: those of them that are batch, and do not rank with people yet.
    """

    holder: str
    done: dict[str, str]
    line: tuple[str, ...]
    batch: frozenset[str]

    @property
    def released(self) -> bool:
        return self.holder in self.done


def understand(record: bytes) -> Seen:
    """What stands in a record that userlock wrote."""
    first, *lines = record.decode().split("\n")
    waiting: dict[str, str] = {}
    done: dict[str, str] = {}
    aged: set[str] = set()
    for line in lines:
        mark, token, *rest = line.split(" ", 2)
        if mark == "=":
            done.setdefault(token, " ".join(rest))
        elif mark == "^":
            aged.add(token)
        elif mark[0] in "+~":
            waiting.setdefault(token, mark[1])
    line_now = tuple(token for token in waiting if token not in done)
    return Seen(
        holder=str(json.loads(first)[0]),
        done=done,
        line=line_now,
        batch=frozenset(t for t in line_now if waiting[t] == "b" and t not in aged),
    )


def tokens_in(line: bytes) -> tuple[str, str]:
    """The mark and the token of an appended line."""
    mark, token, *_ = line.decode().removeprefix("\n").split(" ", 2)
    return mark, token
