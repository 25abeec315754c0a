"""The content of a record, parsed without the code under test."""

from __future__ import annotations

import json
from typing import NamedTuple


class Seen(NamedTuple):
    """The parts of a record that the watch needs."""

    holder: str
    done: dict[str, str]
    queue: tuple[str, ...]
    batch: frozenset[str]

    @property
    def released(self) -> bool:
        return self.holder in self.done


def parse_record(record: bytes) -> Seen:
    first, *lines = record.decode().split("\n")
    waiting: dict[str, str] = {}
    done: dict[str, str] = {}
    aged: set[str] = set()
    for line in lines:
        kind, token, *rest = line.split(" ", 2)
        if kind == "=":
            done.setdefault(token, " ".join(rest))
        elif kind == "^":
            aged.add(token)
        elif kind[0] in "+~":
            waiting.setdefault(token, kind[1])
    queue = tuple(token for token in waiting if token not in done)
    # Batch that is queued before an aged waiter ranks with it.
    behind = max((queue.index(token) + 1 for token in aged.intersection(queue)), default=0)
    return Seen(
        holder=str(json.loads(first)[0]),
        done=done,
        queue=queue,
        batch=frozenset(token for token in queue[behind:] if waiting[token] == "b"),
    )


def tokens_in(line: bytes) -> tuple[str, str]:
    """Return the prefix and the token of an appended line."""
    kind, token, *_ = line.decode().removeprefix("\n").split(" ", 2)
    return kind, token
