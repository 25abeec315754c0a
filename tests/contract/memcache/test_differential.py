"""The embedded server replies byte for byte like the real memcached.

Random conversations go to both. CAS numbers are compared unchanged: before each conversation the
server with the lower one catches up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.contract.memcache.commands import batches
from tests.contract.memcache.conversations import converse, same
from tests.contract.memcache.corner_cases import CORNER_CASES, PREPARED
from tests.servers import Memcached
from userlock_emulator import memcache

Address = tuple[str, int]


class Pair:
    """A real and an embedded server with equal CAS numbers."""

    def __init__(self, real: Address, embedded: Address) -> None:
        self.real = real
        self.embedded = embedded

    def restart(self) -> int:
        """Empty both and bring them to the same CAS number, which is returned."""
        last = {server: self._last_cas(server) for server in (self.real, self.embedded)}
        newest = max(last.values())
        for server, cas in last.items():
            converse(server, b"ms cas 0 q\r\n\r\n" * (newest - cas) + b"md cas q\r\n")
        return newest

    @staticmethod
    def _last_cas(server: Address) -> int:
        answer = converse(server, b"flush_all\r\nms cas 0 c\r\n\r\nmd cas q\r\n")
        match = re.search(rb"HD c(\d+)\r\n", answer)
        assert match is not None, answer
        return int(match[1])

    def check(self, conversation: list[bytes]) -> None:
        """Send each part to both; replies must be equal. `PREPARED` has CAS numbers @1 to @4."""
        newest = self.restart()
        for part in [PREPARED, *conversation]:
            # `@3` stands for the third CAS number that this conversation will see.
            sent = re.sub(rb"@(\d)", lambda match: b"%d" % (newest + int(match[1])), part)
            expected, got = converse(self.real, sent), converse(self.embedded, sent)
            assert same(expected, got), f"sent {sent!r}\nreal {expected!r}\nours {got!r}"


@pytest.fixture(scope="module")
def pair(real_memcached: Memcached) -> Iterator[Pair]:
    with memcache.start() as server:
        yield Pair((server.host, real_memcached.port), (server.host, server.port))


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(conversation=st.lists(batches(), min_size=1, max_size=4))
@example(
    conversation=[b"ms k 5 ME T30 c\r\ntoken\r\nms k 5 ME T30 c\r\nother\r\n", b"md k C@1 q\r\n"]
)
@example(
    conversation=[b"set n 0 0 2\r\n10\r\nmg n v\r\ndecr n 1\r\nget n\r\n", b"decr n 1\r\nget n\r\n"]
)
def test_random_conversations_get_the_same_answers(pair: Pair, conversation: list[bytes]) -> None:
    pair.check(conversation)


def test_corner_cases_get_the_same_answers(pair: Pair) -> None:
    for sent in CORNER_CASES:
        pair.check([sent])


@pytest.mark.parametrize(
    "altered",
    [
        b"STORED\r\nHD c8 t30\r\n",
        b"STORED\r\nHD c7 t32\r\n",
        b"STORED\r\nHD c7\r\n",
        b"HD c7 t30\r\n",
    ],
)
def test_the_comparison_sees_differences(altered: bytes) -> None:
    original = b"STORED\r\nHD c7 t30\r\n"
    assert not same(original, altered)
    assert same(original, b"STORED\r\nHD c7 t29\r\n")


def test_the_commands_counted_are_the_same(real_memcached: Memcached) -> None:
    script = b"".join(
        [
            b"set a 0 0 1\r\n1\r\nget a b\r\ngat 0 a b\r\ntouch b 0\r\n",
            b"incr a 1\r\ndecr b 1\r\nincr b 1\r\ndecr a 1\r\ndelete a\r\ndelete a\r\n",
            b"cas a 0 0 1 5\r\n1\r\nadd a 0 0 1\r\n1\r\ncas a 0 0 1 999999999\r\n1\r\n",
            b"mg a v\r\nmg b v\r\nmg a T5\r\nmg b T5\r\nmg c N5\r\n",
            b"ma a\r\nma d N0\r\nma e\r\nma e MD\r\nmd a C1\r\nmd a I\r\nmd a\r\nmd a\r\nme a\r\n",
            b"set b 0 0 1\r\nxyz\r\nset b 0 0 2000000\r\n" + b"x" * 2000000 + b"\r\n",
            b"set c 0 -1 1\r\n1\r\nget c\r\nset c 0 0 1\r\n1\r\nflush_all\r\nget c\r\n",
        ]
    )
    # Not get_flushed: memcached drops flushed items when it encounters them.
    counted = rb"STAT ((?:cmd|get_[hme]|delete|incr|decr|cas|touch|store_too)\w+ \d+)\r\n"
    with memcache.start() as server:
        answers = []
        for address in ((server.host, real_memcached.port), (server.host, server.port)):
            converse(address, b"flush_all\r\nstats reset\r\n" + script)
            answers.append(re.findall(counted, converse(address, b"stats\r\n")))
    real, embedded = answers
    shared = [row for row in real if row.split()[0] in {ours.split()[0] for ours in embedded}]
    assert len(shared) == 20
    assert sorted(embedded) == sorted(shared)
