"""Ten questions of a newcomer and ten of an operator: the pages answer each of them.

Each has its page, and words of it that a change of the page must keep, or say in another place.
"""

import pytest

from tests.documents import Page

NEWCOMER = {
    "What do I install, and what do I need?": (
        "README.md",
        "pip install '.[flask]' ./emulator",
        "Python ≥ 3.11",
        "google-cloud-ndb ≥ 2.3",
    ),
    "What happens if a handler forgets the lock?": (
        "README.md",
        "Without the `with` the put raises",
        "PutWithoutLock",
        "To fix it",
    ),
    "Do reads need the lock?": ("README.md", "Reads without a put need no lock."),
    "Which lock guards which entity?": (
        "docs/models.md",
        "which lock guards its entities",
        "the name of a property, or a method",
        "`_lock_id_from_key`",
    ),
    "What does the client get if the lock is not free in time?": (
        "docs/web.md",
        "| `LockTimeout` | 503, or 409 with `contention_status=409` | 1 | retry |",
        "RFC 9457",
    ),
    "How long does a crashed request block its user?": (
        "README.md",
        "after about 60 seconds, or 10 with `heartbeat=True`",
    ),
    "How do I change the entities of two users, all or nothing?": (
        "docs/transactions.md",
        "all or nothing: `global_locks([ann, bob])`, with a transaction inside",
    ),
    "My work takes longer than the lease. What do I do?": (
        "docs/reference/locks.md",
        "do long work: `heartbeat=True`, or `lock.extend(30)` between its steps",
    ),
    "How do I test a handler without servers?": (
        "docs/testing.md",
        "locks in memory, and an empty Datastore for each test",
        "finds the plugins",
    ),
    "A user clicks twice. How does the request happen once?": (
        "docs/requests.md",
        "@flows.idempotent(user=signed_in)",
        "in the header `Idempotency-Key`",
        "hidden field",
    ),
}
OPERATOR = {
    "Which store do I choose for a new site?": (
        "docs/deploy.md",
        "| Memorystore for Valkey or Redis |",
        "for new sites",
    ),
    "How many threads does a worker need?": (
        "docs/deploy.md",
        "one user occupies at most six threads",
        "at least 8 threads",
        "two more than it",
    ),
    "One user always gets 503. What do I do?": (
        "docs/operate.md",
        "userlock holder ann",
        "userlock break ann --yes",
        "*Do not* delete the key",
    ),
    "memcached was restarted. Is anything lost?": (
        "docs/guarantees.md",
        "Guarantee 1 still holds",
        "| restart | all records lost |",
    ),
    "What wakes me at night?": (
        "docs/operate.md",
        "Page somebody",
        "`store-down`",
        "`timeouts`",
        "`late-jobs`",
        "`dead-jobs`",
    ),
    "Where do I run `userlock` on Cloud Run?": (
        "docs/operate.md",
        "gcloud run jobs execute operate",
        "--args=break,ann,--yes",
    ),
    "Jobs are dead. How do they run again?": (
        "docs/operate.md",
        "userlock outbox list --dead",
        "userlock outbox redrive --cause",
        "--rate 20",
    ),
    "How do I move to another store or prefix?": (
        "docs/migrate.md",
        "at the quietest hour",
        "colliding writes get 409, nothing is lost",
    ),
    "Which rows of the library belong in backups, and which go by themselves?": (
        "docs/operate.md",
        "## Rows of the library",
        "in backups",
        "ttls update expire_at",
    ),
    "How do I rehearse a fail-over, and what is normal?": (
        "docs/operate.md",
        "## Fail-over drill",
        "failover locks",
        '"confirmed" within a second',
        "`0 lost`",
    ),
}


@pytest.mark.parametrize(
    ("page", "words"),
    [(p, w) for p, *w in (NEWCOMER | OPERATOR).values()],
    ids=[*NEWCOMER, *OPERATOR],
)
def test_the_page_answers(page: str, words: list[str]) -> None:
    text = " ".join(Page(page).text.split())
    assert [each for each in words if each not in text] == []
