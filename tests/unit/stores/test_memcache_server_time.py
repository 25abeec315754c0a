"""The life of records in memcached, whatever its clock shows; time is moved by hand."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from tests.connections import take
from userlock.lock.store import StoreUnavailable
from userlock.stores import stream
from userlock.stores.memcache.connections import Connection, Connections
from userlock.stores.stream import Refused
from userlock.testing import ManualClock
from userlock.waits import run

#: What the server's time is when the clock of these tests shows 0.
ZERO = 1_700_000_000.0
NO_STATISTICS = b"ERROR\r\n"


class Server:
    """memcached's clock: what `stats` shows is as it was set last, in whole seconds."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.stopped = 0.0
        self.answers: bytes | BaseException | None = None
        self.asked = 0
        self.set_clock()

    @property
    def now(self) -> float:
        return ZERO + self._clock.now() - self.stopped

    def set_clock(self) -> None:
        self.shown = math.floor(self.now)
        self._next_turn = self.now + 1

    def take_in(self) -> Client:
        """Accept a connection: the thread that does so sets the clock first, if it is time to."""
        if self.now >= self._next_turn:
            self.set_clock()
        return Client(self)

    def stats(self) -> bytes:
        self.asked += 1
        if isinstance(self.answers, BaseException):
            raise self.answers
        if self.answers is not None:
            return self.answers
        return b"STAT pid 7\r\nSTAT time %d\r\nSTAT version 1.6.18\r\nEND\r\n" % self.shown


class Client:
    """A client like pymemcache's, as far as a connection needs it; its own socket, too."""

    def __init__(self, server: Server) -> None:
        self.sock = self
        self.closed = False
        self._server = server
        self._answers = b""

    def set_many(self, values: dict[str, bytes], *, noreply: bool) -> None:
        """Connect."""

    def close(self) -> None:
        self.closed = True

    def settimeout(self, seconds: float) -> None:
        """Nothing takes time here."""

    def sendall(self, wire: bytes) -> None:
        answers = {b"version\r\n": lambda: b"VERSION 1.6.18\r\n", b"stats\r\n": self._server.stats}
        self._answers = answers[wire]()

    def recv(self, size: int) -> bytes:
        answer, self._answers = self._answers[:size], self._answers[size:]
        return answer


@pytest.fixture(autouse=True)
def _never_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients here have no sockets to look at."""
    monkeypatch.setattr(stream, "poll_of", lambda _: lambda _: [])


@pytest.fixture
def server(clock: ManualClock) -> Server:
    clock.advance(0.97)
    return Server(clock)


def pool_on(server: Server, clock: ManualClock, **options: Any) -> Connections:
    pool = Connections(
        ("127.0.0.1", 11211), connect_timeout=0.1, timeout=0.3, clock=clock, **options
    )
    pool._client = lambda timeout: server.take_in()  # type: ignore[method-assign]
    return pool


@pytest.fixture
def pool(server: Server, clock: ManualClock) -> Connections:
    return pool_on(server, clock)


def until(pool: Connections, ttl_seconds: float) -> int:
    """Return the expiration that is sent with an item now, without the grace of its dialect."""

    async def exchange(connection: Connection) -> int:
        return await connection.until(ttl_seconds - connection.dialect.grace_seconds)

    return run(pool.exchange, True, exchange)


# --- how long it lives --------------------------------------------------------------------------


def test_seconds_would_be_counted_from_when_it_was_stopped(
    server: Server, clock: ManualClock
) -> None:
    """The negative control: expirations for a server that does not tell its time."""
    pool = pool_on(server, clock, via_proxy=True)
    assert until(pool, 60) == 63
    assert server.asked == 0, "a proxy is not asked for the time"
    clock.advance(9)
    sent = server.shown + until(pool, 60)
    clock.advance(55)
    server.set_clock()
    assert sent <= server.shown, "gone five seconds before its time"


def test_an_item_lives_for_its_time_and_at_most_four_and_a_half_seconds_more() -> None:
    """At any fraction of a second, with turns that come late, and stops in between."""
    chance = random.Random(4)
    for _ in range(100):
        clock = ManualClock()
        clock.advance(chance.random())
        server = Server(clock)
        pool = pool_on(server, clock)
        for _ in range(chance.randrange(8)):
            clock.advance(chance.random())
            if chance.random() < 0.3:
                until(pool, 60)
            clock.advance(chance.choice([0, 0.005, 0.09]))
            server.set_clock()
        clock.advance(chance.random())
        if chance.random() < 0.5:
            clock.advance(chance.randrange(40))  # stopped, and not yet set right
        ttl = chance.choice([0.001, 0.7, 1, 10, 59.5])
        began, sent = clock.now(), until(pool, ttl)
        clock.advance(max(ttl - 0.1, 0) * chance.random())
        server.set_clock()
        while server.shown < sent:
            clock.advance(chance.uniform(0.95, 1.09))
            server.set_clock()
        assert ttl <= clock.now() - began < ttl + 4.6


# --- what is known, and for how long ------------------------------------------------------------


def test_the_server_is_asked_when_a_connection_is_made_and_every_ten_seconds(
    pool: Connections, server: Server, clock: ManualClock
) -> None:
    for number in (1, 2, 3):
        for _ in range(100):
            until(pool, 60)
            clock.advance(0.0999)
            server.set_clock()
        assert server.asked == number
        clock.advance(0.02)


def test_the_latest_possible_time_counts(
    pool: Connections, server: Server, clock: ManualClock
) -> None:
    """A second answer is two seconds lower: the server was stopped, or its clock is late."""
    sent = until(pool, 60)
    server.set_clock()
    clock.advance(11)
    server.shown = math.floor(server.now) - 2
    assert until(pool, 60) == sent + 11
    assert server.asked == 2


def test_a_server_that_shows_more_than_before_is_followed(
    pool: Connections, server: Server, clock: ManualClock
) -> None:
    """The first answer was late: the server had just been stopped."""
    sent = until(pool, 60)
    clock.advance(11)
    server.stopped = -30
    server.set_clock()
    assert until(pool, 60) == sent + 11 + 30


def test_a_server_far_behind_is_asked_again_on_another_connection(
    pool: Connections, clock: ManualClock
) -> None:
    """It was stopped; its answer shows how late it was then."""
    sent = until(pool, 60)
    first = take(pool)
    pool.give_back(first)
    clock.advance(11)
    assert until(pool, 60) in (sent + 11, sent + 12)
    assert first.client.closed
    assert take(pool) is not first


def test_a_clock_that_stood_still_is_followed(
    pool: Connections, server: Server, clock: ManualClock
) -> None:
    """Its machine was suspended for an hour. No caller is to be locked out for that hour."""
    sent = until(pool, 60)
    clock.advance(3600)
    server.stopped = 3600
    assert until(pool, 60) == sent


def test_a_restarted_server_is_asked_again(
    pool: Connections, server: Server, clock: ManualClock
) -> None:
    """The idle connection ends with the question; the item has not been sent yet."""
    until(pool, 60)
    first = take(pool)
    pool.give_back(first)
    clock.advance(11)
    server.set_clock()
    first.client._server = Server(clock)
    first.client._server.answers = ConnectionResetError()
    assert server.shown + 60 < until(pool, 60) <= server.now + 64
    assert first.client.closed


@pytest.mark.parametrize(
    ("error", "raised"),
    [(TimeoutError, StoreUnavailable), (KeyboardInterrupt, KeyboardInterrupt)],
)
def test_no_connection_is_left_in_the_middle_of_an_answer(
    pool: Connections,
    server: Server,
    clock: ManualClock,
    error: type[BaseException],
    raised: type[BaseException],
) -> None:
    until(pool, 60)
    (first,) = pool.idle
    clock.advance(11)
    server.answers = error()
    with pytest.raises(raised):
        until(pool, 60)
    assert first.client.closed


# --- servers that do not tell -------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [NO_STATISTICS, b"STAT pid 7\r\nEND\r\n", b"STAT time 77\r\nEND\r\n"],
    ids=["unknown", "no time", "no date"],
)
def test_a_server_that_does_not_tell_its_time_gets_seconds(
    pool: Connections, server: Server, clock: ManualClock, answer: bytes
) -> None:
    server.answers = answer
    assert until(pool, 60) == 63
    clock.advance(11)
    assert until(pool, 0.5) == 3
    assert server.asked == 1


def test_dates_that_memcached_cannot_count_are_not_sent(
    pool: Connections, server: Server, clock: ManualClock
) -> None:
    """It has 31 bits for them; an item with a later date ends at once (seen in 1.6.18)."""
    clock.advance((1 << 31) - 100 - ZERO - clock.now())
    server.set_clock()
    assert until(pool, 60) == pytest.approx((1 << 31) - 38, abs=1)
    assert until(pool, 120) == 123


@pytest.mark.parametrize("answer", [b"STAT time soon\r\nEND\r\n", b"VA what\r\n", b"END\r\nHD\r\n"])
def test_a_malformed_answer_is_refused(pool: Connections, server: Server, answer: bytes) -> None:
    server.answers = answer
    with pytest.raises(Refused):
        run(pool.make)
