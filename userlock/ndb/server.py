"""What the connected Datastore can do: whether a stale write can be left to it to refuse.

Datastore itself reports versions and honours `base_version`. Some emulators do
not; with these, stale writes are found by comparing in a short transaction.
`userlock doctor --datastore` proves it for the real one.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from userlock.lock.store import Verdict
from userlock.ndb.probe import BASE_VERSION, probe

log = logging.getLogger(__name__)

_GOOGLE = "googleapis.com"

_lock = threading.Lock()
#: By host, project and database: whether `base_version` is honoured there.
_honoured: dict[tuple[str, str, str | None], bool] = {}
_told_of_versions = False


def honours_base_version(client: Any) -> bool:
    """Whether the server that an `ndb.Client` talks to honours `base_version`.

    Google's own is not asked. Any other one is asked once per process, with
    an entity that is removed again; while it does not answer, the answer is no.
    """
    if client.host.endswith(_GOOGLE):
        return True
    place = (client.host, client.project, client.database)
    honoured = _honoured.get(place)
    return _ask(client, place) if honoured is None else honoured


def _ask(client: Any, place: tuple[str, str, str | None]) -> bool:
    with _lock:
        if place in _honoured:
            return _honoured[place]
        verdicts = {finding.subject: finding.verdict for finding in probe(client)}
        if BASE_VERSION not in verdicts:
            return False  # it did not answer; should it answer to the write, that is compared
        _honoured[place] = verdicts[BASE_VERSION] is Verdict.OK
        if not _honoured[place]:
            log.warning(
                "the Datastore at %s takes no notice of base_version: stale writes are found by "
                "comparing in a short transaction, which takes two round trips more",
                client.host,
                extra={"action": "compare_writes", "host": client.host},
            )
        return _honoured[place]


def tell_of_missing_versions() -> None:
    """An entity came without its version. Says so once."""
    global _told_of_versions
    if _told_of_versions:
        return
    _told_of_versions = True
    log.warning(
        "Datastore has returned entities without their versions (eventually consistent reads do, "
        "and some emulators): puts of these are compared with what is stored, in a short "
        "transaction, which takes two round trips more",
        extra={"action": "compare_writes"},
    )
