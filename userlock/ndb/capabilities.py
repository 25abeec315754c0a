"""Capabilities of the connected Datastore: whether it refuses stale writes.

Datastore itself reports versions and honours `base_version`. A server that does
not is refused, with an error that says so: without them nothing could keep a
stale write from landing. Found out with one entity, under a name that nobody
else has, which is removed again. `userlock doctor --datastore` shows it all.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any
from urllib.parse import urlencode

import grpc
from google.api_core import exceptions
from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import GoogleAuthError
from google.cloud.datastore_v1.types import datastore as datastore_types
from google.cloud.datastore_v1.types import query as query_types

from userlock.lock.store import Finding, Verdict

_GOOGLE = "googleapis.com"

KIND = "UserlockProbe"

#: Subjects of the findings.
REACHABLE = "reachable"
VERSIONS = "versions"
BASE_VERSION = "base_version"
INSERTS = "inserts"

_TIMEOUT_SECONDS = 5.0

_Mutation: Any = datastore_types.Mutation
_Mode: Any = datastore_types.CommitRequest.Mode
_translated: Any = exceptions.from_grpc_error

_NO_VERSIONS = (
    "Puts of what was read from this server are refused (WriteNotFenced). This is not Google's "
    "Datastore, which reports them."
)
_NOT_HONOURED = (
    "Where the host is not Google's, writes that build on a version are refused "
    "(WriteNotFenced). Google's Datastore honours it, and so does userlock-emulator."
)
_NO_INSERTS = "Two requests that create the same entity would overwrite each other."


class _Probe:
    """One entity, written and read in all the ways that fencing needs."""

    def __init__(self, client: Any) -> None:
        self._client = client
        database = getattr(client, "database", None)
        self._database = "" if database in (None, "(default)") else database
        self.key = {
            "partition_id": {
                "project_id": client.project,
                "database_id": self._database,
                "namespace_id": getattr(client, "namespace", None) or "",
            },
            "path": [{"kind": KIND, "name": secrets.token_hex(16)}],
        }

    def commit(self, operation: str, number: int = 0, base_version: int | None = None) -> Any:
        """One mutation; its result."""
        changed: Any = self.key
        if operation != "delete":
            changed = {
                "key": self.key,
                "properties": {"n": {"integer_value": number, "exclude_from_indexes": True}},
            }
        mutation = _Mutation({operation: changed})
        if base_version is not None:
            mutation._pb.base_version = base_version
        answer = self._call(
            "commit",
            datastore_types.CommitRequest(mode=_Mode.NON_TRANSACTIONAL, mutations=[mutation]),
        )
        return answer.mutation_results[0]

    def look_up(self) -> tuple[int, int] | None:
        """Return the stored value and its version; None when it is missing."""
        answer = self._call("lookup", datastore_types.LookupRequest(keys=[self.key]))
        if not answer.found:
            return None
        found = answer.found[0]
        return int(found.entity.properties["n"].integer_value), int(found.version)

    def query(self) -> int:
        """Return the version that a query reports."""
        own = query_types.PropertyFilter(
            property=query_types.PropertyReference(name="__key__"),
            op=query_types.PropertyFilter.Operator.EQUAL,
            value={"key_value": self.key},
        )
        request = datastore_types.RunQueryRequest(
            partition_id=self.key["partition_id"],
            query=query_types.Query(
                kind=[{"name": KIND}], filter=query_types.Filter(property_filter=own)
            ),
        )
        results = self._call("run_query", request).batch.entity_results
        return int(results[0].version) if results else 0

    def _call(self, rpc: str, request: Any) -> Any:
        """An RPC. Raises GoogleAPICallError."""
        request.project_id = self._client.project
        request.database_id = self._database
        # Without it, requests for a named database do not find their way.
        params = urlencode({"project_id": request.project_id, "database_id": self._database})
        try:
            return getattr(self._client.stub, rpc)(
                request, timeout=_TIMEOUT_SECONDS, metadata=(("x-goog-request-params", params),)
            )
        except grpc.RpcError as error:
            raise _translated(error) from error


def probe(client: Any) -> list[Finding]:
    """Return the findings about the Datastore that an `ndb.Client` is connected to.

    Writes one entity of the kind `UserlockProbe` and removes it. Waits up to 5 s for each of a
    dozen RPCs. Raises nothing: when Datastore does not answer, that is the finding.
    """
    place = place_of(client)
    trial = _Probe(client)
    findings: list[Finding] = []
    try:
        try:
            findings.extend(_findings(place, trial))
        finally:
            trial.commit("delete")
    except (GoogleAPICallError, GoogleAuthError) as error:
        said = getattr(error, "message", None) or error
        return [*findings, unreachable(place, f"it does not answer as Datastore does: {said}")]
    if not getattr(client, "secure", True):
        says = f"this is an emulator at {client.host}, not Datastore"
        advice = "Unset DATASTORE_EMULATOR_HOST to ask the real one."
        facts = {"emulator": str(client.host)}
        findings.append(Finding(place, "emulator", Verdict.WARNING, says, advice, facts))
    return findings


def place_of(client: Any) -> str:
    """Return the name, in findings, of the Datastore that an `ndb.Client` is connected to."""
    database = getattr(client, "database", None)
    return f"datastore {client.project}/{database or '(default)'}"


def unreachable(place: str, says: str) -> Finding:
    """Return the finding that there is no answer."""
    advice = (
        "Are project and database right (GOOGLE_CLOUD_PROJECT), are there credentials (gcloud auth "
        "application-default login), and may they read and write (roles/datastore.user)?"
    )
    return Finding(place, REACHABLE, Verdict.WRONG, says, advice, {"up": False})


def _findings(place: str, trial: _Probe) -> Iterator[Finding]:
    """One by one, as far as Datastore answers."""
    first = trial.commit("insert", 1)
    yield Finding(place, REACHABLE, Verdict.OK, "it answers", facts={"up": True})
    versions = _versions(place, trial, int(first.version))
    yield versions
    yield _inserts(place, trial)
    if versions.verdict is Verdict.OK:
        yield _base_version(place, trial)
    else:
        says = "it cannot be tried without versions"
        facts = {"base_version": False}
        yield Finding(place, BASE_VERSION, Verdict.WRONG, says, _NOT_HONOURED, facts)


def _versions(place: str, trial: _Probe, committed: int) -> Finding:
    """Of commits, look-ups and queries."""
    stored = trial.look_up()
    told = {
        "commits": committed,
        "look-ups": 0 if stored is None else stored[1],
        "queries": trial.query(),
    }
    silent = [name for name, version in told.items() if version <= 0]
    facts = {"reported": not silent}
    if silent:
        says = f"{' and '.join(silent)} report no version of an entity"
        return Finding(place, VERSIONS, Verdict.WRONG, says, _NO_VERSIONS, facts)
    if len(set(told.values())) > 1:
        says = f"commits, look-ups and queries do not agree on a version: {told}"
        return Finding(place, VERSIONS, Verdict.WRONG, says, _NO_VERSIONS, {"reported": False})
    says = "commits, look-ups and queries report the version of an entity"
    return Finding(place, VERSIONS, Verdict.OK, says, facts=facts)


def _inserts(place: str, trial: _Probe) -> Finding:
    try:
        trial.commit("insert", 2)
    except GoogleAPICallError as error:
        if error.grpc_status_code is not grpc.StatusCode.ALREADY_EXISTS:
            raise
        says = "an insert of what exists is refused"
        return Finding(place, INSERTS, Verdict.OK, says, facts={"exclusive": True})
    says = "an insert has overwritten what was there"
    return Finding(place, INSERTS, Verdict.WRONG, says, _NO_INSERTS, {"exclusive": False})


def _base_version(place: str, trial: _Probe) -> Finding:
    """Writes that build on the version that is there, and such that do not."""
    wrong = []
    _, version = trial.look_up() or (0, 0)
    changed = trial.commit("upsert", 3, version)
    if changed.conflict_detected:
        wrong.append("a put that built on the version that was there was refused")
    elif 0 < changed.version <= version:
        wrong.append("a put did not make the version grow")
    for operation in ("upsert", "delete"):
        refused = trial.commit(operation, 4, version)
        stored = trial.look_up()
        if not refused.conflict_detected or stored is None or stored[0] != 3:
            what = "a put" if operation == "upsert" else "a delete"
            wrong.append(f"{what} that built on an outdated version was carried out")
            break
    if not wrong and trial.commit("delete", base_version=changed.version).conflict_detected:
        wrong.append("a delete that built on the version that was there was refused")
    facts = {"base_version": not wrong}
    if wrong:
        says = "; ".join(wrong)
        return Finding(place, BASE_VERSION, Verdict.WRONG, says, _NOT_HONOURED, facts)
    says = "puts and deletes that build on an outdated version are refused, others are not"
    return Finding(place, BASE_VERSION, Verdict.OK, says, facts=facts)


_lock = threading.Lock()
#: By host, project and database: whether `base_version` is honoured there.
_honoured: dict[tuple[str, str, str | None], bool] = {}


def honours_base_version(client: Any) -> bool | None:
    """Return whether the server that an `ndb.Client` talks to honours `base_version`.

    Google's own is not asked. Any other one is asked once per process, with
    an entity that is removed again; None while it does not answer.
    """
    host = str(getattr(client, "host", ""))
    if host.endswith(_GOOGLE):
        return True
    place = host, client.project, getattr(client, "database", None)
    honoured = _honoured.get(place)
    return _ask(client, place) if honoured is None else honoured


def _ask(client: Any, place: tuple[str, str, str | None]) -> bool | None:
    with _lock:
        if place not in _honoured:
            verdicts = {finding.subject: finding.verdict for finding in probe(client)}
            if BASE_VERSION not in verdicts:
                return None
            _honoured[place] = verdicts[BASE_VERSION] is Verdict.OK
        return _honoured[place]


def require_base_version(client: Any, error: Callable[[str, str], Exception]) -> None:
    """Refuse to send a write that its server would not compare with what is stored.

    Args:
        client: of the context that writes.
        error: makes the error of a reason and a remedy.
    """
    honoured = honours_base_version(client)
    if honoured:
        return
    host = getattr(client, "host", "an unknown host")
    if honoured is None:
        raise error(
            f"the Datastore at {host} did not answer when it was asked whether it would refuse a "
            f"stale write",
            "run the request again when it does",
        )
    raise error(
        f"the Datastore at {host} takes no notice of base_version, so it would let a stale write "
        f"overwrite another one",
        "use Google's Datastore or userlock-emulator; where losing an update does not matter, "
        "userlock.configure(fencing=False)",
    )


def installed_release(package: str = "google-cloud-ndb") -> str:
    """Return the version of a package, for messages. Bundles may not know it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of an unknown version"
