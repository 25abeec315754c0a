"""An exchange: one deadline, one bound, and the same replies however they are cut into pieces."""

from __future__ import annotations

import itertools
import select
import socket
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from userlock.stores import stream
from userlock.stores.redis.connections import Connection
from userlock.stores.stream import MOST_LINE_BYTES, MOST_VALUE_BYTES, Refused, Stream, number
from userlock.testing import ManualClock
from userlock.waits import run

TIMEOUT = 0.3
#: By how much the last call may overrun.
SLACK = TIMEOUT / 32


class Server:
    """A socket whose replies come in pieces, each after some seconds by the clock."""

    def __init__(self, clock: ManualClock, pieces: Sequence[bytes], seconds: float = 0.0) -> None:
        self._clock = clock
        self._pieces = list(pieces)
        self._seconds = seconds
        self.timeouts: list[float] = []
        self.received = 0

    def fileno(self) -> int:
        return 0

    def settimeout(self, seconds: float) -> None:
        self.timeouts.append(seconds)

    def sendall(self, wire: bytes) -> None:
        self._wait()

    def recv(self, size: int) -> bytes:
        self._wait()
        piece = self._pieces.pop(0) if self._pieces else b"x"
        if len(piece) > size:
            self._pieces.insert(0, piece[size:])
        self.received += len(piece[:size])
        return piece[:size]

    def _wait(self) -> None:
        patience = self.timeouts[-1]
        self._clock.advance(min(self._seconds, patience))
        if self._seconds > patience:
            raise TimeoutError("timed out")


def stream_of(clock: ManualClock, *pieces: bytes, seconds: float = 0.0) -> tuple[Stream, Server]:
    server = Server(clock, pieces, seconds)
    made = Stream(server, TIMEOUT, clock.now)
    server.timeouts[:] = [TIMEOUT]
    return made, server


# --- the deadline -------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.01, 0.29])
@pytest.mark.parametrize(
    "read", [lambda made: run(made.read_line), lambda made: run(made.read_block, 900_000)]
)
def test_a_slow_reply_ends_with_its_exchange(clock: ManualClock, seconds: float, read: Any) -> None:
    made, _ = stream_of(clock, seconds=seconds)
    began = clock.now()
    with pytest.raises(TimeoutError):
        read(made)
    assert clock.now() - began <= TIMEOUT + SLACK


def test_without_it_a_slow_reply_takes_as_long_as_the_server_likes(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the socket's own time-out bounds each piece."""
    monkeypatch.setattr(Stream, "_hurry", lambda _: None)
    made, _ = stream_of(clock, seconds=0.25)
    began = clock.now()
    with pytest.raises(Refused):
        run(made.read_line)
    assert clock.now() - began > 500


def test_many_replies_share_the_time_of_their_exchange(clock: ManualClock) -> None:
    made, _ = stream_of(clock, *[b"HD\r\n"] * 100, seconds=0.05)
    began = clock.now()
    with pytest.raises(TimeoutError):
        [run(made.ask, each) for each in [b"mn\r\n"] * 100]
    assert clock.now() - began <= TIMEOUT + SLACK
    made.begin()
    assert run(made.ask, b"mn\r\n") == b"HD"


def test_a_slow_way_there_counts_too(clock: ManualClock) -> None:
    made, _ = stream_of(clock, b"HD\r\n", seconds=0.2)
    began = clock.now()
    with pytest.raises(TimeoutError):
        run(made.ask, b"mn\r\n")
    assert clock.now() - began <= TIMEOUT + SLACK


def test_a_reply_in_one_piece_sets_no_time_out(clock: ManualClock) -> None:
    """It would be a system call for each lock."""
    made, server = stream_of(clock, *[b"HD c1\r\n"] * 3)
    for _ in range(3):
        made.begin()
        assert run(made.ask, b"md key\r\n") == b"HD c1"
        clock.advance(60)
    assert server.timeouts == [TIMEOUT]


def test_the_next_exchange_has_the_whole_time(clock: ManualClock) -> None:
    made, server = stream_of(clock, b"H", b"D\r\n", b"HD\r\n", seconds=0.1)
    assert run(made.read_line) == b"HD"
    assert len(server.timeouts) == 2
    made.begin()
    assert server.timeouts[-1] == TIMEOUT
    assert run(made.read_line) == b"HD"


# --- the bound ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-1, MOST_VALUE_BYTES + 1])
def test_an_announced_length_is_refused_before_it_is_read(clock: ManualClock, size: int) -> None:
    made, server = stream_of(clock)
    with pytest.raises(Refused, match="announced"):
        run(made.read_block, size)
    assert server.received == 0


def test_a_long_line_is_refused(clock: ManualClock) -> None:
    made, server = stream_of(clock, b"x" * 10_000_000)
    with pytest.raises(Refused):
        run(made.read_line)
    assert server.received <= MOST_LINE_BYTES + 4096


def test_all_replies_of_an_exchange_are_bounded(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MOST_BYTES", 100_000)
    made, server = stream_of(clock, *[b"STAT a b\r\n"] * 20_000)
    made.begin()
    with pytest.raises(Refused, match="more than 100,000 bytes"):
        all(iter(lambda: run(made.read_line), b""))
    assert server.received <= 100_000 + 4096


@pytest.mark.parametrize("text", [b"", b"-1", b"1_0", b" 1", b"nan", b"9" * 21, b"\xb2"])
def test_a_malformed_number_is_refused(text: bytes) -> None:
    with pytest.raises(Refused):
        number(text)


# --- pieces -------------------------------------------------------------------------------------


def cut(data: bytes, at: set[int]) -> list[bytes]:
    places = [0, *sorted(each for each in at if 0 < each < len(data)), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


@settings(max_examples=40)
@given(st.binary(max_size=300), st.sets(st.integers(0, 400)))
def test_a_value_is_the_same_in_any_pieces(value: bytes, at: set[int]) -> None:
    data = b"VA %d c7\r\n%b\r\nEN\r\n" % (len(value), value)
    made, _ = stream_of(ManualClock(), *cut(data, at))
    assert run(made.read_line) == b"VA %d c7" % len(value)
    assert run(made.read_block, len(value)) == value
    assert run(made.read_line) == b"EN"
    made.finish()


_replies: Any = st.recursive(
    st.none() | st.binary(max_size=40) | st.integers(-(10**18), 10**18),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)


def packed(reply: Any) -> bytes:
    match reply:
        case None:
            return b"$-1\r\n"
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case int():
            return b":%d\r\n" % reply
    return b"*%d\r\n" % len(reply) + b"".join(map(packed, reply))


def redis_of(*pieces: bytes) -> Connection:
    return Connection(SimpleNamespace(_sock=Server(ManualClock(), pieces)), TIMEOUT)


def depth(reply: Any) -> int:
    return 1 + max(map(depth, reply), default=0) if isinstance(reply, list) else 0


@settings(max_examples=40)
@given(_replies, st.sets(st.integers(0, 200)))
def test_a_reply_of_redis_is_the_same_in_any_pieces(reply: Any, at: set[int]) -> None:
    made = redis_of(*cut(packed(reply), at))
    if depth(reply) > 4:
        with pytest.raises(Refused):
            run(made.reply)
    else:
        assert run(made.reply) == reply
        made.finish()


@settings(max_examples=40)
@given(st.binary(max_size=200) | st.text("*$:+-_\r\n0123456789", max_size=60).map(str.encode))
def test_garbage_is_a_reply_or_refused(data: bytes) -> None:
    made = redis_of(data + b"\r\n")
    try:
        run(made.reply)
        made.finish()
    except Refused:
        pass


def error_of(line: str) -> str:
    made = redis_of(f"-{line}\r\n".encode())
    return str(run(made.reply))


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("LOADING Redis is loading the dataset", "Redis is loading the dataset"),
        ("READONLY You can't write against a read only replica.", None),
        ("WRONGPASS invalid username-password pair", None),
        ("ERR unknown command 'AUTH', with args beginning with: 'bob' 'secret' ", "'AUTH'…"),
        ("ERR unknown command `auth`, with args beginning with: `secret`, ", "'auth'…"),
        ("ERR unknown command 'secret'", "unknown command …"),
        ('NOPERM No permissions to access the "secret" key', "access the …"),
        ("ERR 'secret", "…"),
        ("ERR can't use 'it''s secret'", "can't use …"),
    ],
)
def test_an_error_of_redis_is_shown_without_what_it_repeats(line: str, shown: str | None) -> None:
    text = error_of(line)
    assert "secret" not in text
    assert text.endswith(shown or line.partition(" ")[2])


@settings(max_examples=40)
@given(st.text(st.characters(blacklist_characters="\r\n", codec="utf-8"), min_size=8, max_size=40))
def test_an_argument_in_quotes_is_never_shown(argument: str) -> None:
    secret = f"s3cr3t{argument}"
    for quote in "'\"`":
        for begin in ("ERR unknown command ", "ERR cannot ", "NOPERM for user can't "):
            text = error_of(f"{begin}{quote}{secret}{quote}, with args {quote}{secret}{quote}")
            assert "s3cr3t" not in text


@pytest.mark.parametrize("poll", [True, False])
def test_where_there_is_no_poll_it_is_done_without(
    monkeypatch: pytest.MonkeyPatch, poll: bool
) -> None:
    """On Windows, and with eventlet."""
    if not poll:
        monkeypatch.delattr(select, "poll")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Stream(ours, TIMEOUT)
        seen = [bool(connection.stale(0))]
        either = stream.poll_of(ours.fileno())
        assert not either(0)
        theirs.send(b"x")
        assert [*seen, bool(connection.stale(0))] == [False, True]
        assert either(10_000)
