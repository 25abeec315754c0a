"""A put is cancelled while its commit is under way: the others in it are told how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from google.cloud import ndb
from google.cloud.ndb import _eventloop, exceptions

import userlock
from tests.contract.ndb.models import VideoLog
from tests.contract.ndb.servers import Wire

pytestmark = pytest.mark.usefixtures("context")


def put_and_cancel(client: ndb.Client, entities: Sequence[Any]) -> list[Any]:
    """Put all in one commit, and cancel the first; the keys of the others, as they are told."""
    wire = Wire(client)
    cancelled, *others = [entity.put_async() for entity in entities]
    while "commit" not in wire.names:
        _eventloop.run1()
    cancelled.cancel()
    keys = [other.result() for other in others]
    assert wire.names.count("commit") == 1
    with pytest.raises(exceptions.Cancelled):
        cancelled.result()
    return keys


def test_of_those_that_were_there(ndb_client: ndb.Client) -> None:
    with userlock.global_lock("ann"):
        keys = ndb.put_multi([VideoLog(id=name, learner_id="ann") for name in "ab"])
        assert put_and_cancel(ndb_client, ndb.get_multi(keys)) == keys[1:]


def test_of_new_ones_under_automatic_ids(ndb_client: ndb.Client) -> None:
    with userlock.global_lock("ann"):
        (key,) = put_and_cancel(ndb_client, [VideoLog(learner_id="ann") for _ in "ab"])
        assert key.id()
