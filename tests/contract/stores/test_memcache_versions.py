"""Versions in memcached whose CAS number alone does not identify a record."""

from __future__ import annotations

import contextlib
import uuid

import pytest

from tests.faults.proxy import Fault, FaultProxy
from tests.servers import Memcached
from userlock.lock.store import StoreUnavailable
from userlock.stores import MemcacheStore


@pytest.mark.parametrize("via_proxy", [False, True])
@pytest.mark.parametrize("protocol", ["meta", "text"])
class TestTheSameRecordAgain:
    """A holder that extends its lease writes the record that is there already.

    A waiter that had seen it lapsed just before must not take it over: by the bytes
    alone, which is all that a store can go by that has lost its connection,
    nothing has changed.
    """

    def test_an_earlier_reader_is_refused(
        self, memcached: Memcached, protocol: str, via_proxy: bool
    ) -> None:
        prefix = uuid.uuid4().hex
        ours, theirs = (
            MemcacheStore(memcached.address, prefix=prefix, protocol=protocol, via_proxy=via_proxy)
            for _ in range(2)
        )
        with contextlib.closing(ours), contextlib.closing(theirs):
            version = ours.create("ann", b"held", 60)
            seen = theirs.read("ann")
            assert seen is not None
            theirs.close()  # the next command goes over another connection
            assert ours.swap("ann", version, b"held", 60) is not None
            assert theirs.swap("ann", seen.version, b"taken over", 60) is None
            assert not theirs.remove("ann", seen.version)

    def test_its_own_version_is_good_on_another_connection(
        self, memcached: Memcached, protocol: str, via_proxy: bool
    ) -> None:
        store = MemcacheStore(
            memcached.address, prefix=uuid.uuid4().hex, protocol=protocol, via_proxy=via_proxy
        )
        with contextlib.closing(store):
            version = store.create("ann", b"held", 60)
            store.close()
            version = store.swap("ann", version, b"held", 60)
            assert version is not None
            store.close()
            assert store.remove("ann", version)


@pytest.mark.parametrize("protocol", ["meta", "text"])
@pytest.mark.parametrize("trusting", [False, True])
def test_many_versions_of_before_a_restart_are_worth_nothing(
    own_memcached: Memcached, monkeypatch: pytest.MonkeyPatch, protocol: str, trusting: bool
) -> None:
    """Numbers begin again: old ones are the next owners' now."""
    ours, theirs = (
        MemcacheStore(own_memcached.address, prefix="test", protocol=protocol) for _ in range(2)
    )
    names = [f"learner-{number}" for number in range(20)]
    with contextlib.closing(ours), contextlib.closing(theirs):
        versions = {name: ours.create(name, b"ours", 60) for name in names}
        own_memcached.restart()
        for name in names:
            assert theirs.create(name, b"theirs", 60) is not None
        if trusting:  # the negative control
            monkeypatch.setattr(ours, "_trusts", lambda *_: True)
        taken = [
            outcome is not None
            for outcome in (
                ours.swap(name, version, b"ours", 60) for name, version in versions.items()
            )
        ]
        assert taken == [trusting] * len(names)
        found = [stored and stored.record for stored in map(theirs.read, names)]
        assert found == [b"ours" if trusting else b"theirs"] * len(names)


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
        contextlib.closing(
            MemcacheStore(proxy.address, prefix=uuid.uuid4().hex, protocol=protocol)
        ) as store,
    ):
        store.read("warm-up")  # some questions are asked once on each connection
        proxy.arm({})
        assert store.remove("ann", store.create("ann", b"held", 60))
        sent = proxy.seen[-proxy.passed :]
    assert len(sent) == len(commands)
    for packet, command in zip(sent, commands, strict=True):
        assert packet.startswith(command)


@pytest.mark.parametrize("via_proxy", [False, True])
@pytest.mark.parametrize("protocol", ["meta", "text"])
def test_a_broken_connection_behind_a_proxy_may_still_be_slow(
    memcached: Memcached, protocol: str, via_proxy: bool
) -> None:
    """A proxy may hang up on us, and pass the command on all the same."""
    prefix = uuid.uuid4().hex
    with FaultProxy(memcached.port) as proxy:
        store = MemcacheStore(proxy.address, prefix=prefix, protocol=protocol, via_proxy=via_proxy)
        with contextlib.closing(store):
            store.read("warm-up")
            command = b"ms " if protocol == "meta" else b"add "
            with proxy.fault(command, Fault.CUT_BEFORE), pytest.raises(StoreUnavailable) as caught:
                store.create("ann", b"held", 60)
    assert (caught.value.sent, caught.value.slow) == (True, via_proxy)
