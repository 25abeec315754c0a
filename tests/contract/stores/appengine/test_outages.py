"""Every way in which the service can fail is an outage: neither "free" nor "held"."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from google.appengine.api import apiproxy_stub_map, memcache
from google.appengine.runtime import apiproxy_errors, default_api_stub

from tests.contract.stores.appengine.service import KEY, Service
from tests.leases import existing
from userlock.clock import SYSTEM_CLOCK
from userlock.lock.store import StoreUnavailable
from userlock.stores import appengine
from userlock.stores.appengine import HURRIED_SECONDS, REPLY_SECONDS, AppEngineStore

GET = memcache.MemcacheGetResponse
SET = memcache.MemcacheSetResponse

Verb = Callable[[AppEngineStore, object], object]
#: Each verb on a record that is there, with the version that it has.
VERBS: dict[str, Verb] = {
    "create": lambda store, version: store.create("bob", b"first", 60),
    "read": lambda store, version: store.read("ann"),
    "swap": lambda store, version: store.swap("ann", version, b"next", 60),
    "remove": lambda store, version: store.remove("ann", version),
    "append": lambda store, version: store.append("ann", b"\nline"),
}
every_verb = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())


@pytest.fixture
def _impatient(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appengine, "REPLY_SECONDS", REPLY_SECONDS)
    monkeypatch.setattr(appengine, "HURRIED_SECONDS", HURRIED_SECONDS)


class TestOutages:
    @pytest.fixture
    def version(self, store: AppEngineStore) -> object:
        return existing(store.create("ann", b"first", 60))

    @pytest.mark.parametrize(
        ("name", "error", "refused"),
        [
            *((name, apiproxy_errors.RPCFailedError("broken"), False) for name in VERBS),
            ("read", apiproxy_errors.ApplicationError(9, "unavailable"), False),
            ("read", apiproxy_errors.OverQuotaError("too much"), True),
            ("create", apiproxy_errors.CapabilityDisabledError("off"), True),
        ],
    )
    def test_an_error_is_neither_free_nor_held(
        self,
        service: Service,
        store: AppEngineStore,
        version: object,
        name: str,
        error: apiproxy_errors.Error,
        refused: bool,
    ) -> None:
        service.SetError(error)
        assert memcache.Client().get(KEY) is None, "the control: the SDK's client calls it a miss"
        with pytest.raises(StoreUnavailable) as caught:
            VERBS[name](store, version)
        assert caught.value.__cause__ is error
        assert type(error).__name__ in caught.value.reason
        if refused:
            assert not caught.value.sent
        elif name in ("create", "read"):
            assert (caught.value.sent, caught.value.slow) == (True, True)
        else:
            assert not caught.value.sent, "it only looked, and changed nothing"
        service.SetError(None)
        assert existing(store.read("ann")).record == b"first"

    @every_verb
    def test_a_failed_look_up_is_no_miss(
        self, service: Service, store: AppEngineStore, version: object, verb: Verb
    ) -> None:
        status = GET.TRUNCATED if verb is VERBS["read"] else GET.OTHER_ERROR

        def after(method: str, request: Any, response: Any) -> None:
            if method == "Get":
                del response.item[:]
                response.get_status.append(status)

        service.after = after
        assert memcache.Client().get(KEY) is None, "the control: the SDK's client calls it a miss"
        if verb is VERBS["create"]:
            verb = lambda store, version: store.create("ann", b"second", 60)  # noqa: E731
        with pytest.raises(StoreUnavailable, match=GET.GetStatusCode.Name(status)):
            verb(store, version)

    @pytest.mark.parametrize(
        ("name", "status"),
        [
            *((name, SET.ERROR) for name in VERBS if name != "read"),
            ("swap", SET.DEADLINE_EXCEEDED),
            ("create", None),
        ],
    )
    def test_a_failed_change_is_not_a_refusal(
        self,
        service: Service,
        store: AppEngineStore,
        version: object,
        name: str,
        status: int | None,
    ) -> None:
        def after(method: str, request: Any, response: Any) -> None:
            if method == "Set":
                del response.set_status[:]
                response.set_status.extend([] if status is None else [status])

        service.after = after
        with pytest.raises(StoreUnavailable) as caught:
            VERBS[name](store, version)
        assert caught.value.sent
        assert caught.value.slow == (status == SET.DEADLINE_EXCEEDED)

    @pytest.mark.parametrize("verb", [VERBS[name] for name in VERBS if name != "read"])
    def test_a_change_whose_reply_is_lost_says_so(
        self, service: Service, store: AppEngineStore, version: object, verb: Verb
    ) -> None:
        def after(method: str, request: Any, response: Any) -> None:
            if method == "Set":
                raise apiproxy_errors.RPCFailedError("the connection broke")

        service.after = after
        with pytest.raises(StoreUnavailable) as caught:
            verb(store, version)
        assert (caught.value.sent, caught.value.slow) == (True, True)
        service.after = lambda method, request, response: None
        gone, bob = store.read("ann"), store.read("bob")
        assert gone is None or gone.record != b"first" or bob is not None, "it was carried out"

    @pytest.mark.usefixtures("_impatient")
    @every_verb
    def test_a_hanging_service_is_not_waited_for(
        self, service: Service, store: AppEngineStore, version: object, verb: Verb
    ) -> None:
        answer = threading.Event()
        service.before = lambda method, request: assert_(answer.wait(60))
        began = SYSTEM_CLOCK.now()
        try:
            with pytest.raises(StoreUnavailable, match="no answer within") as caught:
                verb(store, version)
            if verb in (VERBS["create"], VERBS["read"]):
                assert (caught.value.sent, caught.value.slow) == (True, True)
            assert SYSTEM_CLOCK.now() - began < 10
        finally:
            answer.set()

    def test_a_call_that_never_got_a_thread_was_not_sent(
        self,
        service: Service,
        store: AppEngineStore,
        version: object,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        answer, begun = threading.Event(), threading.Semaphore(0)

        def before(method: str, request: Any) -> None:
            begun.release()
            assert answer.wait(60)

        service.before = before
        held = [memcache.Client().get_multi_async([KEY]) for _ in range(100)]
        try:
            for _ in held:
                assert begun.acquire(timeout=30)
            monkeypatch.setattr(appengine, "REPLY_SECONDS", REPLY_SECONDS)
            with pytest.raises(StoreUnavailable) as caught:
                store.create("bob", b"first", 60)
            assert (caught.value.sent, caught.value.slow) == (False, False)
        finally:
            answer.set()
        for rpc in held:
            rpc.wait()
        monkeypatch.setattr(appengine, "REPLY_SECONDS", 30.0)
        assert store.read("bob") is None

    def test_no_swap_in_a_service_without_numbers(
        self, service: Service, store: AppEngineStore, version: object
    ) -> None:
        service._the_cache[""][KEY].cas_id = 0
        with pytest.raises(StoreUnavailable, match="numbers"):
            store.remove("ann", version)

    def test_without_the_service_the_error_names_the_set_up(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(apiproxy_stub_map, "apiproxy", apiproxy_stub_map.APIProxyStubMap())
        with pytest.raises(StoreUnavailable, match="wrap_wsgi_app") as caught:
            AppEngineStore().create("ann", b"first", 60)
        assert not caught.value.sent

    def test_outside_of_a_request_the_error_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As in production, in a thread that serves no request."""
        stub = default_api_stub.DefaultApiStub()
        stubs = apiproxy_stub_map.APIProxyStubMap(stub)
        monkeypatch.setattr(apiproxy_stub_map, "apiproxy", stubs)
        with pytest.raises(StoreUnavailable, match=r"security ticket.* and a request") as caught:
            AppEngineStore().read("ann")
        assert not caught.value.sent


def assert_(value: object) -> None:
    assert value
