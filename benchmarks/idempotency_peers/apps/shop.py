"""The shop behind each app: its provider, and its orders in SQLite. Standard library alone."""

from __future__ import annotations

import http.client
import json
import os
import sqlite3
from typing import Any

#: Whether the handler hands the client's key on to the provider.
HANDS_ON = os.environ.get("SHOP_HANDS_ON") == "1"
KEEP_SECONDS = int(os.environ.get("SHOP_KEEP_SECONDS", "86400"))


class Declined(Exception):
    """The provider's final refusal."""


class Unavailable(Exception):
    """The provider fails for now."""


def reach(point: str) -> None:
    """Report a point of the work. The provider may hold this process here."""
    _ask("/reach", {"point": point, "pid": os.getpid()})


def pay(reference: str, cents: int, key: str | None = None) -> str:
    """Charge a card, and return the charge.

    Raises:
        Declined: for ever.
        Unavailable: for now.
    """
    reach("before the charge")
    asked = {"reference": reference, "cents": cents, "key": key}
    status, said = _ask("/charge", asked)
    if status == 402:
        raise Declined("card declined")
    if status != 200:
        raise Unavailable("try again later")
    reach("charged")
    charge: str = said["charge"]
    return charge


def add_order(reference: str, charge: str) -> int:
    """Store a paid order; return its number."""
    with _database() as database:
        made = database.execute("INSERT INTO orders VALUES (?, ?)", (reference, charge))
        return int(made.lastrowid or 0)


def orders(reference: str) -> list[str]:
    """Return the charges of the orders with this reference."""
    with _database() as database:
        found = database.execute("SELECT charge FROM orders WHERE reference = ?", (reference,))
        return [charge for (charge,) in found]


def _database() -> sqlite3.Connection:
    database = sqlite3.connect(os.environ["SHOP_ORDERS"], timeout=30)
    database.execute("CREATE TABLE IF NOT EXISTS orders (reference TEXT, charge TEXT)")
    return database


def _ask(path: str, document: object) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(os.environ["SHOP_PROVIDER"], timeout=90)
    try:
        connection.request("POST", path, json.dumps(document))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()
