"""The effects of time on items. Replies are compared with a real memcached in tests/contract."""

from __future__ import annotations

from tests.unit.memcache.support import Talk

ACQUIRE = b"ms lock 5 ME T30 c\r\n"


def test_a_lease_ends_with_its_time_to_live(talk: Talk) -> None:
    talk(ACQUIRE + b"mine!\r\n")
    talk.clock.advance(29)
    assert talk(b"mg lock t\r\n") == b"HD t1\r\n"
    talk.clock.advance(1)
    assert talk(b"mg lock t\r\n") == b"EN\r\n"
    assert talk(ACQUIRE + b"yours\r\n") == b"HD c2\r\n"


def test_one_client_wins_the_recaching_of_an_old_item(talk: Talk) -> None:
    talk(b"ms k 1 T60\r\nx\r\n")
    assert talk(b"mg k R30\r\n") == b"HD\r\n"
    talk.clock.advance(31)
    assert talk(b"mg k R30\r\nmg k R30\r\n") == b"HD W\r\nHD Z\r\n"


def test_touch_and_gat_set_a_new_expiry(talk: Talk) -> None:
    talk(b"set k 0 10 1\r\nx\r\n")
    assert talk(b"touch k 100\r\n") == b"TOUCHED\r\n"
    talk.clock.advance(50)
    assert talk(b"gat 10 k\r\n") == b"VALUE k 0 1\r\nx\r\nEND\r\n"
    talk.clock.advance(10)
    assert talk(b"gats 10 k\r\ntouch k 1\r\n") == b"END\r\nNOT_FOUND\r\n"


def test_the_memory_limit_can_be_changed(talk: Talk) -> None:
    assert talk(b"cache_memlimit 8\r\n") == b"OK\r\n"
    assert talk.cache.memory_limit_bytes == 8 * 1024 * 1024
