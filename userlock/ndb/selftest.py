"""Trying the whole way out: are stale writes refused that go through the installed ndb?

`probe` asks Datastore. Here an entity is written as an application writes it,
through ndb and what is hooked into it.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from google.auth.exceptions import GoogleAuthError
from google.cloud import ndb

from userlock.errors import StaleWriteError, WriteNotFenced
from userlock.events import StaleWrite
from userlock.lock.store import Finding, Verdict
from userlock.ndb.capabilities import (
    BASE_VERSION,
    installed_release,
    place_of,
    probe,
    unreachable,
)
from userlock.ndb.policies import WritePolicy

#: Another one than `capabilities.KIND`, which is written without a model.
KIND = "UserlockSelfTest"

_ONCE = {"retries": 0, "timeout": 5.0}

#: Subject of the finding.
THROUGH_NDB = "ndb"

_ADVICE = (
    "If it stays so, writes are not protected with this release: install an older google-cloud-ndb "
    "(2.3 to 2.7 are tested) or a newer userlock."
)


def examine(project: str | None = None, database: str | None = None) -> list[Finding]:
    """`probe`, and the way through ndb, of the Datastore that the environment names.

    Args:
        project: another one than the environment's.
        database: another one than the default database.
    """
    try:
        client = ndb.Client(project=project, database=database)
    except (OSError, GoogleAuthError) as error:
        place = f"datastore {project or '(no project)'}/{database or '(default)'}"
        return [unreachable(place, f"there is no client for it: {error}")]
    findings = probe(client)
    asked = [each.subject for each in findings]
    if BASE_VERSION in asked:
        findings.insert(asked.index(BASE_VERSION) + 1, through_ndb(client))
    return findings


def through_ndb(client: Any) -> Finding:
    """Try whether stale puts and deletes are refused on their way through ndb.

    Writes one entity of the kind `UserlockSelfTest` and removes it. Not within an ndb context, and
    not where fencing is switched off. Waits up to 5 s for each of a dozen RPCs, if the server
    honours `base_version`. Raises nothing.
    """
    place, version = place_of(client), installed_release()
    release = f"google-cloud-ndb {version}"
    try:
        name = secrets.token_hex(16)
        with _unlogged():
            wrong = "it did not come to an end"
            try:
                with client.context():
                    wrong = _what_is_wrong(name)
            finally:
                # What has been found, or raised, counts more than what is left over.
                quietly = contextlib.suppress(Exception) if wrong else contextlib.nullcontext()
                with quietly, client.context():  # which has read nothing that is out of date
                    ndb.Key(KIND, name).delete(**_ONCE)
    except Exception as error:  # of Datastore's, or of an ndb that does not fit at all
        wrong = f"trying it ended with {type(error).__name__}: {error}"
    facts: dict[str, str | bool] = {"fenced": not wrong, "ndb": version}
    if wrong:
        says = f"{release}: {wrong}"
        return Finding(place, THROUGH_NDB, Verdict.WRONG, says, _ADVICE, facts)
    says = f"{release}: a put and a delete of an object that was out of date were refused"
    return Finding(place, THROUGH_NDB, Verdict.OK, says, facts=facts)


def _what_is_wrong(name: str) -> str:
    """Return which write was carried out or refused by mistake; "" if none was."""
    try:
        # Not before it is needed: it hooks into ndb, which fails where there is no place for it.
        from userlock.ndb.model import Model
    except ImportError as error:
        return str(error)

    class Probe(Model):
        """Protected by nothing but fencing."""

        _write_policy = WritePolicy.unsafe("nobody else knows its name")

        number = ndb.IntegerProperty(indexed=False)

        @classmethod
        def _get_kind(cls) -> str:
            return KIND

    key = ndb.Key(Probe, name)
    try:
        Probe(key=key, number=0).put(use_cache=False, **_ONCE)
        for what in ("put", "delete"):
            outdated, current = key.get(**_ONCE), key.get(use_cache=False, **_ONCE)
            if outdated is None or current is None:
                return "an entity that had been put was not found"
            current.number += 1
            current.put(use_cache=False, **_ONCE)
            if not _refused(outdated.put if what == "put" else key.delete):
                return f"a {what} of an object that was out of date was carried out"
    except WriteNotFenced as error:
        return f"a put did not pass the gate: {error}"
    except StaleWriteError:
        return "a put of what had just been read was refused"
    return ""


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Log no warning of the refusals here, which are meant."""
    log = logging.getLogger("userlock")

    def of_something_else(record: logging.LogRecord) -> bool:
        event = getattr(record, "userlock", None)
        return not (isinstance(event, StaleWrite) and event.error.key.kind() == KIND)

    log.addFilter(of_something_else)
    try:
        yield
    finally:
        log.removeFilter(of_something_else)


def _refused(write: Callable[..., object]) -> bool:
    try:
        write(**_ONCE)
    except StaleWriteError:
        return True
    return False
