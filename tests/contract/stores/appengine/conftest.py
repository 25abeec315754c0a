"""A memcache for each test."""

from __future__ import annotations

import pytest
from google.appengine.api import apiproxy_stub_map

from tests.contract.stores.appengine.service import Service, WallClock
from userlock.stores import appengine
from userlock.stores.appengine import AppEngineStore
from userlock.testing import ManualClock


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> Service:
    stubs = apiproxy_stub_map.APIProxyStubMap()
    monkeypatch.setattr(apiproxy_stub_map, "apiproxy", stubs)
    # A busy machine is no outage; tests of outages are as impatient as the store is.
    for limit in ("REPLY_SECONDS", "HURRIED_SECONDS", "APPEND_SECONDS"):
        monkeypatch.setattr(appengine, limit, 30.0)
    service = Service(gettime=clock.wall)
    stubs.RegisterStub("memcache", service)
    return service


@pytest.fixture
def store(service: Service, clock: ManualClock) -> AppEngineStore:
    return AppEngineStore(clock=WallClock(clock))
