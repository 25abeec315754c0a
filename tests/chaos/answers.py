"""Requests with idempotency keys: each is done once, and all its senders get that answer.

A provider is asked with one key for each request, however often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tests.chaos.findings import Finding, Kind
from tests.chaos.history import History


def check_answers(
    history: History, entries: Sequence[str], unfinished: Sequence[str]
) -> Iterator[Finding]:
    """Yield the errors, except those that `writes` finds."""
    stored = frozenset(entries)
    done = Counter(request for entry, request in history.entered.items() if entry in stored)
    for request, count in done.items():
        if count > 1:
            yield Finding(Kind.TWICE, request, f"{count} entries")
    keys = set(history.charged)
    for request, count in Counter(request for _, request in keys).items():
        if count > 1:
            yield Finding(Kind.TWICE, request, f"the provider was asked with {count} keys")
    for key, count in Counter(key for key, _ in keys).items():
        if count > 1:
            yield Finding(Kind.STRAY, key, f"a provider's key of {count} requests")
    for request, entry in sorted(set(history.answers)):
        of = history.entered.get(entry)
        if of != request:
            yield Finding(Kind.STRAY, request, f"has the answer of {of}, {entry}")
        elif entry not in stored:
            yield Finding(Kind.LOST, entry, f"though it is the answer of {request}")
    for request in unfinished:
        yield Finding(Kind.LEFT, request, "an unfinished request")
