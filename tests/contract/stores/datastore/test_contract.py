"""The store contract on Datastore rows, against the emulator over gRPC."""

from __future__ import annotations

import time
import uuid

import pytest
from google.cloud import ndb

import userlock
from tests.contract.stores.datastore.conftest import OTHER_MODES, PATIENT, SERVER_CLOCK
from userlock.lock.store import LeaseStore
from userlock.stores.datastore import DatastoreStore
from userlock.testing import FenceContract, LeaseStoreContract, RaceContract


class _OnDatastore:
    """Time passes in the server alone: no client's clock has a say."""

    late_seconds = 1.0

    @pytest.fixture
    def store(self, client: ndb.Client) -> DatastoreStore:
        return DatastoreStore(client, prefix=uuid.uuid4().hex, timeout=PATIENT)

    def now(self, store: LeaseStore) -> float:
        return time.monotonic() + SERVER_CLOCK.ahead

    def wait(self, store: LeaseStore, seconds: float) -> None:
        SERVER_CLOCK.ahead += seconds


class TestDatastore(_OnDatastore, LeaseStoreContract, FenceContract):
    pass


@OTHER_MODES
class TestInOtherModes(_OnDatastore, RaceContract):
    pass


def test_a_service_over_it(client: ndb.Client) -> None:
    service = userlock.LockService.from_url("datastore://?prefix=app1&timeout=10")
    lease = service.acquire("ann")
    assert not lease.degraded
    with pytest.raises(userlock.LockTimeout):
        service.acquire("ann", wait_timeout=0.05)
    service.release(lease)
    assert service.holder("ann") is None
    service.release(service.acquire("ann"))
    service.close()
