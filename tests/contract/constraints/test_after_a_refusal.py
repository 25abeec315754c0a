"""After a put that was not unique, or was overtaken: no later write undoes another request's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.conftest import EACH_MODE
from tests.contract.constraints.models import Campaign, campaign, claims, put
from tests.contract.ndb.actions import Elsewhere
from tests.contract.ndb.servers import Wire
from userlock.constraints import claims as claim_rows
from userlock.ndb.provenance import Ledger
from userlock.stores import MemoryStore
from userlock_emulator import Emulator

pytestmark = [pytest.mark.usefixtures("context", "quick_retries"), EACH_MODE]


Rival = Callable[[], None]


def add_points(key: Any) -> None:
    """Change the entity as another request, under the lock as far as it knows."""
    with userlock.global_lock("ann"):
        other = key.get()
        other.points += 100
        other.put()


def put_and_catch(entity: Any, rival: Rival) -> None:
    with pytest.raises(userlock.NotUnique):
        entity.put()
    rival()


def put_in_a_transaction(entity: Any, rival: Rival) -> None:
    with pytest.raises(userlock.NotUnique):
        ndb.transaction(entity.put)
    rival()


class RivalAfterTheRollback(Wire):
    def __init__(self, rival: Rival) -> None:
        super().__init__(ndb.get_context().client)
        self._rivals = [rival]

    def sent(self, name: str, request: Any) -> Any:
        if "rollback" in self.names and self._rivals:
            self._rivals.pop()()
        return super().sent(name, request)


def leave_it_to_the_delete(entity: Any, rival: Rival) -> None:
    """The delete waits for the put, which is refused meanwhile."""
    RivalAfterTheRollback(rival)
    entity.put_async().add_done_callback(lambda future: future.exception())


Refused = Callable[[Any, Rival], None]


def points_after_the_delete(
    refused: Refused, store: MemoryStore, elsewhere: Elsewhere
) -> int | None:
    """Have a put refused. Then the lock fails, another request writes, and we delete.

    Returns:
        The stored points; None if the entity is gone.
    """
    put("Summer")
    key = put("Winter").key
    ndb.get_context().clear_cache()

    def rival() -> None:
        store.evict("ann")
        elsewhere(lambda: add_points(key))

    with userlock.global_lock("ann"):
        entity = key.get()
        entity.title = "Summer"
        refused(entity, rival)
        try:
            key.delete()
        except userlock.StaleWriteError:
            assert key.get().points == 100, "it is read again"
    found = key.get(use_cache=False)
    return None if found is None else int(found.points)


@pytest.mark.parametrize(
    ("refused", "kept"),
    [
        *((put_and_catch, True), (put_in_a_transaction, True), (leave_it_to_the_delete, True)),
        (put_and_catch, False),
    ],
)
def test_a_delete_after_a_refused_put_deletes_no_other_state(
    refused: Refused,
    store: MemoryStore,
    elsewhere: Elsewhere,
    monkeypatch: pytest.MonkeyPatch,
    kept: bool,
) -> None:
    """The control: without its read, an update is lost."""
    if not kept:
        monkeypatch.setattr(Ledger, "last", lambda *_: None)
    assert points_after_the_delete(refused, store, elsewhere) == (100 if kept else None)


class RivalAfterTheCommit(Wire):
    """Has another request write after the first commit, whose reply is lost."""

    def __init__(self, rival: Rival) -> None:
        super().__init__(ndb.get_context().client)
        self._rival = rival
        self._commits = 0

    def sent(self, name: str, request: Any) -> Any:
        self._commits += name == "commit"
        if (self._commits == 1 and name == "lookup") or self._commits == 2:
            self._commits = 3  # not for the rival's own
            self._rival()
        return super().sent(name, request)


@pytest.mark.parametrize("in_transaction", [False, True])
class TestOvertaken:
    """A put has landed without a reply, and another request has changed the entity since."""

    @pytest.fixture
    def overtaken(
        self, in_transaction: bool, datastore: Emulator, store: MemoryStore, elsewhere: Elsewhere
    ) -> Any:
        made = campaign("Summer")

        def rival() -> None:
            store.evict("ann")
            elsewhere(lambda: add_points(Campaign.query().get(keys_only=True)))

        datastore.faults.drop_reply(4, kind=claim_rows.KIND)
        RivalAfterTheCommit(rival)
        if in_transaction:
            ndb.transaction(made.put)
        else:
            made.put()
        datastore.faults.clear()
        return made

    @pytest.fixture(autouse=True)
    def _locked(self, service: userlock.LockService) -> Any:
        with userlock.global_lock("ann"):
            yield

    @pytest.mark.parametrize("what", ["put", "delete"])
    def test_it_is_refused_until_it_is_read_again(self, overtaken: Any, what: str) -> None:
        def act(entity: Any) -> None:
            if what == "delete":
                entity.key.delete()
                return
            entity.points += 1
            entity.put()

        for _ in range(2):
            with pytest.raises(userlock.StaleWriteError):
                act(overtaken)
        assert overtaken.key.get(use_cache=False).points == 100
        act(overtaken.key.get())
        found = overtaken.key.get(use_cache=False)
        assert (None if found is None else found.points) == (101 if what == "put" else None)
        assert len(claims()) == (what == "put")
