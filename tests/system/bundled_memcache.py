"""A configuration of gunicorn: App Engine's memcache as the SDK's stub plays it, in each worker."""

from __future__ import annotations

from typing import Any

from google.appengine.api import apiproxy_stub_map
from google.appengine.api.memcache import memcache_stub


def post_worker_init(worker: Any) -> None:
    """The app is loaded, and has asked for the real one."""
    stubs = apiproxy_stub_map.APIProxyStubMap()
    stubs.RegisterStub("memcache", memcache_stub.MemcacheServiceStub())
    apiproxy_stub_map.apiproxy = stubs
