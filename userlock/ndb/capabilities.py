"""Capabilities of the connected Datastore: whether it refuses stale writes.

Datastore itself reports versions and honours `base_version`. A server that does not is refused:
nothing could keep a stale write from landing. `userlock doctor --datastore` shows them all.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine, Iterator
from importlib import metadata
from typing import Any, NamedTuple

import grpc
from google.api_core import exceptions
from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import GoogleAuthError
from google.cloud.datastore_v1.types import query as query_types

from userlock.datastore_rpc import Endpoint, Entity, Mutation, Query
from userlock.waits import run

KIND = "UserlockProbe"

#: Names of capabilities.
REACHABLE, VERSIONS, BASE_VERSION, INSERTS = "reachable", "versions", "base_version", "inserts"

_TIMEOUT_SECONDS = 5.0

_EQUAL: Any = query_types.PropertyFilter.Operator.EQUAL
_translated: Any = exceptions.from_grpc_error


class Capability(NamedTuple):
    """One thing that a server can do, or cannot."""

    name: str  # one of those above
    works: bool
    says: str  # the observation, in plain words


class _Probe:
    """One entity, written and read in all the ways that fencing needs."""

    def __init__(self, client: Any) -> None:
        self._endpoint = Endpoint(client)
        self._key = self._endpoint.key(KIND, secrets.token_hex(16))

    def commit(self, operation: str, number: int = 0, base_version: int | None = None) -> Any:
        changed = self._key
        if operation != "delete":
            changed = Entity(key=self._key)
            changed.properties["n"].integer_value = number
            changed.properties["n"].exclude_from_indexes = True
        return self._call(
            self._endpoint.commit, Mutation(base_version=base_version, **{operation: changed})
        )

    def insert(self, number: int) -> Any:
        """Insert it; return None if it exists."""
        try:
            return self.commit("insert", number)
        except GoogleAPICallError as error:
            if error.grpc_status_code is not grpc.StatusCode.ALREADY_EXISTS:
                raise
            return None

    def look_up(self) -> tuple[int, int]:
        """Return the stored value and its version; zeros when it is missing."""
        for each in self._call(self._endpoint.lookup, [self._key]).found:
            return each.entity.properties["n"].integer_value, each.version
        return 0, 0

    def query(self) -> int:
        own = {"property": {"name": "__key__"}, "op": _EQUAL, "value": {"key_value": self._key}}
        query = Query(kind=[{"name": KIND}], filter={"property_filter": own})
        results = self._call(self._endpoint.run_query, query).entity_results
        return results[0].version if results else 0

    @staticmethod
    def _call(rpc: Callable[[Any, float], Coroutine[Any, Any, Any]], argument: Any) -> Any:
        try:
            return run(rpc, argument, _TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            raise _translated(error) from error


def probe(client: Any) -> list[Capability]:
    """Return the capabilities of the Datastore that an `ndb.Client` is connected to.

    Writes one entity of the kind `UserlockProbe` and removes it. Waits up to 5 s for each of a
    dozen RPCs. Raises nothing: a Datastore that does not answer is not `REACHABLE`.
    """
    found: list[Capability] = []
    try:
        found.extend(_capabilities(client))  # as far as Datastore answers
    except (GoogleAPICallError, GoogleAuthError) as error:
        says = f"it does not answer as Datastore does: {getattr(error, 'message', None) or error}"
        found.append(Capability(REACHABLE, False, says))
    return found


def _capabilities(client: Any) -> Iterator[Capability]:
    trial = _Probe(client)
    try:
        inserted = trial.insert(1)  # None: this commit, sent again on its way, has met itself
        yield Capability(REACHABLE, True, "it answers")
        reported = {"look-ups": trial.look_up()[1], "queries": trial.query()}
        if inserted is not None:
            reported["commits"] = inserted.version
        versions = min(reported.values()) > 0 and len(set(reported.values())) == 1
        says = "commits, look-ups and queries report the version of an entity"
        if not versions:
            says = f"the reported versions of one entity differ, or are missing: {reported}"
        yield Capability(VERSIONS, versions, says)
        if trial.insert(2) is None:
            yield Capability(INSERTS, True, "an insert of an existing entity is refused")
        else:
            yield Capability(INSERTS, False, "an insert has overwritten an existing entity")
        if versions:
            yield _base_version(trial)
        else:
            yield Capability(BASE_VERSION, False, "it cannot be tried without versions")
    finally:
        trial.commit("delete")


def _base_version(trial: _Probe) -> Capability:
    """Try writes that build on the stored version, and on an outdated one.

    What is stored decides: the reply to a commit that was sent again on its way is a conflict.
    """
    _, version = trial.look_up()
    landed = trial.commit("upsert", 3, version)
    carried_out = [
        what
        for operation, what in (("upsert", "a put"), ("delete", "a delete"))
        if not trial.commit(operation, 4, version).conflict_detected
    ]
    stored, changed = trial.look_up()
    wrong = ""
    if carried_out:
        wrong = f"{carried_out[0]} that built on an outdated version was carried out"
    elif stored != 3:
        wrong = "a put that built on the stored version was refused, or a later one carried out"
    elif changed <= version:
        wrong = "a put did not make the version grow"
    elif not landed.conflict_detected and landed.version != changed:
        wrong = "a put and a look-up have reported different versions"
    if not wrong:
        trial.commit("delete", base_version=changed)
        if trial.look_up() != (0, 0):
            wrong = "a delete that built on the stored version was refused"
    fine = "puts and deletes that build on an outdated version are refused, others are not"
    return Capability(BASE_VERSION, not wrong, wrong or fine)


#: By host, project and database: whether `base_version` is honoured there.
_honoured: dict[tuple[str, str, str | None], bool] = {}


def honours_base_version(client: Any) -> bool:
    """Return whether a client's server honours `base_version`.

    Google's own is not asked. Any other one is asked once per process, and once more if it
    is unavailable; its errors are raised.
    """
    host = str(getattr(client, "host", ""))
    if host.endswith("googleapis.com"):
        return True
    place = host, client.project, getattr(client, "database", None)
    if place not in _honoured:
        try:
            found = list(_capabilities(client))
        except exceptions.ServiceUnavailable:  # not after a time-out: it would take as long again
            found = list(_capabilities(client))
        _honoured[place] = {each.name: each.works for each in found}[BASE_VERSION]
    return _honoured[place]


def why_not_fenced(client: Any) -> dict[str, str]:
    """Return the reason and the remedy for a server that does not honour `base_version`."""
    host = getattr(client, "host", "an unknown host")
    return {
        "reason": f"the Datastore at {host} takes no notice of base_version, so it would let a "
        f"stale write overwrite another one",
        "remedy": "use Google's Datastore or userlock-emulator; where losing an update does not "
        "matter, userlock.configure(fencing=False)",
    }


def installed_release() -> str:
    """Return the version of google-cloud-ndb, for messages. Bundles may not know it."""
    try:
        return metadata.version("google-cloud-ndb")
    except metadata.PackageNotFoundError:
        return "of an unknown version"
