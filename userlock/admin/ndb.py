"""Examination of the Datastore behind ndb: does it refuse stale writes, also through ndb?

`userlock.ndb.capabilities` asks Datastore. The self-test here writes an entity as an application
does, through the installed ndb and userlock's hooks.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from google.auth.exceptions import GoogleAuthError
from google.cloud import ndb

from userlock.admin.datastore import ADVICE, emulator
from userlock.admin.health import OK, WRONG, Check, Finding, findings
from userlock.datastore_rpc import Endpoint
from userlock.errors import StaleWriteError, WriteNotFenced
from userlock.events import StaleWrite
from userlock.ndb import capabilities
from userlock.ndb.capabilities import REACHABLE
from userlock.ndb.model import Model
from userlock.ndb.policies import WritePolicy

#: Another one than `capabilities.KIND`, which is written without a model.
KIND = "UserlockSelfTest"
#: Subject of the self-test's finding.
THROUGH_NDB = "ndb"
_ONCE: dict[str, Any] = {"retries": 0, "timeout": 5.0}
#: For each capability: advice where it is missing.
_ADVICE = {
    REACHABLE: ADVICE,
    capabilities.VERSIONS: (
        "Puts of entities that were read from this server are refused (WriteNotFenced). This is "
        "not Google's Datastore, which reports them."
    ),
    capabilities.INSERTS: "Two requests that create the same entity would overwrite each other.",
    capabilities.BASE_VERSION: (
        "Where the host is not Google's, writes that build on a version are refused "
        "(WriteNotFenced). Google's Datastore honours it, and so does userlock-emulator."
    ),
}


def examine(project: str = "", database: str = "") -> list[Finding]:
    """Return the findings about a Datastore; by default that which the environment names."""
    try:
        client = ndb.Client(project=project or None, database=database or None)
    except (OSError, GoogleAuthError) as error:
        server = f"datastore {project or '(no project)'}/{database or '(default)'}"
        says = f"there is no client for it: {error}"
        return findings(server, [(REACHABLE, WRONG, says, ADVICE)])
    return findings(Endpoint(client).name, checks_of(client))


def checks_of(client: Any, *, write: bool = True) -> Iterator[Check]:
    """Check a client's Datastore. `write`: also through ndb."""
    probed = capabilities.probe(client)
    for each in probed:
        yield each.name, OK if each.works else WRONG, each.says, _ADVICE[each.name]
        if write and each.name == capabilities.BASE_VERSION:
            yield through_ndb(client)
    answered = probed[-1].name != REACHABLE  # to the end
    if answered and not getattr(client, "secure", True):
        yield from emulator(str(client.host))


def through_ndb(client: Any) -> Check:
    """Check whether stale puts and deletes are refused on their way through ndb.

    Writes one entity of the kind `UserlockSelfTest` and removes it, by a dozen RPCs of at most 5 s.
    Not within an ndb context, and not where fencing is switched off. Raises nothing.
    """
    version = capabilities.installed_release()
    log = logging.getLogger("userlock")
    log.addFilter(_is_of_something_else)
    wrong, name = "", secrets.token_hex(16)
    try:
        try:
            with client.context():
                wrong = _fault(client, name)
        finally:
            with client.context():  # a new one, which has read nothing outdated
                ndb.Key(KIND, name).delete(**_ONCE)
    except Exception as error:  # of Datastore's, or of an ndb that does not fit at all
        # A result counts more than an entity left over.
        wrong = wrong or f"trying it ended with {type(error).__name__}: {error}"
    finally:
        log.removeFilter(_is_of_something_else)
    says = f"google-cloud-ndb {version}: "
    says += wrong or "a put and a delete of an outdated object were refused"
    advice = "If it stays so, writes are not protected with this release: install an older "
    advice += "google-cloud-ndb (2.3 to 2.7 are tested) or a newer userlock."
    return THROUGH_NDB, WRONG if wrong else OK, says, advice


def _is_of_something_else(record: logging.LogRecord) -> bool:
    """Keep the refusals here, which are meant, out of the log."""
    event = getattr(record, "userlock", None)
    return not (isinstance(event, StaleWrite) and event.error.key.kind() == KIND)


def _fault(client: Any, name: str) -> str:
    """Return which write was carried out or refused by mistake; "" if none was."""

    class Probe(Model):
        """Protected by nothing but fencing."""

        _write_policy = WritePolicy.unsafe("nobody else knows its name")

        number = ndb.IntegerProperty(indexed=False)

        @classmethod
        def _get_kind(cls) -> str:
            return KIND

    key = ndb.Key(Probe, name)

    def change() -> bool:
        with client.context():
            current = key.get(**_ONCE)
            if current is not None:
                current.number += 1
                current.put(**_ONCE)
            return current is not None

    try:
        Probe(key=key, number=0).put(use_cache=False, **_ONCE)
        for what in ("put", "delete"):
            outdated = key.get(**_ONCE)
            with ThreadPoolExecutor(1) as elsewhere:
                changed = elsewhere.submit(change).result()
            if outdated is None or not changed:
                return "an entity that had been put was not found"
            try:
                (outdated.put if what == "put" else key.delete)(**_ONCE)
            except StaleWriteError:
                continue
            return f"a {what} of an outdated object was carried out"
    except WriteNotFenced as error:
        return f"a put did not pass the gate: {error}"
    except StaleWriteError:
        return "a put of an entity that had just been read was refused"
    return ""
