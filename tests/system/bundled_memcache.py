"""A configuration of gunicorn: App Engine's memcache, played by the SDK's stub, in each worker."""

from __future__ import annotations

from typing import Any

from google.appengine.api import apiproxy_stub_map
from google.appengine.api.memcache import memcache_stub


def post_worker_init(worker: Any) -> None:
    """Install the stub after the app was loaded, and has looked for the real one."""
    stubs = apiproxy_stub_map.APIProxyStubMap()
    stubs.RegisterStub("memcache", memcache_stub.MemcacheServiceStub())
    apiproxy_stub_map.apiproxy = stubs
