"""The conversation: bytes cut anywhere, pipelining, limits, hanging up."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.memcache.support import Talk
from userlock_emulator.memcache.protocol import MAX_UNFINISHED_GET_BYTES

SCRIPT = (
    b"set k 5 0 13\r\nline\r\nget k\r\n\r\nget k\r\nms m 3 ME T30 c\r\nabc\r\nmg m v t\r\n"
    b"add k 0 0 1\r\nx\r\nbogus\r\nset k 0 0 2\r\nxyz\r\nmd m C2 q\r\nmn\r\ngets k m\r\n"
)


def hung_up(talk: Talk) -> bool:
    return talk.connection.closed


@given(st.lists(st.integers(0, len(SCRIPT)), max_size=12))
def test_the_answer_does_not_depend_on_where_the_bytes_are_cut(cuts: list[int]) -> None:
    whole = Talk()(SCRIPT)
    talk = Talk()
    edges = [0, *sorted(cuts), len(SCRIPT)]
    parts = [SCRIPT[start:end] for start, end in itertools.pairwise(edges)]
    assert b"".join(talk(part) for part in parts) == whole
    assert b"VALUE k 5 13\r\nline\r\nget k\r\n" in whole


@given(
    st.binary(max_size=300), st.sampled_from([b"", b"get ", b"mg a ", b"ms a 1 ", b"set a 0 0 "])
)
def test_any_bytes_are_survived(noise: bytes, start: bytes) -> None:
    talk = Talk()
    talk(start + noise + b"\r\n" + noise + b"\r\n")
    assert talk(b"mn\r\n", talk.protocol.connect()) == b"MN\r\n"


def test_a_number_that_a_waiting_reply_refers_to_is_replaced(talk: Talk) -> None:
    talk(b"set n 0 0 2\r\n10\r\n")
    assert talk(b"mg n v\r\ndecr n 1\r\nmg n v\r\n") == b"VA 2\r\n10\r\n9\r\nVA 1\r\n9\r\n"
    talk(b"set n 0 0 2\r\n10\r\n")
    assert talk(b"mg n v\r\n") == b"VA 2\r\n10\r\n"
    assert talk(b"decr n 1\r\nmg n v\r\n") == b"9\r\nVA 2\r\n9 \r\n"


def test_a_client_that_leaves_no_longer_refers_to_items(talk: Talk) -> None:
    talk(b"set n 0 0 2\r\n10\r\n")
    leaver = talk.protocol.connect()
    assert talk(b"mg n v\r\nset x 0 0 9\r\n", leaver) == b""
    talk.protocol.disconnect(leaver)
    assert talk(b"decr n 1\r\nmg n v\r\n") == b"9\r\nVA 2\r\n9 \r\n"


def test_a_line_without_end_closes_the_connection(talk: Talk) -> None:
    assert talk(b"x" * 2048) == b""
    assert not hung_up(talk)
    assert talk(b"x") == b""
    assert hung_up(talk)
    assert talk(b"\r\nversion\r\n") == b""


def test_a_get_may_name_many_keys_but_not_without_limit(talk: Talk) -> None:
    keys = b" key" * 20_000
    assert talk(b"set key 0 0 1\r\nx\r\nget" + keys) == b"STORED\r\n"
    answer = talk(b"\r\n")
    assert answer == b"VALUE key 0 1\r\nx\r\n" * 20_000 + b"END\r\n"
    talk(b"get " + b"k " * (MAX_UNFINISHED_GET_BYTES // 2))
    assert talk.connection.closed


def test_refused_data_is_not_kept(talk: Talk) -> None:
    talk(b"set k 0 0 1000000000\r\n")
    for _ in range(100):
        assert talk(b"x" * 10_000) == b""
    assert talk.connection.buffered_bytes == 0


def test_clients_share_the_cache(talk: Talk) -> None:
    other = talk.protocol.connect()
    talk(b"set k 0 0 1\r\nx\r\n")
    assert talk(b"get k\r\n", other) == b"VALUE k 0 1\r\nx\r\nEND\r\n"
    assert b"STAT curr_connections 2\r\n" in talk(b"stats\r\n")
    talk.protocol.disconnect(other)
    assert b"STAT curr_connections 1\r\n" in talk(b"stats\r\n")


def in_turns(talk: Talk, sent: bytes, most: int) -> tuple[bytes, int]:
    answer = b"".join(talk.connection.receive(sent, most=most))
    turns = 1
    while talk.connection.pending:
        answer += b"".join(talk.connection.receive(b"", most=most))
        turns += 1
    return answer, turns


@given(st.integers(1, 12))
def test_the_answer_does_not_depend_on_the_turns(most: int) -> None:
    answer, turns = in_turns(Talk(), SCRIPT, most)
    assert answer == Talk()(SCRIPT)
    assert turns > 1


@pytest.mark.parametrize("name", [b"get", b"gat 0"])
@pytest.mark.parametrize("count", [99, 101, 10_000])
def test_a_get_of_many_keys_takes_turns(talk: Talk, name: bytes, count: int) -> None:
    talk(b"set k 0 0 1\r\nx\r\n")
    one = talk(name + b" k\r\n").removesuffix(b"END\r\n")
    answer, turns = in_turns(talk, name + b" k" * count + b"\r\nmn\r\n", 100)
    assert answer == one * count + b"END\r\nMN\r\n"
    assert turns >= count // 100


@pytest.mark.parametrize("place", [0, 150, 9_000])
def test_a_key_too_long_among_many_is_found_before_anything_is_sent(talk: Talk, place: int) -> None:
    talk(b"set k 0 0 1\r\nx\r\n")
    keys = [b"k"] * 10_000
    keys[place] = b"k" * 251
    answer, _ = in_turns(talk, b"version\r\nget " + b" ".join(keys) + b"\r\nmn\r\n", 100)
    assert answer == b"CLIENT_ERROR bad command line format\r\nMN\r\n"


def test_one_turn_is_short(talk: Talk) -> None:
    """Whatever arrives at once, a turn executes a bounded number of pieces."""
    talk(b"set k 0 0 1\r\nx\r\n")
    for load in (b"get" + b" k" * 300_000 + b"\r\n", b"get k\r\n" * 9_000, b"mn\r\n" * 9_000):
        talk.connection.receive(load, most=100)
        while talk.connection.pending:
            before = talk.cache.counters.cmd_get
            executed = talk.connection.executed
            talk.connection.receive(b"", most=100)
            assert talk.cache.counters.cmd_get - before <= 200
            assert talk.connection.executed - executed <= 100
