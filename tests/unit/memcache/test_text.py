"""The classic commands, reply by reply. Sources: doc/protocol.txt, memcached 1.6.18."""

from __future__ import annotations

import pytest

from tests.unit.memcache.support import Talk


def test_set_and_get(talk: Talk) -> None:
    assert talk(b"set k 7 0 3\r\nabc\r\n") == b"STORED\r\n"
    assert talk(b"get k absent\r\n") == b"VALUE k 7 3\r\nabc\r\nEND\r\n"
    assert talk(b"gets k\r\n") == b"VALUE k 7 3 1\r\nabc\r\nEND\r\n"


@pytest.mark.parametrize(
    ("name", "present", "absent"),
    [
        (b"set", b"STORED", b"STORED"),
        (b"add", b"NOT_STORED", b"STORED"),
        (b"replace", b"STORED", b"NOT_STORED"),
        (b"append", b"STORED", b"NOT_STORED"),
        (b"prepend", b"STORED", b"NOT_STORED"),
    ],
)
def test_storing(talk: Talk, name: bytes, present: bytes, absent: bytes) -> None:
    assert talk(name + b" k 0 0 1\r\nx\r\n") == absent + b"\r\n"
    talk(b"set k 0 0 1\r\ny\r\n")
    assert talk(name + b" k 0 0 1\r\nx\r\n") == present + b"\r\n"


def test_cas_with_an_expiry_in_the_past_is_a_compare_and_delete(talk: Talk) -> None:
    talk(b"set k 0 60 1\r\nx\r\n")
    assert talk(b"cas k 0 -1 0 2\r\n\r\n") == b"EXISTS\r\n"
    assert talk(b"get k\r\n") == b"VALUE k 0 1\r\nx\r\nEND\r\n"
    assert talk(b"cas k 0 -1 0 1\r\n\r\n") == b"STORED\r\n"
    assert talk(b"get k\r\n") == b"END\r\n"
    assert talk(b"cas k 0 -1 0 1\r\n\r\n") == b"NOT_FOUND\r\n"


def test_an_add_after_expiry_is_granted(talk: Talk) -> None:
    assert talk(b"add lock 0 30 1\r\na\r\n") == b"STORED\r\n"
    talk.clock.advance(29)
    assert talk(b"add lock 0 30 1\r\nb\r\n") == b"NOT_STORED\r\n"
    talk.clock.advance(1)
    assert talk(b"add lock 0 30 1\r\nb\r\n") == b"STORED\r\n"


def test_touch_and_gat_set_a_new_expiry(talk: Talk) -> None:
    talk(b"set k 0 10 1\r\nx\r\n")
    assert talk(b"touch k 100\r\n") == b"TOUCHED\r\n"
    talk.clock.advance(50)
    assert talk(b"gat 10 k\r\n") == b"VALUE k 0 1\r\nx\r\nEND\r\n"
    talk.clock.advance(10)
    assert talk(b"gats 10 k\r\ntouch k 1\r\n") == b"END\r\nNOT_FOUND\r\n"


def test_arithmetic(talk: Talk) -> None:
    talk(b"set n 0 0 1\r\n9\r\nset s 0 0 1\r\nx\r\n")
    assert talk(b"incr n 1\r\n") == b"10\r\n"
    assert talk(b"decr n 3\r\nget n\r\n") == b"7\r\nVALUE n 0 2\r\n7 \r\nEND\r\n"
    assert talk(b"incr absent 1\r\n") == b"NOT_FOUND\r\n"
    assert talk(b"incr n abc\r\n") == b"CLIENT_ERROR invalid numeric delta argument\r\n"
    non_numeric = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
    assert talk(b"decr s 1\r\n") == non_numeric


def test_delete(talk: Talk) -> None:
    talk(b"set k 0 0 1\r\nx\r\n")
    assert talk(b"delete k 0\r\n") == b"DELETED\r\n"
    assert talk(b"delete k\r\n") == b"NOT_FOUND\r\n"
    assert talk(b"delete k 5\r\n") == (
        b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n"
    )


def test_noreply_silences_results_and_errors_alike(talk: Talk) -> None:
    quiet = [
        b"set k 0 0 1 noreply\r\nx\r\n",
        b"add k 0 0 1 noreply\r\nx\r\n",
        b"cas k 0 0 1 99 noreply\r\nx\r\n",
        b"incr k 1 noreply\r\n",
        b"touch k 0 noreply\r\n",
        b"delete k noreply\r\n",
        b"delete k 0 noreply\r\n",
        b"verbosity 1 noreply\r\n",
        b"flush_all noreply\r\n",
        b"flush_all 0 noreply\r\n",
        b"set k 0 0 2000000 noreply\r\n" + b"x" * 2_000_000 + b"\r\n",
    ]
    for command in quiet:
        assert talk(command) == b"", command
    assert talk(b"mn\r\n") == b"MN\r\n"


def test_a_refused_line_leaves_its_data_to_be_read_as_a_command(talk: Talk) -> None:
    assert talk(b"set k x 0 7\r\nversion\r\n") == (
        b"CLIENT_ERROR bad command line format\r\nVERSION 1.6.18\r\n"
    )


def test_a_data_block_without_its_end(talk: Talk) -> None:
    talk(b"set k 0 0 3\r\nold\r\n")
    assert talk(b"set k 0 0 3\r\nabcdef\r\n") == b"CLIENT_ERROR bad data chunk\r\nERROR\r\n"
    assert talk(b"get k\r\n") == b"VALUE k 0 3\r\nold\r\nEND\r\n"


def test_a_value_too_large_is_swallowed_and_removes_the_old_one(talk: Talk) -> None:
    talk(b"set k 0 0 1\r\nx\r\n")
    large = b"y" * (1024 * 1024)
    assert talk(b"set k 0 0 %d\r\n%b\r\nmn\r\n" % (len(large), large)) == (
        b"SERVER_ERROR object too large for cache\r\nMN\r\n"
    )
    assert talk(b"get k\r\n") == b"END\r\n"


def test_flush_all(talk: Talk) -> None:
    talk(b"set k 0 0 1\r\nx\r\n")
    assert talk(b"flush_all 10\r\nget k\r\n") == b"OK\r\nVALUE k 0 1\r\nx\r\nEND\r\n"
    talk.clock.advance(10)
    assert talk(b"get k\r\n") == b"END\r\n"
    talk(b"set k 0 0 1\r\nx\r\n")
    assert talk(b"flush_all\r\nget k\r\n") == b"OK\r\nEND\r\n"
    assert talk(b"flush_all x\r\n") == b"CLIENT_ERROR invalid exptime argument\r\n"


@pytest.mark.parametrize(
    "line",
    [b"", b"x", b"GET k", b"get", b"set k 0 0", b"incr k", b"cas k 0 0 1", b"quits", b"delete"],
)
def test_unknown_and_incomplete_commands(talk: Talk, line: bytes) -> None:
    assert talk(line + b"\r\n") == b"ERROR\r\n"


def test_stats(talk: Talk) -> None:
    talk(b"set k 0 0 1\r\nx\r\nget k absent\r\n")
    talk.clock.advance(5)
    rows = talk(b"stats\r\n").split(b"\r\n")
    assert rows[-2:] == [b"END", b""]
    for row in (
        b"STAT uptime 5",
        b"STAT version 1.6.18",
        b"STAT curr_connections 1",
        b"STAT total_connections 1",
        b"STAT cmd_get 2",
        b"STAT get_hits 1",
        b"STAT get_misses 1",
        b"STAT cmd_set 1",
        b"STAT curr_items 1",
        b"STAT limit_maxbytes 67108864",
    ):
        assert row in rows
    assert talk(b"stats reset\r\n") == b"RESET\r\n"
    assert b"STAT cmd_get 0\r\n" in talk(b"stats\r\n")
    assert b"STAT item_size_max 1048576\r\n" in talk(b"stats settings\r\n")
    assert talk(b"stats slabs\r\n") == b"ERROR\r\n"


def test_the_memory_limit_can_be_changed(talk: Talk) -> None:
    assert talk(b"cache_memlimit 8\r\n") == b"OK\r\n"
    assert talk.cache.memory_limit_bytes == 8 * 1024 * 1024
    assert talk(b"cache_memlimit 7\r\n").startswith(b"MEMLIMIT_TOO_SMALL ")
