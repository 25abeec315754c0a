"""A memcache for each test."""

from __future__ import annotations

import pytest
from google.appengine.api import apiproxy_stub_map

from tests.contract.stores.appengine.service import Service, WallClock
from userlock.stores.appengine import AppEngineStore
from userlock.testing import ManualClock


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> Service:
    stubs = apiproxy_stub_map.APIProxyStubMap()
    monkeypatch.setattr(apiproxy_stub_map, "apiproxy", stubs)
    service = Service(gettime=clock.wall)
    stubs.RegisterStub("memcache", service)
    return service


@pytest.fixture
def store(service: Service, clock: ManualClock) -> AppEngineStore:
    return AppEngineStore(clock=WallClock(clock))
