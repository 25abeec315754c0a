"""Ten questions of a newcomer and ten of an operator: the pages answer each of them.

The answers are those of a reader who had the pages alone. Each has the page, and words of it that
a change of the page must keep, or say in another place.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.documents import Page


class Question(NamedTuple):
    """A question of a reader.

    Attributes:
        asks: the question.
        answer: in the reader's words.
        page: the page that has it.
        words: of that page.
    """

    asks: str
    answer: str
    page: str
    words: tuple[str, ...]


NEWCOMER = (
    Question(
        "What do I install, and what do I need?",
        "Python 3.11, ndb 2.3 and Datastore mode; from a checkout, with the emulator beside it.",
        "README.md",
        ("pip install '.[flask]' ./emulator", "Python ≥ 3.11", "google-cloud-ndb ≥ 2.3"),
    ),
    Question(
        "What happens if a handler forgets the lock?",
        "Its put raises PutWithoutLock with both call sites, before anything is sent.",
        "README.md",
        ("Without the `with` the put raises", "PutWithoutLock", "To fix it"),
    ),
    Question(
        "Do reads need the lock?",
        "Only if the entity is written afterwards: then read under the lock.",
        "README.md",
        ("Reads without a put need no lock.",),
    ),
    Question(
        "Which lock guards which entity?",
        "The model says it: by a property, a method, or from the key.",
        "docs/models.md",
        (
            "which lock guards its entities",
            "the name of a property, or a method",
            "`_lock_id_from_key`",
        ),
    ),
    Question(
        "What does the client get if the lock is not free in time?",
        "503 with Retry-After: 1, as a problem document; it should retry.",
        "docs/web.md",
        ("| `LockTimeout` | 503, or 409 with `contention_status=409` | 1 | retry |", "RFC 9457"),
    ),
    Question(
        "How long does a crashed request block its user?",
        "For the rest of its lease: 60 seconds, or 10 with heartbeat=True.",
        "README.md",
        ("after about 60 seconds, or 10 with `heartbeat=True`",),
    ),
    Question(
        "How do I change the entities of two users, all or nothing?",
        "global_locks around a transaction.",
        "docs/transactions.md",
        ("all or nothing: `global_locks([ann, bob])`, with a transaction inside",),
    ),
    Question(
        "My work takes longer than the lease. What do I do?",
        "heartbeat=True, or extend the lease between the steps.",
        "docs/reference/locks.md",
        ("do long work: `heartbeat=True`, or `lock.extend(30)` between its steps",),
    ),
    Question(
        "How do I test a handler without servers?",
        "With the fixtures of the pytest plugins: locks in memory, an emulator, no registration.",
        "docs/testing.md",
        ("locks in memory, and an empty Datastore for each test", "finds the plugins"),
    ),
    Question(
        "A user clicks twice. How does the request happen once?",
        "Give it an idempotency key, in the header or in a hidden field of the form.",
        "docs/requests.md",
        ("@flows.idempotent(user=signed_in)", "in the header `Idempotency-Key`", "hidden field"),
    ),
)

OPERATOR = (
    Question(
        "Which store do I choose for a new site?",
        "Memorystore for Valkey or Redis; a cluster if one failure must not affect all locks.",
        "docs/deploy.md",
        ("| Memorystore for Valkey or Redis |", "for new sites"),
    ),
    Question(
        "How many threads does a worker need?",
        "At least 8; with a larger max_waiting, two more than it. One user occupies at most six.",
        "docs/deploy.md",
        ("one user occupies at most six threads", "at least 8 threads", "two more than it"),
    ),
    Question(
        "One user always gets 503. What do I do?",
        "See who holds the lock; if the holder hangs, break it. Do not delete the key.",
        "docs/operate.md",
        ("userlock holder ann", "userlock break ann --yes", "*Do not* delete the key"),
    ),
    Question(
        "memcached was restarted. Is anything lost?",
        "All its locks, but no update: Datastore refuses stale writes, and clients get 409.",
        "docs/guarantees.md",
        ("Guarantee 1 still holds", "| restart | all records lost |"),
    ),
    Question(
        "What wakes me at night?",
        "Seven: store down, time-outs, stale writes, violations, late, unread and dead jobs.",
        "docs/operate.md",
        ("Page somebody", "`store-down`", "`timeouts`", "`late-jobs`", "`dead-jobs`"),
    ),
    Question(
        "Where do I run `userlock` on Cloud Run?",
        "As the job `operate`, in the site's network, with the command as its arguments.",
        "docs/operate.md",
        ("gcloud run jobs execute operate", "--args=break,ann,--yes"),
    ),
    Question(
        "Jobs are dead. How do they run again?",
        "Read the errors, fix the cause, and redrive them by cause, at a rate.",
        "docs/operate.md",
        ("userlock outbox list --dead", "userlock outbox redrive --cause", "--rate 20"),
    ),
    Question(
        "How do I move to another store or prefix?",
        "Deploy the new URL at the quietest hour: colliding writes get 409, nothing is lost.",
        "docs/migrate.md",
        ("at the quietest hour", "colliding writes get 409, nothing is lost"),
    ),
    Question(
        "Which rows of the library belong in backups, and which go by themselves?",
        "Jobs, requests, claims, quotas and deletions; leases do not. Requests go by a TTL policy.",
        "docs/operate.md",
        ("## Rows of the library", "in backups", "ttls update expire_at"),
    ),
    Question(
        "How do I rehearse a fail-over, and what is normal?",
        "Force one in staging under load: degraded locks, confirmed in a second, nothing lost.",
        "docs/operate.md",
        ("## Fail-over drill", "failover locks", '"confirmed" within a second', "`0 lost`"),
    ),
)


@pytest.mark.parametrize("question", [*NEWCOMER, *OPERATOR], ids=lambda each: each.asks)
def test_the_page_answers(question: Question) -> None:
    text = " ".join(Page(question.page).text.split())
    assert [words for words in question.words if words not in text] == []


def test_there_are_ten_of_each() -> None:
    assert len({each.asks for each in NEWCOMER}) == len({each.asks for each in OPERATOR}) == 10
