"""A configuration of gunicorn: App Engine's memcache, played by the SDK's stub, in each worker."""

from __future__ import annotations

from typing import Any

from google.appengine.api import apiproxy_rpc, apiproxy_stub_map
from google.appengine.api.memcache import memcache_stub
from google.appengine.runtime import apiproxy_errors, default_api_stub


class Call(apiproxy_rpc.RPC):
    """A call that, as the service's, belongs to a request of a wrapped app."""

    def _MakeCallImpl(self) -> None:  # noqa: N802
        if not default_api_stub.DefaultApiStub.ShouldUseRequestSecurityTicketForThread():
            raise apiproxy_errors.RPCFailedError("there is no active security ticket")
        super()._MakeCallImpl()


class Memcache(memcache_stub.MemcacheServiceStub):
    def CreateRPC(self) -> Call:  # noqa: N802
        return Call(stub=self)


def post_worker_init(worker: Any) -> None:
    """Install the stub after the app was loaded, and has looked for the real one."""
    stubs = apiproxy_stub_map.APIProxyStubMap()
    stubs.RegisterStub("memcache", Memcache())
    apiproxy_stub_map.apiproxy = stubs
