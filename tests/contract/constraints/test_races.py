"""Many at once want one name, while memcached is down: exactly one gets it, all copies differ."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from google.cloud import ndb

import userlock
from tests.contract.conftest import EACH_MODE
from tests.contract.constraints.models import (
    Campaign,
    campaign,
    check_claims,
    degraded_service,
    put,
)
from userlock.constraints import claims as claim_rows
from userlock.constraints import put_as_copy
from userlock.constraints.copies import _Candidates

pytestmark = pytest.mark.usefixtures("context", "quick_retries")


class Crowd:
    """Threads that begin at once. Their locks are degraded."""

    def __init__(self, client: ndb.Client) -> None:
        self._client = client
        self._service = degraded_service()
        self.errors: list[BaseException] = []

    def run(self, threads: int, work: Callable[[], object], times: int = 1) -> None:
        barrier = threading.Barrier(threads)

        def one() -> None:
            barrier.wait(30)
            for _ in range(times):
                try:
                    with (
                        self._client.context(),
                        userlock.scope(self._service),
                        userlock.global_lock("ann") as tenure,
                    ):
                        assert tenure.degraded
                        work()
                except BaseException as error:
                    self.errors.append(error)

        running = [threading.Thread(target=one) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(300)
            assert not thread.is_alive()


@EACH_MODE
@pytest.mark.parametrize("in_transaction", [False, True])
def test_many_creators_of_one_name(ndb_client: ndb.Client, in_transaction: bool) -> None:
    crowd = Crowd(ndb_client)

    def create() -> None:
        if in_transaction:
            ndb.transaction(campaign("Summer").put, retries=30)
        else:
            campaign("Summer").put()

    crowd.run(12, create)
    assert Counter(type(error) for error in crowd.errors) == {userlock.NotUnique: 11}
    assert Campaign.query().count() == 1
    check_claims(Campaign)


@pytest.mark.parametrize("off", ["find_taken", "changes"])
def test_with_claims_off_there_are_several(
    ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    """The negative control."""
    monkeypatch.setattr(claim_rows, off, lambda *_: {})
    crowd = Crowd(ndb_client)
    crowd.run(16, lambda: campaign("Summer").put())
    assert Campaign.query().count() > 1


@pytest.mark.parametrize(
    ("threads", "times"),
    [
        (8, 3),
        pytest.param(50, 4, marks=pytest.mark.slow),
        pytest.param(100, 10, marks=pytest.mark.long),
    ],
)
def test_activations_at_once(
    ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch, threads: int, times: int
) -> None:
    """Of archived campaigns of one name."""
    lookups: list[int] = []
    taken = _Candidates.taken

    def counted(self: _Candidates, numbers: Iterable[int]) -> set[int]:
        lookups.append(1)
        return taken(self, numbers)

    monkeypatch.setattr(_Candidates, "taken", counted)
    put("Summer")
    with userlock.global_lock("ann"):
        archived = [campaign("Summer", archived=True) for _ in range(threads * times)]
        ndb.put_multi(archived)
    keys = [each.key for each in archived]

    def activate() -> None:
        found = keys.pop().get(use_cache=False)
        found.archived = False
        put_as_copy(found, "title")

    crowd = Crowd(ndb_client)
    crowd.run(threads, activate, times)
    assert crowd.errors == []
    titles = [each.title for each in Campaign.query().fetch(use_cache=False)]
    count = threads * times
    assert len(set(titles)) == len(titles) == count + 1
    assert all(title == "Summer" or title.startswith("Summer (Copy ") for title in titles)
    assert count <= len(lookups) <= count * 2 * math.log2(count)
    check_claims(Campaign)
