"""Deletes in transactions that ndb runs a second time, or rolls back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from google.api_core import exceptions as google_errors
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import Elsewhere, Facts, Overtake, stored, stored_elsewhere
from tests.contract.ndb.models import Learner
from tests.contract.ndb.test_fencing_table import RIVALS, under_lock
from userlock_emulator import Emulator

pytestmark = pytest.mark.usefixtures("context", "quick_retries")


@pytest.fixture(autouse=True)
def _others_may_be_written() -> None:
    """Switch the checks of locks off: the fence refuses here."""
    userlock.configure(enforcement="off")


@pytest.mark.parametrize("rival", RIVALS.values(), ids=RIVALS.keys())
class TestASecondAttempt:
    def test_of_a_delete(
        self, key: Any, rival: Callable[[Any], None], elsewhere: Elsewhere, overtake: Overtake
    ) -> None:
        """ndb leaves the delete of the first attempt in the cache around it."""
        meanwhile: list[Facts] = []

        def attempt() -> None:
            key.delete()
            if not meanwhile:
                overtake(under_lock(rival, key))
                meanwhile.append(stored_elsewhere(key, elsewhere))
                raise google_errors.Aborted("contention")

        gone = rival is RIVALS["deletes it"]
        with userlock.global_lock("ann"):
            key.get()
            with nullcontext() if gone else pytest.raises(userlock.StaleWriteError):
                ndb.transaction(attempt)
        assert stored_elsewhere(key, elsewhere) == meanwhile[0]

    def test_of_a_delete_and_a_creation(
        self,
        key: Any,
        rival: Callable[[Any], None],
        datastore: Emulator,
        elsewhere: Elsewhere,
        overtake: Overtake,
    ) -> None:
        """ndb leaves the object of the first attempt in the cache around it."""
        attempts: list[int] = []
        meanwhile: list[Facts] = []

        def attempt() -> None:
            attempts.append(1)
            if len(attempts) == 2:
                overtake(under_lock(rival, key))
                meanwhile.append(stored_elsewhere(key, elsewhere))
            key.delete()
            Learner(key=key, points=1).put()

        gone = rival is RIVALS["deletes it"]
        with userlock.global_lock("ann"):
            key.get()
            datastore.faults.abort()
            with nullcontext() if gone else pytest.raises(userlock.StaleWriteError):
                ndb.transaction(attempt)
        assert stored_elsewhere(key, elsewhere) == ((1, None) if gone else meanwhile[0])


def test_a_put_past_the_cache_is_deleted_in_a_second_attempt(key: Any, datastore: Emulator) -> None:
    with userlock.global_lock("ann"):
        key.get()
        other = key.get(use_cache=False)
        other.points = 3
        other.put(use_cache=False)
        datastore.faults.abort()
        ndb.transaction(key.delete)
        assert stored(key) is None
