"""Models that live in the global cache only, as ndb allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.servers import EmptyGlobalCache


class Draft(userlock.UserModel):
    _use_datastore = False
    _lock_id_from_key = userlock.key_id
    text = ndb.StringProperty()

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedDraft"


@pytest.fixture(autouse=True)
def _cached(ndb_client: ndb.Client, service: userlock.LockService) -> Iterator[Any]:
    with ndb_client.context(global_cache=EmptyGlobalCache(), cache_policy=False):
        yield


def test_it_is_put_read_and_put_again() -> None:
    with userlock.global_lock("ann"):
        Draft(id="ann", text="first").put()
        draft = Draft.get_by_id("ann")
        assert draft.text == "first"
        draft.text = "second"
        draft.put()
    assert Draft.get_by_id("ann").text == "second"
    with userlock.global_lock("ann"):
        draft.key.delete()
    assert Draft.get_by_id("ann") is None


def test_it_is_checked() -> None:
    with pytest.raises(userlock.CreatedWithoutLock):
        Draft(id="ann").put()
    with userlock.global_lock("ann"):
        Draft(id="ann").put()
    draft = Draft.get_by_id("ann")
    with userlock.global_lock("ann"), pytest.raises(userlock.ReadWithoutLock):
        draft.put()
