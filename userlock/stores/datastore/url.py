"""The parts of a Datastore URL."""

from __future__ import annotations

import contextlib
from typing import NamedTuple
from urllib.parse import SplitResult

from userlock.stores.datastore.rows import DEFAULT_KIND
from userlock.stores.datastore.rpc import TIMEOUT
from userlock.stores.urls import AddressError, options_of


class Address(NamedTuple):
    """The place of the rows. Project: None for the environment's; others: for the default one."""

    project: str | None
    database: str | None
    namespace: str | None
    prefix: str
    kind: str
    timeout: float


def parse(parts: SplitResult) -> Address:
    """Return the parts of `datastore://[PROJECT]?database=DB&namespace=NS&prefix=P&kind=K`.

    `timeout=S`: for one RPC, in seconds.
    """
    defaults = {"database": "", "namespace": "", "prefix": "userlock", "kind": DEFAULT_KIND}
    options = options_of(parts, **defaults, timeout=f"{TIMEOUT}")
    if parts.path or "@" in parts.netloc:
        raise AddressError("it must look like datastore://PROJECT?database=DB&prefix=NAME")
    return Address(
        project=parts.netloc or None,
        database=options["database"] or None,
        namespace=options["namespace"] or None,
        prefix=options["prefix"],
        kind=options["kind"],
        timeout=_seconds(options["timeout"]),
    )


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):  # which quotes it
        if 0 < float(text) <= 60:
            return float(text)
    raise AddressError("timeout must be a number of seconds above 0, and at most 60")
