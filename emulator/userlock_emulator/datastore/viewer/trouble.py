"""Transactions, locks and faults, as documents: all that can keep a client waiting."""

import heapq
from collections.abc import Iterable
from typing import Any

from userlock_emulator.datastore.activity import MAX_NAMED, Activity, Holding, Waiting
from userlock_emulator.datastore.transactions import (
    IDLE_SECONDS,
    LIFETIME_SECONDS,
    Active,
    EntityId,
    Transaction,
)
from userlock_emulator.datastore.viewer import places
from userlock_emulator.datastore.viewer.store import Document

# A page shows this many transactions. It tells how many there are.
_MAX_SHOWN = 200


def transactions(activity: Activity) -> Document:
    """Return the active transactions, those first that others wait for, and the waiting requests.

    A transaction has `locks` in the pessimistic mode, and otherwise what it has `read`: these are
    the entities (or the roots of entity groups) whose change aborts it.
    """
    holdings = {holding.transaction.id: holding for holding in activity.locks.holdings}
    blocked: dict[bytes, list[str]] = {}
    for wait in activity.locks.waits:
        for blocker in wait.blockers:
            if blocker is not None:
                blocked.setdefault(blocker.id, []).append(_name(wait.transaction))
    shown = sorted(activity.transactions, key=lambda each: each.transaction.id not in blocked)
    return {
        "mode": activity.mode,
        "active": len(shown),
        "transactions": [
            _transaction(
                each,
                holdings.get(each.transaction.id),
                blocked.get(each.transaction.id, []),
            )
            for each in shown[:_MAX_SHOWN]
        ],
        "waiting": [_wait(wait) for wait in activity.locks.waits],
    }


def _transaction(active: Active, holding: Holding | None, blocks: list[str]) -> Document:
    transaction, age, idle = active
    read = () if holding is not None else tuple(transaction.keys_read)
    locks: Document = {"exclusive": [], "shared": [], "total": 0}
    if holding is not None:
        locks = {
            "exclusive": _keys(holding.exclusive),
            "shared": _keys(holding.shared),
            "total": holding.total,
        }
    return {
        "name": transaction.name,
        "id": transaction.id.hex(),
        "project": transaction.database[0],
        "database": transaction.database[1],
        "readOnly": transaction.read_only,
        "client": transaction.client,
        "ageSeconds": round(age, 1),
        "idleSeconds": round(idle, 1),
        "endsInSeconds": round(max(0.0, min(LIFETIME_SECONDS - age, IDLE_SECONDS - idle)), 1),
        "locks": locks,
        "read": {"entities": _keys(heapq.nsmallest(MAX_NAMED, read)), "total": len(read)},
        "queries": len(transaction.queries),
        "blocks": blocks,
    }


def _wait(wait: Waiting) -> Document:
    return {
        "transaction": None if wait.transaction is None else wait.transaction.name,
        "client": wait.client,
        "exclusive": wait.exclusive,
        "entities": _keys(wait.entities),
        "total": wait.total,
        "seconds": round(wait.seconds, 1),
        "behind": [_name(blocker) for blocker in wait.blockers],
    }


def _name(transaction: Transaction | None) -> str:
    return "a commit outside transactions" if transaction is None else transaction.name


def _keys(entities: Iterable[EntityId]) -> list[dict[str, Any]]:
    return [places.rest(places.decoded(*entity)) for entity in entities]
