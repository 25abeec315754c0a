"""The meta commands, reply by reply. Sources: doc/protocol.txt, memcached 1.6.18."""

from __future__ import annotations

import pytest

from tests.unit.memcache.support import Talk

ACQUIRE = b"ms lock 5 ME T30 c\r\n"


def test_a_lease_is_granted_once(talk: Talk) -> None:
    assert talk(ACQUIRE + b"mine!\r\n") == b"HD c1\r\n"
    assert talk(ACQUIRE + b"yours\r\n") == b"NS c0\r\n"
    assert talk(b"mg lock v c t\r\n") == b"VA 5 c1 t30\r\nmine!\r\n"


def test_a_lease_ends_with_its_time_to_live(talk: Talk) -> None:
    talk(ACQUIRE + b"mine!\r\n")
    talk.clock.advance(29)
    assert talk(b"mg lock t\r\n") == b"HD t1\r\n"
    talk.clock.advance(1)
    assert talk(b"mg lock t\r\n") == b"EN\r\n"
    assert talk(ACQUIRE + b"yours\r\n") == b"HD c2\r\n"


def test_a_release_deletes_only_its_own_lease(talk: Talk) -> None:
    talk(ACQUIRE + b"mine!\r\n")
    talk.clock.advance(30)
    talk(ACQUIRE + b"yours\r\n")
    assert talk(b"md lock C1 q\r\nmn\r\n") == b"EX\r\nMN\r\n"
    assert talk(b"md lock C2 q\r\nmn\r\n") == b"MN\r\n"
    assert talk(b"md lock C2 q\r\nmn\r\n") == b"NF\r\nMN\r\n"


def test_a_lease_is_extended_only_by_its_holder(talk: Talk) -> None:
    talk(ACQUIRE + b"mine!\r\n")
    talk.clock.advance(20)
    assert talk(b"ms lock 5 C9 T30 c\r\nyours\r\n") == b"EX c0\r\n"
    assert talk(b"ms lock 5 C1 T30 c\r\nmine!\r\n") == b"HD c2\r\n"
    talk.clock.advance(29)
    assert talk(b"mg lock v\r\n") == b"VA 5\r\nmine!\r\n"
    talk.clock.advance(1)
    assert talk(b"ms lock 5 C2 T30 c\r\nmine!\r\n") == b"NF c0\r\n"


def test_fields_come_back_in_the_order_asked_for(talk: Talk) -> None:
    talk(b"ms k 2 F9 T100\r\nab\r\n")
    talk.clock.advance(3)
    assert talk(b"mg k s f t c k Oid h l\r\n") == b"HD s2 f9 t97 c1 kk Oid h0 l3\r\n"
    assert talk(b"mg k h t T5\r\nmg k t\r\n") == b"HD h1 t97\r\nHD t5\r\n"
    assert talk(b"mg absent k Oid\r\nmg absent q k\r\n") == b"EN kabsent Oid\r\n"


def test_the_first_fetch_marks_and_later_ones_count_as_access(talk: Talk) -> None:
    talk(b"ms k 0\r\n\r\n")
    talk.clock.advance(5)
    assert talk(b"mg k u h l\r\nmg k h l\r\nmg k h l\r\nmg k h l\r\n") == (
        b"HD h0 l5\r\nHD h0 l5\r\nHD h1 l5\r\nHD h1 l0\r\n"
    )


@pytest.mark.parametrize(
    ("mode", "over", "value"),
    [
        (b"", b"HD", b"new"),
        (b"MS", b"HD", b"new"),
        (b"ME", b"NS", b"old"),
        (b"MR", b"HD", b"new"),
        (b"MA", b"HD", b"oldnew"),
        (b"MP", b"HD", b"newold"),
    ],
)
def test_store_modes(talk: Talk, mode: bytes, over: bytes, value: bytes) -> None:
    absent = b"NS" if mode in (b"MR", b"MA", b"MP") else b"HD"
    assert talk(b"ms fresh 3 " + mode + b"\r\nnew\r\n") == absent + b"\r\n"
    talk(b"ms k 3\r\nold\r\n")
    assert talk(b"ms k 3 " + mode + b"\r\nnew\r\n") == over + b"\r\n"
    assert talk(b"mg k v\r\n") == b"VA %d\r\n%b\r\n" % (len(value), value)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (b"MX", b"CLIENT_ERROR invalid mode for ms M token"),
        (b"MAdd", b"CLIENT_ERROR incorrect length for M token"),
        (b"T", b"CLIENT_ERROR bad token in command line format"),
        (b"Cx", b"CLIENT_ERROR bad token in command line format"),
        (b"Fx", b"CLIENT_ERROR bad command line format"),
        (b"c c", b"CLIENT_ERROR duplicate flag"),
        (b"\xff", b"CLIENT_ERROR duplicate flag"),
        (b"Z", b"CLIENT_ERROR invalid flag"),
        (b"b", b"CLIENT_ERROR error decoding key"),
        (b"O" + b"1" * 32, b"CLIENT_ERROR opaque token too long"),
        (b" ".join(b"%c" % letter for letter in b"bcfhklOqstuvNRTCM"), b"CLIENT_ERROR options"),
    ],
)
def test_a_refused_ms_swallows_its_data_and_always_says_so(
    talk: Talk, flags: bytes, error: bytes
) -> None:
    answer = talk(b"ms k! 3 q " + flags + b"\r\nabc\r\nmn\r\n")
    if error == b"CLIENT_ERROR options":
        assert answer == b"CLIENT_ERROR options flags too long\r\nERROR\r\nMN\r\n"
    else:
        assert answer == error + b"\r\nMN\r\n"


def test_quiet_modes(talk: Talk) -> None:
    assert talk(b"ms k 1 q\r\nx\r\n") == b""
    assert talk(b"ms k 1 q ME\r\nx\r\n") == b"NS\r\n"
    assert talk(b"ms k 1 q\r\nxyz\r\n") == b"CLIENT_ERROR bad data chunk\r\nERROR\r\n"
    assert talk(b"mg k q\r\nmg absent q\r\n") == b"HD\r\n"
    assert talk(b"md absent q\r\n") == b"NF\r\n"
    assert talk(b"md k q\r\n") == b""
    assert talk(b"ma n N0 q\r\nma n q\r\n") == b"HD\r\n"


def test_binary_keys(talk: Talk) -> None:
    assert talk(b"ms AP8= 1 b k\r\nx\r\n") == b"HD kAP8= b\r\n"
    assert talk(b"mg AP8= b k v\r\n") == b"VA 1 kAP8= b\r\nx\r\n"
    assert talk(b"md AP8= b k\r\nmg AP8= b k\r\n") == b"HD kAP8= b\r\nEN kAP8= b\r\n"
    assert talk(b"md ! b\r\n") == b"CLIENT_ERROR invalid or duplicate flag\r\n"


def test_a_miss_is_vivified_for_one_client(talk: Talk) -> None:
    assert talk(b"mg k N30 v t\r\n") == b"VA 0 t30 W\r\n\r\n"
    assert talk(b"mg k N30 v t\r\n") == b"VA 0 t30 Z\r\n\r\n"
    assert talk(b"ms k 3\r\nnew\r\nmg k v\r\n") == b"HD\r\nVA 3\r\nnew\r\n"


def test_one_client_wins_the_recaching_of_an_old_item(talk: Talk) -> None:
    talk(b"ms k 1 T60\r\nx\r\n")
    assert talk(b"mg k R30\r\n") == b"HD\r\n"
    talk.clock.advance(31)
    assert talk(b"mg k R30\r\nmg k R30\r\n") == b"HD W\r\nHD Z\r\n"


def test_an_invalidated_item_is_stale_until_stored_anew(talk: Talk) -> None:
    talk(b"ms k 3\r\nold\r\n")
    assert talk(b"md k I T30\r\n") == b"HD\r\n"
    assert talk(b"mg k v c t\r\n") == b"VA 3 c2 t30 X W\r\nold\r\n"
    assert talk(b"mg k v\r\n") == b"VA 3 Z X\r\nold\r\n"
    assert talk(b"ms k 3 C1 I c\r\nmid\r\n") == b"HD c3\r\n"
    assert talk(b"mg k v t\r\n") == b"VA 3 t30 Z X\r\nmid\r\n"
    assert talk(b"ms k 3 C3\r\nnew\r\nmg k v t\r\n") == b"HD\r\nVA 3 t-1\r\nnew\r\n"


def test_arithmetic(talk: Talk) -> None:
    assert talk(b"ma n\r\n") == b"NF\r\n"
    assert talk(b"ma n t N60 J13 v c\r\n") == b"VA 2 t-1 c1\r\n13\r\n"
    assert talk(b"ma n D7 v t k Oid\r\n") == b"VA 2 t60 kn Oid\r\n20\r\n"
    assert talk(b"ma n MD D30 v\r\n") == b"VA 1\r\n0\r\n"
    assert talk(b"ma n C9\r\n") == b"EX\r\n"
    assert talk(b"ma n C3 c\r\n") == b"HD c4\r\n"
    assert talk(b"ma n MX\r\n") == b"CLIENT_ERROR invalid mode for ma M token\r\n"
    assert talk(b"ma n D-1\r\n") == b"CLIENT_ERROR invalid or duplicate flag\r\n"


def test_me_tells_what_is_known_of_an_item(talk: Talk) -> None:
    talk(b"ms k 2 T60\r\nab\r\n")
    talk.clock.advance(4)
    assert talk(b"me k\r\n") == b"ME k exp=-56 la=4 cas=1 fetch=no cls=1 size=62\r\n"
    assert talk(b"me absent\r\n") == b"EN\r\n"
    assert talk(b"me\r\n") == b"CLIENT_ERROR bad command line format\r\n"
