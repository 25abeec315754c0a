"""The store contract in memcached: in both protocols, and what is special about them."""

from __future__ import annotations

import contextlib
import socketserver
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymemcache.client.base import Client

from tests.contract.stores.verbs import use
from tests.faults.proxy import Fault, FaultProxy
from tests.leases import existing
from tests.servers import MEMCACHED_LATE_SECONDS, Memcached
from userlock.clock import SYSTEM_CLOCK, SystemClock
from userlock.lock.store import LeaseStore, StoreUnavailable
from userlock.stores import MemcacheStore, ShardedMemcacheStore
from userlock.stores.memcache.store import _Version
from userlock.testing import (
    FenceContract,
    ForkContract,
    ManualClock,
    RaceContract,
    TimeContract,
    VerbContract,
)
from userlock_emulator import memcache as embedded_memcached

#: The contract's races start many threads on what may be a busy machine.
PATIENT: Any = {"connect_timeout": 5.0, "timeout": 5.0}


def store_on(address: str, **options: object) -> MemcacheStore:
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


class TestMeta(_ByMeta, VerbContract, RaceContract, ForkContract, FenceContract):
    pass


class TestText(_ByText, VerbContract, RaceContract, FenceContract):
    pass


class TestViaProxy(RaceContract):
    """Each change reads the record first."""

    @pytest.fixture(params=["meta", "text"])
    def store(
        self, request: pytest.FixtureRequest, memcached: Memcached
    ) -> Iterator[MemcacheStore]:
        options = {"protocol": request.param, "via_proxy": True}
        with contextlib.closing(store_on(memcached.address, **options)) as store:
            yield store

    def test_each_verb(self, store: MemcacheStore) -> None:
        use(store)


class TestSharded(FenceContract):
    @pytest.fixture
    def servers(self, tmp_path: Path) -> Iterator[list[Memcached]]:
        with contextlib.ExitStack() as stack:
            servers = []
            for number in range(3):
                (tmp_path / f"{number}").mkdir()
                servers.append(Memcached(tmp_path / f"{number}"))
                stack.callback(servers[-1].stop)
            yield servers

    @pytest.fixture
    def store(self, servers: list[Memcached]) -> Iterator[ShardedMemcacheStore]:
        each = [MemcacheStore(server.address, prefix="test", **PATIENT) for server in servers]
        with contextlib.closing(ShardedMemcacheStore(each)) as store:
            yield store

    def test_each_verb_goes_to_the_server_of_its_lock(
        self, store: ShardedMemcacheStore, servers: list[Memcached]
    ) -> None:
        use(store)
        for number in range(60):
            assert store.create(f"learner-{number}", b"first", 60) is not None
        for server in servers:
            with contextlib.closing(Client(server.address)) as client:
                assert int(client.stats()[b"curr_items"]) >= 5


def test_a_store_that_keeps_its_parents_connections_fails(
    memcached: Memcached, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the reset at a fork: not each time, but once in fifty."""
    monkeypatch.setattr("userlock.stores.pool.reset_in_child", lambda _: None)
    for _ in range(50):
        with contextlib.closing(store_on(memcached.address, protocol="text", timeout=0.5)) as store:
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


class TestAStaleItem(_ByMeta):
    """Somebody has marked a record as stale (`md K I`), as caches do. It is still a record."""

    def test_it_is_read_and_swapped(self, store: MemcacheStore, memcached: Memcached) -> None:
        store.create("ann", b"first", 60.0)
        with contextlib.closing(Client(memcached.address)) as client:
            client.raw_command(b"md %b I T60" % store.keys.lock("ann"))
        for _ in range(2):  # it tells only the first reader that it may renew it
            stored = existing(store.read("ann"))
            assert (stored.record, stored.lapsed) == (b"first", False)
        assert store.swap("ann", stored.version, b"second", 60.0) is not None
        assert existing(store.read("ann")).record == b"second"


class _Moved(SystemClock):
    """This machine's clock, moved by hand as the server's is."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._began = clock.now()

    @property
    def moved(self) -> float:
        return self._clock.now() - self._began

    def now(self) -> float:
        return SYSTEM_CLOCK.now() + self.moved


class TestEmbeddedInTime(TimeContract):
    """The clock of the embedded server can be moved by hand, so time costs nothing here."""

    late_seconds = MEMCACHED_LATE_SECONDS

    @pytest.fixture
    def store(self, clock: ManualClock) -> Iterator[MemcacheStore]:
        self.clock = clock
        self.both = both = _Moved(clock)
        with embedded_memcached.start() as server:
            real = server.cache._clock
            server.cache._clock = lambda: real() + both.moved
            with contextlib.closing(MemcacheStore(server.address, clock=both, **PATIENT)) as store:
                yield store

    def now(self, store: LeaseStore) -> float:
        return self.both.now()

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
            if word in ("ms", "add", "append"):
                self.rfile.readline()  # the record
            server.seen.append(word)
            self.wfile.write(server.answers[word])


class TestProtocol:
    @pytest.mark.parametrize(
        ("protocol", "version", "word"),
        [
            *((None, version, "add") for version in ("1.6.11", "1.6", "nonsense", "")),
            *((None, version, "ms") for version in ("1.6.12", "1.6.21-beta1", "1.10.0")),
            ("meta", "1.5.22", "ms"),
            ("text", "1.6.18", "add"),
        ],
    )
    def test_the_servers_version_decides_unless_one_is_named(
        self, protocol: str | None, version: str, word: str
    ) -> None:
        with _Server(version) as server:
            store = MemcacheStore(server.address, protocol=protocol, **PATIENT)
            with contextlib.closing(store):
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
            stored = existing(text.append("ann", b"\nline"))
            assert text.create("ann", b"second", 60) is None
            assert text.swap("ann", stored.version, b"next", 60) is not None
            stored = existing(meta.read("ann"))
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

    def test_a_server_that_does_not_tell_its_uptime_has_no_fence(self) -> None:
        """After its restart the numbers would begin again."""
        with (
            _Server("1.5.22", append=b"STORED\r\n") as server,
            contextlib.closing(MemcacheStore(server.address)) as store,
            pytest.raises(StoreUnavailable, match="when it was started"),
        ):
            store.fence("ann", b"#")

    def test_another_clients_record_stays_without_cas(self) -> None:
        """The text protocol asks for the number of any stored item."""
        with (
            _Server("1.5.22", add=b"NOT_STORED\r\n", gets=_ITEM % 0) as server,
            contextlib.closing(MemcacheStore(server.address)) as store,
        ):
            assert store.create("ann", b"other", 60) is None
        assert "delete" not in server.seen


# --- versions -----------------------------------------------------------------------------------

both_protocols = pytest.mark.parametrize("protocol", ["meta", "text"])


@pytest.mark.parametrize("via_proxy", [False, True])
@both_protocols
def test_the_same_record_again_spends_the_versions_of_others(
    memcached: Memcached, protocol: str, via_proxy: bool
) -> None:
    """By the bytes, all that a store without its connection can go by, nothing has changed."""
    options = {"prefix": uuid.uuid4().hex, "protocol": protocol, "via_proxy": via_proxy, **PATIENT}
    ours, theirs = (MemcacheStore(memcached.address, **options) for _ in range(2))
    with contextlib.closing(ours), contextlib.closing(theirs):
        version = ours.create("ann", b"held", 60)
        seen = existing(theirs.read("ann"))
        ours.close()  # the next commands go over other connections
        theirs.close()
        version = existing(ours.swap("ann", version, b"held", 60))
        assert theirs.swap("ann", seen.version, b"taken over", 60) is None
        assert not theirs.remove("ann", seen.version)
        ours.close()
        assert ours.remove("ann", version)


async def _trusting(_: object, version: _Version) -> int:
    return version.cas


@pytest.mark.parametrize(
    ("protocol", "idle", "trusting"),
    [
        ("meta", False, False),
        ("meta", True, False),
        ("text", False, False),
        ("text", True, False),
        pytest.param("meta", True, True, id="the negative control"),
    ],
)
def test_a_version_of_before_a_restart_is_worth_nothing(
    own_memcached: Memcached,
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
    trusting: bool,
    idle: bool,
) -> None:
    """Numbers begin again: the old one is the next owner's now."""
    ours, theirs = (
        MemcacheStore(own_memcached.address, prefix="test", protocol=protocol, **PATIENT)
        for _ in range(2)
    )
    with contextlib.closing(ours), contextlib.closing(theirs):
        version = ours.create("ann", b"ours", 60)
        own_memcached.restart()
        assert theirs.create("ann", b"theirs", 60) is not None
        if not idle:
            ours.close()
        if trusting:
            monkeypatch.setattr(ours, "_number", _trusting)
        assert (ours.swap("ann", version, b"ours", 60) is not None) == trusting
        assert existing(theirs.read("ann")).record == (b"ours" if trusting else b"theirs")


@pytest.mark.parametrize(
    ("protocol", "commands"),
    [("meta", [b"ms ", b"md "]), ("text", [b"add ", b"cas "])],
)
def test_a_lock_and_its_release_are_two_round_trips(
    memcached: Memcached, protocol: str, commands: list[bytes]
) -> None:
    """In the text protocol as well, where the reply to a write has no number."""
    with (
        FaultProxy(memcached.port) as proxy,
        contextlib.closing(store_on(proxy.address, protocol=protocol)) as store,
    ):
        store.read("warm-up")  # some questions are asked once on each connection
        proxy.arm({})
        assert store.remove("ann", store.create("ann", b"held", 60))
        sent = proxy.seen[-proxy.passed :]
    assert [each.partition(b" ")[0] + b" " for each in sent] == commands


@pytest.mark.parametrize("via_proxy", [False, True])
def test_a_broken_connection_behind_a_proxy_may_still_be_slow(
    memcached: Memcached, via_proxy: bool
) -> None:
    """A proxy may hang up on us, and pass the command on all the same."""
    with (
        FaultProxy(memcached.port) as proxy,
        contextlib.closing(store_on(proxy.address, via_proxy=via_proxy)) as store,
    ):
        store.read("warm-up")
        with proxy.fault(b"ms ", Fault.CUT_BEFORE), pytest.raises(StoreUnavailable) as caught:
            store.create("ann", b"held", 60)
    assert (caught.value.sent, caught.value.slow) == (True, via_proxy)
