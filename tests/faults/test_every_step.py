"""Each verb of each store, with each fault at each of its packets.

In each case the result is true, another client's record is unchanged, the caller waits no longer
than documented, and the next commands on the same store get their own replies.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from tests.faults.kinds import KINDS, PATIENT, QUICK, AnyFault, Kind, each_fault, kind_of
from tests.faults.proxy import Fault, ReplyFault
from userlock.lock.store import LeaseStore, Stored, StoreUnavailable
from userlock.stores import MemcacheStore, stream
from userlock.stores.pool import REPLY_TIMEOUT

OURS, NEXT, THEIRS = b"ours, as created", b"ours, swapped", b"another client's"
LINE = b"\na line"
#: A verb has 0.4 s, and a busy machine takes longer; without that bound it would never end.
MOST_SECONDS = 10.0
_AT_ONCE = 16


class Run(NamedTuple):
    """The result of a verb, and the server's content before and after, read without the proxy."""

    answer: object
    before: bytes | None
    after: bytes | None


class Scenario(NamedTuple):
    """One verb in one situation.

    Attributes:
        prepare: creates the situation; its result is passed to `act`.
        act: the verb.
        is_right: whether the result agrees with the server's content.
        ours: whether a record of ours may change.
        in_doubt: its first packet is a change that may have been carried out.
    """

    name: str
    prepare: Callable[[LeaseStore, LeaseStore], object]
    act: Callable[[LeaseStore, object], object]
    is_right: Callable[[Run], bool]
    ours: bool
    in_doubt: bool = False


def _nothing(store: LeaseStore, direct: LeaseStore) -> object:
    return None


def _forget_the_time(store: LeaseStore) -> object:
    """Let memcached be asked for its time again."""
    if isinstance(store, MemcacheStore):
        for connection in store.connections.idle:
            connection.good_until = 0.0
    return None


def _their_record(store: LeaseStore, direct: LeaseStore) -> object:
    assert direct.create("ann", THEIRS, 60) is not None
    return None


def _our_record(store: LeaseStore, direct: LeaseStore) -> object:
    version = store.create("ann", OURS, 60)
    assert version is not None
    return version


def _a_version_of_before(store: LeaseStore, direct: LeaseStore) -> object:
    """Return a version of ours that a record of others has replaced."""
    version = _our_record(store, direct)
    stored = direct.read("ann")
    assert stored is not None
    assert direct.remove("ann", stored.version)
    _their_record(store, direct)
    return version


def _read(run: Run) -> bool:
    return isinstance(run.answer, Stored) and run.answer.record == run.after == run.before


def _appended(run: Run) -> bool:
    assert run.before is not None
    return isinstance(run.answer, Stored) and run.answer.record == run.after == run.before + LINE


SCENARIOS = [
    Scenario(
        "create a free lock",
        _nothing,
        lambda store, _: store.create("ann", OURS, 60),
        lambda run: run.answer is not None and run.after == OURS,
        ours=True,
        in_doubt=True,
    ),
    Scenario(
        "create a held lock",
        _their_record,
        lambda store, _: store.create("ann", OURS, 60),
        lambda run: run.answer is None,
        ours=False,
        in_doubt=True,
    ),
    Scenario(
        "create a free lock when the server's time is out of date",
        lambda store, _: _forget_the_time(store),
        lambda store, _: store.create("ann", OURS, 60),
        lambda run: run.answer is not None and run.after == OURS,
        ours=True,
    ),
    Scenario("read", _their_record, lambda store, _: store.read("ann"), _read, ours=False),
    Scenario(
        "read with a short timeout",
        _their_record,
        lambda store, _: store.read("ann", hurry=True),
        _read,
        ours=False,
    ),
    Scenario(
        "swap",
        _our_record,
        lambda store, version: store.swap("ann", version, NEXT, 60),
        lambda run: run.answer is not None and run.after == NEXT,
        ours=True,
        in_doubt=True,
    ),
    Scenario(
        "swap a record that has changed",
        _a_version_of_before,
        lambda store, version: store.swap("ann", version, NEXT, 60),
        lambda run: run.answer is None,
        ours=False,
        in_doubt=True,
    ),
    Scenario(
        "remove",
        _our_record,
        lambda store, version: store.remove("ann", version),
        lambda run: run.answer is True and run.after is None,
        ours=True,
        in_doubt=True,
    ),
    Scenario(
        "remove a record that has changed",
        _a_version_of_before,
        lambda store, version: store.remove("ann", version),
        lambda run: run.answer is False,
        ours=False,
        in_doubt=True,
    ),
    Scenario(
        "append",
        _their_record,
        lambda store, _: store.append("ann", LINE),
        _appended,
        ours=True,
    ),
]


def _record(direct: LeaseStore) -> bytes | None:
    stored = direct.read("ann")
    return None if stored is None else stored.record


def _run(
    kind: Kind,
    scenario: Scenario,
    plan: dict[int, AnyFault],
    *,
    cold: bool,
    timeout: float = REPLY_TIMEOUT,
) -> int:
    """Run one scenario with that plan; return the number of packets of the verb."""
    with kind.proxied(timeout) as (proxy, store, direct):
        _warm_up(store)
        prepared = scenario.prepare(store, direct)
        if cold:
            store.close()  # the verb has to connect first
        before = _record(direct)
        proxy.arm(plan)
        started = time.monotonic()
        answer: object
        try:
            answer = scenario.act(store, prepared)
        except StoreUnavailable as trouble:
            answer = trouble
        seconds = time.monotonic() - started
        packets = proxy.passed
        proxy.arm({})
        where = f"{kind.name}: {scenario.name}, {plan}, cold: {cold}, result {answer!r}"
        assert seconds < MOST_SECONDS, f"{where}: took {seconds:.2f} s"
        run = Run(answer, before, _record(direct))
        if isinstance(answer, StoreUnavailable):
            # A tenth of a second may be too short on a busy machine, without any fault.
            assert plan or answer.slow, where
            if not cold and scenario.in_doubt and [*plan] == [0] and plan[0] in QUICK:
                assert (answer.sent, answer.slow) == (True, False), where
        else:
            assert scenario.is_right(run), f"{where}: {run}"
        if not scenario.ours:
            assert run.after == run.before, f"{where}: {run}"
        _assert_in_step(store, where)
        proxy.deliver()
        if not scenario.ours:
            assert _record(direct) == run.before, f"{where}, and arrived late"
        return packets


def _warm_up(store: LeaseStore) -> None:
    """Connect, without any fault: a busy machine may need more than one try."""
    while True:
        try:
            store.read("warm-up")
        except StoreUnavailable as trouble:
            if not trouble.slow:
                raise
        else:
            return


def _assert_in_step(store: LeaseStore, where: str) -> None:
    """Check that the next commands get their own replies."""
    for number in itertools.count():
        try:
            _assert_own_replies(store, number, where)
        except StoreUnavailable as trouble:
            # As above, without any fault.
            if not trouble.slow:
                raise AssertionError(where) from trouble
        else:
            return


def _assert_own_replies(store: LeaseStore, number: int, where: str) -> None:
    for probe in range(3):
        lock_id, record = f"probe {number} {probe}", b"probe %d" % probe
        version = store.create(lock_id, record, 60)
        assert version is not None, where
        assert store.create(lock_id, b"another", 60) is None, where
        stored = store.read(lock_id)
        assert stored is not None, where
        assert stored.record == record, where
        assert store.remove(lock_id, version) is True, where
        assert store.read(lock_id) is None, where


def _run_in_time(*args: Any, **options: Any) -> int:
    """Run a scenario again if its preparation, without any fault, was too slow."""
    while True:
        try:
            return _run(*args, **options)
        except StoreUnavailable as trouble:
            if not trouble.slow:
                raise


def _drive(kind: Kind, fault: AnyFault, timeout: float = REPLY_TIMEOUT) -> int:
    """Run the fault at every step of every scenario; return the number of runs."""
    plans = []
    for scenario in SCENARIOS:
        for cold in (False, True):
            steps = 0
            while steps == 0:  # a busy machine may be too slow to connect, without any fault
                steps = _run_in_time(kind, scenario, {}, cold=cold, timeout=timeout)
            # One more, for commands that are only sent after a fault.
            plans += [(scenario, {step: fault}, cold) for step in range(steps)]
            if not cold:
                plans.append((scenario, {0: Fault.CUT_BEFORE, 1: fault}, cold))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        runs = [
            pool.submit(_run_in_time, kind, scenario, plan, cold=cold, timeout=timeout)
            for scenario, plan, cold in plans
        ]
        for run in runs:
            run.result()
    return len(runs)


@pytest.mark.parametrize(("kind", "fault"), each_fault(few=(Fault.CUT_AFTER, Fault.DROP_REPLY)))
def test_each_fault_at_each_packet(
    request: pytest.FixtureRequest, kind: str, fault: AnyFault
) -> None:
    timeout = PATIENT if fault in QUICK else REPLY_TIMEOUT
    assert _drive(kind_of(request, kind), fault, timeout) >= 2 * len(SCENARIOS)


def test_a_connection_that_is_kept_after_a_time_out_is_found(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: its late reply is taken for the next command's."""
    kind = kind_of(request, KINDS[0])

    def careless(address: str, prefix: str, timeout: float) -> LeaseStore:
        # A store of its own: others in this process may have pending releases.
        store = kind.open(address, prefix, timeout)
        assert isinstance(store, MemcacheStore)
        # (Two replies at once are seen to be no reply: that is found, too.)
        monkeypatch.setattr(store.connections, "close", store.connections.give_back)
        monkeypatch.setattr(store.connections, "drop_idle", lambda: None)
        return store

    monkeypatch.setattr(stream, "poll_of", lambda _: lambda _: [])
    with pytest.raises(AssertionError):
        _run(kind._replace(open=careless), SCENARIOS[0], {0: ReplyFault.LATE}, cold=False)
