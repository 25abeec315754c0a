"""Changes by people: an entity saved or deleted, a transaction rolled back, a reset.

An edit is a commit of its own, as any client's. It waits for locks, and does not overwrite what
somebody else has written since the form was opened. Planted faults do not meet it.
"""

import json
from collections.abc import Callable
from typing import Any

from google.protobuf import json_format

from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.engine import Engine
from userlock_emulator.datastore.errors import Code, DatastoreError, invalid
from userlock_emulator.datastore.faults import Faults
from userlock_emulator.datastore.protos import (
    CommitRequest,
    Entity,
    KeyPb,
    Message,
    Mutation,
    RollbackRequest,
)
from userlock_emulator.datastore.viewer import places
from userlock_emulator.datastore.viewer.places import Fields
from userlock_emulator.datastore.viewer.store import Document


class Edits:
    """The changes. Each takes the fields of a form.

    Args:
        reset: deletes all data.
    """

    def __init__(self, engine: Engine, faults: Faults, reset: Callable[[], None]) -> None:
        self._engine = engine
        self._faults = faults
        self._reset = reset

    def save(self, form: Fields) -> KeyPb:
        """Store an entity, new or instead of the version that was edited; return its key.

        Raises:
            DatastoreError: the text is no entity, it cannot be stored, or it has changed.
        """
        entity = _parsed(form.get("entity", ""))
        if form.get("key"):
            key = places.key_of(form["key"])
            if entity.HasField("key") and entity.key != key:
                raise invalid("The key of an entity cannot be changed. Create another entity.")
            entity.key.CopyFrom(key)
            return self._commit(
                Mutation(update=entity, base_version=_version(form)), places.partition_of_key(key)
            )
        where = entity.key.partition_id
        if not entity.key.path:
            raise invalid("The entity has no key with a path.")
        if not where.project_id:
            where.project_id = form.get("project", "")
            where.database_id = form.get("database", "")
            where.namespace_id = where.namespace_id or form.get("namespace", "")
        return self._commit(Mutation(insert=entity), places.partition_of_key(entity.key))

    def delete(self, form: Fields) -> KeyPb:
        """Delete an entity, if it has not changed since; return its key."""
        key = places.key_of(form.get("key", ""))
        mutation = Mutation(delete=key, base_version=_version(form))
        self._commit(mutation, places.partition_of_key(key))
        return key

    def _commit(self, mutation: Message, partition: Partition) -> KeyPb:
        request = CommitRequest(
            project_id=partition.project,
            database_id=partition.database,
            mode=CommitRequest.NON_TRANSACTIONAL,
            mutations=[mutation],
        )
        result = self._engine.commit(request).mutation_results[0]
        if result.conflict_detected:
            raise DatastoreError(
                Code.ABORTED, "The entity has changed since this page was opened. Open it again."
            )
        operation = mutation.WhichOneof("operation")
        if operation == "delete" or not result.HasField("key"):
            changed = getattr(mutation, operation)
            return changed if operation == "delete" else changed.key
        return result.key

    def roll_back(self, form: Fields) -> None:
        """Roll back a transaction, which releases its locks."""
        try:
            transaction = bytes.fromhex(form.get("transaction", ""))
        except ValueError:
            raise invalid("This is not a transaction.") from None
        self._engine.rollback(
            RollbackRequest(
                project_id=form.get("project", ""),
                database_id=form.get("database", ""),
                transaction=transaction,
            )
        )

    def remove_fault(self, form: Fields) -> None:
        """Remove one fault, or all."""
        number = form.get("id")
        for fault in self._faults.planted:
            if number is None or str(fault.id) == number:
                fault.remove()

    def reset(self, form: Fields) -> None:
        """Delete all data."""
        self._reset()


def text_of(document: Document) -> str:
    """Return an entity for a text area, in the form of the REST API."""
    return _text({"key": document["key"], "properties": document["properties"]})


def text_of_new(partition: Partition, kind: str) -> str:
    """Return a pattern for a new entity."""
    where = {"projectId": partition.project}
    if partition.database:
        where["databaseId"] = partition.database
    if partition.namespace:
        where["namespaceId"] = partition.namespace
    path = [{"kind": kind or "Task", "name": "a"}]
    properties = {
        "done": {"booleanValue": False},
        "note": {"stringValue": "text", "excludeFromIndexes": True},
    }
    return _text({"key": {"partitionId": where, "path": path}, "properties": properties})


def _text(document: dict[str, Any]) -> str:
    # ASCII, so that nothing in the text area is invisible or changed by a browser.
    return json.dumps(document, indent=2, sort_keys=True)


def _parsed(text: str) -> Message:
    try:
        return json_format.Parse(text, Entity())
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise invalid(f"This is not an entity in the REST API's JSON: {error}") from None


def _version(form: Fields) -> int:
    text = form.get("version", "")
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise invalid("The form has no version.")
    return int(text)
