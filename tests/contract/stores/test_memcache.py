"""The store contract in memcached: each protocol, one server or several, and behind a proxy."""

from __future__ import annotations

import contextlib
import socketserver
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymemcache.client.base import Client

from tests.servers import MEMCACHED_LATE_SECONDS, Memcached
from userlock.clock import SYSTEM_CLOCK, SystemClock
from userlock.lock.store import LeaseStore, StoreUnavailable
from userlock.stores import MemcacheStore, ShardedMemcacheStore
from userlock.testing import (
    FenceContract,
    ForkContract,
    ManualClock,
    RaceContract,
    RewriteContract,
    TimeContract,
    VerbContract,
)
from userlock_emulator import memcache as embedded_memcached

#: The contract's races start many threads on what may be a busy machine.
PATIENT: Any = {"connect_timeout": 5.0, "timeout": 5.0}


def store_on(address: str, **options: object) -> MemcacheStore:
    """Return a store with a prefix of its own."""
    return MemcacheStore(address, prefix=uuid.uuid4().hex, **{**PATIENT, **options})


# --- the contract -------------------------------------------------------------------------------


class _ByMeta:
    late_seconds = MEMCACHED_LATE_SECONDS

    @pytest.fixture
    def store(self, memcached: Memcached) -> Iterator[MemcacheStore]:
        with contextlib.closing(store_on(memcached.address, protocol="meta")) as store:
            yield store


class _ByText:
    #: The text protocol does not say how long an item has still to live.
    tells_lapsed = False
    late_seconds = MEMCACHED_LATE_SECONDS

    @pytest.fixture
    def store(self, memcached: Memcached) -> Iterator[MemcacheStore]:
        with contextlib.closing(store_on(memcached.address, protocol="text")) as store:
            yield store


class _ViaProxy:
    @pytest.fixture
    def store(self, memcached: Memcached) -> Iterator[MemcacheStore]:
        with contextlib.closing(store_on(memcached.address, via_proxy=True)) as store:
            yield store


class _ByTextViaProxy:
    @pytest.fixture
    def store(self, memcached: Memcached) -> Iterator[MemcacheStore]:
        options = {"protocol": "text", "via_proxy": True}
        with contextlib.closing(store_on(memcached.address, **options)) as store:
            yield store


@pytest.fixture(scope="module")
def three_memcacheds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Memcached]]:
    with contextlib.ExitStack() as stack:
        servers = []
        for number in range(3):
            server = Memcached(tmp_path_factory.mktemp(f"memcached-{number}"))
            stack.callback(server.stop)
            servers.append(server)
        yield servers


class _OnThree:
    @pytest.fixture
    def store(self, three_memcacheds: list[Memcached]) -> Iterator[ShardedMemcacheStore]:
        prefix = uuid.uuid4().hex
        servers = [
            MemcacheStore(server.address, prefix=prefix, **PATIENT) for server in three_memcacheds
        ]
        with contextlib.closing(ShardedMemcacheStore(servers)) as store:
            yield store


class _Everything(VerbContract, RewriteContract, RaceContract, ForkContract):
    """The whole contract but `TimeContract`."""


class TestMeta(_ByMeta, _Everything, FenceContract):
    pass


class TestText(_ByText, VerbContract, RaceContract, ForkContract, FenceContract):
    pass


class TestViaProxy(_ViaProxy, VerbContract, RewriteContract, RaceContract, ForkContract):
    pass


class TestTextViaProxy(_ByTextViaProxy, VerbContract, RaceContract, ForkContract):
    pass


class TestSharded(
    _OnThree,
    VerbContract,
    RewriteContract,
    RaceContract,
    ForkContract,
    FenceContract,
):
    def test_the_locks_are_on_all_servers(
        self, store: ShardedMemcacheStore, three_memcacheds: list[Memcached]
    ) -> None:
        """Otherwise the tests of this class would say little."""
        for number in range(60):
            assert store.create(f"learner-{number}", b"first", 60) is not None
        for server in three_memcacheds:
            with contextlib.closing(Client(server.address)) as client:
                assert int(client.stats()[b"curr_items"]) >= 5


@pytest.mark.parametrize("protocol", ["meta", "text"])
def test_a_store_that_keeps_its_parents_connections_fails(
    memcached: Memcached, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """The negative control of the reset at a fork.

    Not each time: one side may be done with the connection before the other begins.
    """
    monkeypatch.setattr("userlock.stores.pool.reset_in_child", lambda _: None)
    for _ in range(50):
        with contextlib.closing(store_on(memcached.address, protocol=protocol)) as store:
            try:
                ForkContract().test_a_forked_child_has_a_store_of_its_own(store)
            except (AssertionError, StoreUnavailable):
                return
    pytest.fail("it never failed")


@pytest.mark.slow
class TestMetaInTime(_ByMeta, TimeContract):
    pass


@pytest.mark.slow
class TestTextInTime(_ByText, TimeContract):
    pass


class _Moved(SystemClock):
    """This machine's clock, moved by hand as the server's is."""

    def __init__(self, test: TestEmbedded) -> None:
        self._test = test

    def now(self) -> float:
        return SYSTEM_CLOCK.now() + self._test._moved()


class TestEmbedded(VerbContract, RewriteContract, RaceContract, TimeContract):
    """Its server's clock can be moved by hand, so time costs nothing here."""

    late_seconds = MEMCACHED_LATE_SECONDS

    @pytest.fixture
    def store(self, clock: ManualClock) -> Iterator[MemcacheStore]:
        self.clock = clock
        self._began = clock.now()
        with embedded_memcached.start() as server:
            real = server.cache._clock
            server.cache._clock = lambda: real() + self._moved()
            with contextlib.closing(
                MemcacheStore(server.address, clock=_Moved(self), **PATIENT)
            ) as store:
                yield store

    def _moved(self) -> float:
        return self.clock.now() - self._began

    def now(self, store: LeaseStore) -> float:
        return time.monotonic() + self._moved()

    def wait(self, store: LeaseStore, seconds: float) -> None:
        self.clock.advance(seconds)


# --- which protocol -----------------------------------------------------------------------------


class _Server(socketserver.ThreadingTCPServer):
    """Answers `version` with `version`, and other commands by their first word with `answers`."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, version: str, **answers: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Conversation)
        self.version = version.encode()
        self.answers = {"ms": b"HD c1\r\n", "add": b"STORED\r\n", "gets": _ITEM % 1} | answers
        self.seen: list[str] = []
        self.address = f"127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> _Server:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


_ITEM = b"VALUE userlock:lock=ann 0 5 %d\r\nfirst\r\nEND\r\n"


class _Conversation(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        while line := self.rfile.readline().decode():
            word = line.split()[0]
            if word == "version":
                self.wfile.write(b"VERSION %b\r\n" % server.version)
                continue
            if word == "stats":
                self.wfile.write(b"ERROR\r\n")
                continue
            if word in ("ms", "add"):
                self.rfile.readline()  # the record
            server.seen.append(word)
            self.wfile.write(server.answers[word])


class TestProtocol:
    @pytest.mark.parametrize(
        ("version", "word"),
        [
            ("1.4.39", "add"),
            ("1.5.22", "add"),
            ("1.6.9", "add"),
            ("1.6.11", "add"),
            ("1.6.12", "ms"),
            ("1.6.18", "ms"),
            ("1.6.21-beta1", "ms"),
            ("1.10.0", "ms"),
            ("2.0.0", "ms"),
            ("nonsense", "add"),
            ("1.6", "add"),
            ("", "add"),
        ],
    )
    def test_the_servers_version_decides(self, version: str, word: str) -> None:
        with _Server(version) as server:
            with contextlib.closing(MemcacheStore(server.address)) as store:
                assert store.create("ann", b"first", 60) is not None
            assert server.seen[0] == word

    @pytest.mark.parametrize(
        ("protocol", "version", "word"), [("meta", "1.5.22", "ms"), ("text", "1.6.18", "add")]
    )
    def test_an_explicit_protocol_overrides_it(
        self, protocol: str, version: str, word: str
    ) -> None:
        with _Server(version) as server:
            with contextlib.closing(MemcacheStore(server.address, protocol=protocol)) as store:
                assert store.create("ann", b"first", 60) is not None
            assert server.seen[0] == word

    def test_an_unknown_protocol_is_refused(self) -> None:
        with pytest.raises(ValueError, match="'meta', 'text' or None"):
            MemcacheStore(protocol="binary")

    def test_both_protocols_share_records(self, memcached: Memcached) -> None:
        """A process that is restarted against a newer server keeps its locks."""
        prefix = uuid.uuid4().hex
        meta, text = (
            MemcacheStore(memcached.address, prefix=prefix, protocol=protocol)
            for protocol in ("meta", "text")
        )
        with contextlib.closing(meta), contextlib.closing(text):
            assert meta.create("ann", b"first", 60) is not None
            stored = text.append("ann", b"\nline")
            assert stored is not None
            assert text.create("ann", b"second", 60) is None
            assert text.swap("ann", stored.version, b"next", 60) is not None
            stored = meta.read("ann")
            assert stored is not None
            assert stored.record == b"next"
            assert meta.remove("ann", stored.version)
            assert text.read("ann") is None

    @pytest.mark.parametrize("protocol", ["meta", "text"])
    def test_a_server_without_cas_holds_no_locks(self, protocol: str) -> None:
        """Nothing could be changed safely there (`memcached -C`): the error says so at once."""

        without = {"ms": b"HD c0\r\n", "md": b"HD\r\n", "gets": _ITEM % 0, "delete": b"DELETED\r\n"}
        with (
            _Server("1.6.18", **without) as server,
            contextlib.closing(MemcacheStore(server.address, protocol=protocol)) as store,
            pytest.raises(StoreUnavailable, match="without CAS"),
        ):
            store.create("ann", b"first", 60)
        assert server.seen[-1] in ("md", "delete"), "a record that cannot be removed must not stay"

    def test_another_clients_record_stays_without_cas(self) -> None:
        """The text protocol asks for the number of any stored item."""
        with (
            _Server("1.5.22", add=b"NOT_STORED\r\n", gets=_ITEM % 0) as server,
            contextlib.closing(MemcacheStore(server.address)) as store,
        ):
            assert store.create("ann", b"other", 60) is None
        assert "delete" not in server.seen


# --- connections --------------------------------------------------------------------------------


def test_many_threads_share_a_few_connections(own_memcached: Memcached) -> None:
    """One for each thread would be a server's 1,024 in sixteen processes."""
    with contextlib.closing(Client(own_memcached.address)) as client:

        def made() -> int:
            return int(client.stats()[b"total_connections"])

        before = made()
        with contextlib.closing(store_on(own_memcached.address)) as store:
            begin = threading.Barrier(64)

            def use(number: int) -> None:
                begin.wait(10)
                for _ in range(20):
                    version = store.create(f"learner-{number}", b"first", 60)
                    assert version is not None
                    assert store.remove(f"learner-{number}", version)

            with ThreadPoolExecutor(64) as threads:
                list(threads.map(use, range(64)))
            assert made() - before <= 32
