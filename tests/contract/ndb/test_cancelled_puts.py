"""A put is cancelled while its commit is under way; the others in it get their outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from google.cloud import ndb
from google.cloud.ndb import _eventloop, exceptions

import userlock
from tests.contract.ndb.models import VideoLog
from tests.contract.ndb.servers import Wire
from userlock_emulator import Emulator

pytestmark = pytest.mark.usefixtures("context")


def put_and_cancel(client: ndb.Client, entities: Sequence[Any]) -> list[Any]:
    """Put all in one commit, and cancel the first; the futures of the others."""
    wire = Wire(client)
    cancelled, *others = [entity.put_async() for entity in entities]
    while "commit" not in wire.names:
        _eventloop.run1()
    cancelled.cancel()
    ndb.wait_all(others)
    assert wire.names.count("commit") == 1
    with pytest.raises(exceptions.Cancelled):
        cancelled.result()
    return others


def test_existing_entities(ndb_client: ndb.Client) -> None:
    with userlock.global_lock("ann"):
        keys = ndb.put_multi([VideoLog(id=name, learner_id="ann") for name in "ab"])
        (other,) = put_and_cancel(ndb_client, ndb.get_multi(keys))
        assert other.result() == keys[1]


def test_new_entities_under_automatic_ids(ndb_client: ndb.Client) -> None:
    with userlock.global_lock("ann"):
        (other,) = put_and_cancel(ndb_client, [VideoLog(learner_id="ann") for _ in "ab"])
        assert other.result().id()


def test_new_entities_in_doubt(ndb_client: ndb.Client, datastore: Emulator) -> None:
    with userlock.global_lock("ann"):
        datastore.faults.drop_reply()
        (other,) = put_and_cancel(ndb_client, [VideoLog(learner_id="ann") for _ in "ab"])
        with pytest.raises(userlock.CommitInDoubt):
            other.result()
