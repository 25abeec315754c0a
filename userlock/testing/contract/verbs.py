"""Test each of the five primitives, in sequence: the contract's first part."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from userlock.lock.store import LeaseStore, Stored, StoreUnavailable
from userlock.testing.contract.base import LOCK_IDS, StoreContract, created, found

#: The longest record that the protocol mentions, in bytes.
BIG = 100_000
#: Just under thirty days. memcached reads a longer time to live as a date.
LONGEST_TTL = 30 * 86400 - 3600

#: Records of all kinds.
RECORDS = {
    "one line": b'["4f01","interactive",1763640000.123,60.0,"web-1/77","POST /answers"]',
    "lines": b'["4f01","batch"]\n+i 4f02 1763640000.150 ["web-2/12",""]\n= 4f02',
    "blanks": b"  a  b  \n c ",
    "not ASCII": '["ü","漢字","🔒"]'.encode(),
    "words of protocols": b"END\nVALUE a 0 1\nEN\nHD c1\n+OK\n$-1\n*0\nMN\nSTORED",
    "marks of formats": b"%s %d {0} $1 \\n \\ ' \" ]] -- ; ,",
    "a number": b"1234",
    "big": b"x" * BIG,
    "big, in lines": b"\n".join([b"y" * 999] * (BIG // 1000)),
}

#: Lock ids that some encoding might confuse.
LOOKALIKES = [
    *("a", "A", " a", "a ", "a\t", "a\n", "a\r\n", "a\x00", "\x00a"),
    *("a b", "a%20b", "a+b", "a_b", "a:b", "a/b", "a%2Fb", "lock=a", "a=", "{a}", "*", "?"),
    *("é", "e\u0301", "Å", "\u212b", "ß", "ss", "ﬁ", "fi"),
    *("\ud800", "\udfff", "\ufffd", "\\ud800", "%ED%A0%80"),
    *("😀", "\ud83d\ude00"),
    *("0", "00", "1", "01", "1.0", "٣", "3"),
    *("x" * 200, "x" * 249, "x" * 250, "x" * 251, "x" * 1000, "x" * 1001),
    *("x" * 1_499 + "a", "x" * 1_499 + "b", "a" + "x" * 1_499, "x" * 750 + "a" + "x" * 749),
]

#: The ways to obtain a version: each leaves a record, and returns its version.
VERSIONS: dict[str, Callable[[LeaseStore], object]] = {
    "create": lambda store: store.create("ann", b"first", 60),
    "read": lambda store: (store.create("ann", b"first", 60), found(store.read("ann")).version)[1],
    "swap": lambda store: store.swap("ann", store.create("ann", b"first", 60), b"next", 60),
    "append": lambda store: (
        store.create("ann", b"first", 60),
        found(store.append("ann", b"\nline")).version,
    )[1],
    "swap after append": lambda store: (
        store.create("ann", b"first", 60),
        store.swap("ann", found(store.append("ann", b"\nline")).version, b"next", 60),
    )[1],
}

#: The changes to a record, each of which spends its version.
CHANGES: dict[str, Callable[[LeaseStore, object], object]] = {
    "swap": lambda store, version: store.swap("ann", version, b"changed", 60),
    "swap to the same record": lambda store, version: store.swap("ann", version, b"first", 60),
    "append": lambda store, version: store.append("ann", b"\nline"),
    "remove, and a new record": lambda store, version: (
        store.remove("ann", version),
        store.create("ann", b"another", 60),
    ),
    "remove, and the same record": lambda store, version: (
        store.remove("ann", version),
        store.create("ann", b"first", 60),
    ),
}


def _has(store: LeaseStore, record: bytes, lock_id: str = "ann") -> Stored:
    stored = found(store.read(lock_id))
    assert (stored.record, stored.lapsed) == (record, False)
    return stored


class VerbContract(StoreContract):
    """Test `create`, `read`, `swap`, `remove` and `append`, in sequence."""

    @pytest.mark.parametrize("lock_id", LOCK_IDS.values(), ids=LOCK_IDS.keys())
    def test_any_lock_id_names_a_record(self, store: LeaseStore, lock_id: str) -> None:
        """Each verb does its work once, and leaves what it refuses to change as it is."""
        assert store.read(lock_id) is None
        assert store.append(lock_id, b"\none") is None
        assert store.read(lock_id) is None, "append created a record"
        version = created(store.create(lock_id, b"first", 60))
        assert store.create(lock_id, b"second", 60) is None
        _has(store, b"first", lock_id)
        version = store.swap(lock_id, version, b"next", 60)
        assert version is not None, "swap refused the version that create gave"
        _has(store, b"next", lock_id)
        stored = found(store.append(lock_id, b"\none"))
        answered = (stored.record, stored.lapsed)
        assert answered == (b"next\none", False), "append gives the record as it is afterwards"
        assert store.remove(lock_id, version) is False
        _has(store, b"next\none", lock_id)
        assert store.remove(lock_id, stored.version) is True
        assert store.remove(lock_id, stored.version) is False, "what was gone was removed again"
        assert store.swap(lock_id, stored.version, b"last", 60) is None
        assert store.read(lock_id) is None, "swap created a record"

    def test_different_lock_ids_never_meet(self, store: LeaseStore) -> None:
        for number, lock_id in enumerate(LOOKALIKES):
            version = store.create(lock_id, b"%d" % number, 60)
            assert version is not None, f"{lock_id[:20]!r}… is taken for another lock id"
        for number, lock_id in enumerate(LOOKALIKES):
            assert store.remove(lock_id, _has(store, b"%d" % number, lock_id).version)

    @pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS.keys())
    def test_a_record_is_kept_byte_for_byte(self, store: LeaseStore, record: bytes) -> None:
        """As it is created, swapped, and built line by line."""
        version = created(store.create("ann", record, 60))
        _has(store, record)
        version = created(store.swap("ann", version, b"short", 60))
        _has(store, b"short")
        version = created(store.swap("ann", version, record, 60))
        _has(store, record)
        assert store.remove("ann", version)
        created(store.create("ann", b"first", 60))
        for line in record.split(b"\n"):
            store.append("ann", b"\n" + line)
        _has(store, b"first\n" + record)

    @pytest.mark.parametrize("ttl", [0.001, 0.9, 1.5, 60, LONGEST_TTL])
    def test_any_time_to_live_is_one(self, store: LeaseStore, ttl: float) -> None:
        """It is not rounded down to 0, which is forever to some servers and no time to others."""
        version = created(store.create("ann", b"first", ttl))
        assert found(store.read("ann")).record == b"first"
        if ttl >= 60:
            _has(store, b"first")
            created(store.swap("ann", version, b"next", ttl))
            _has(store, b"next")

    def test_reading_in_a_hurry_reads_the_same(self, store: LeaseStore) -> None:
        assert store.read("ann", hurry=True) is None
        created(store.create("ann", b"first", 60))
        stored = found(store.read("ann", hurry=True))
        assert (stored.record, stored.lapsed) == (b"first", False)
        found(store.read("ann", hurry=True))
        assert store.remove("ann", stored.version), "reading spent a version"

    @pytest.mark.parametrize("way", VERSIONS.values(), ids=VERSIONS.keys())
    def test_swap_and_remove_take_the_version_that_any_verb_gives(
        self, store: LeaseStore, way: Callable[[LeaseStore], object]
    ) -> None:
        version = way(store)
        assert version is not None
        version = store.swap("ann", version, b"swapped", 60)
        assert version is not None
        _has(store, b"swapped")
        assert store.remove("ann", version) is True
        assert store.remove("ann", way(store)) is True
        assert store.read("ann") is None

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
    def test_a_version_is_spent_by_whatever_changes_the_record(
        self, store: LeaseStore, change: Callable[[LeaseStore, object], object]
    ) -> None:
        """Also if the record looks the same: its reader has missed the changes since."""
        for name, way in VERSIONS.items():
            version = way(store)
            change(store, version)
            before = found(store.read("ann"))
            assert store.swap("ann", version, b"swapped", 60) is None, f"swap took one of {name}"
            assert store.take_over("ann", version, b"next", 60) is None, f"take_over, of {name}"
            _has(store, before.record)
            assert store.remove("ann", version) is False, f"remove took one of {name}"
            _has(store, before.record)
            assert store.remove("ann", before.version), "a refused change spent the version"

    @pytest.mark.parametrize(
        ("since", "may_stay"),
        [
            ([], True),
            ([b'\n+i 4f02 1.5 ["web-1/7","GET /"]'], True),
            ([b"\n+i 4f02 1.5 []", b"\n+b 4f03 1.6 []"], True),
            ([b"\n+i 4f02 1.5 []", b"\n= 4f02"], False),
            ([b"\n= 4f01"], False),
            ([b"\n~i 4f02 1.5 []"], False),
            ([b"\n^ 4f02", b"\n+i 4f03 1.5 []"], False),
        ],
    )
    def test_take_over_lets_those_stay_that_have_queued_up_since(
        self, store: LeaseStore, since: list[bytes], may_stay: bool
    ) -> None:
        """Those alone: any other line may have changed whose turn it is."""
        version = created(store.create("ann", b"first", 60))
        for line in since:
            store.append("ann", line)
        new = store.take_over("ann", version, b"next", 60)
        begin = b"first" if new is None else b"next"
        _has(store, begin + b"".join(since))
        assert may_stay or new is None
        if not since:
            assert store.swap("ann", new, b"last", 60) is not None
        elif new is not None:
            assert store.swap("ann", new, b"last", 60) is None, "it would lose those that stayed"

    def test_a_record_may_grow_big_by_many_appends(self, store: LeaseStore) -> None:
        expected = b"first"
        version = created(store.create("ann", expected, 60))
        while len(expected) < BIG:
            line = b"\n%06d " % len(expected) + b"z" * 992
            expected += line
            stored = found(store.append("ann", line))
            assert stored.record == expected
            assert stored.version != version, "append did not give a new version"
            version = stored.version
        created(store.swap("ann", version, expected, 60))
        _has(store, expected)

    def test_use_after_close_works_or_is_refused_cleanly(self, store: LeaseStore) -> None:
        """Close can be called twice, and again."""
        version = created(store.create("ann", b"first", 60))
        store.close()
        store.close()
        uses: list[Callable[[], object]] = [
            lambda: store.create("bob", b"first", 60),
            lambda: store.read("ann"),
            lambda: store.read("ann", hurry=True),
            lambda: store.append("ann", b"\nline"),
            lambda: store.swap("ann", version, b"next", 60),
            lambda: store.remove("ann", version),
        ]
        for use in uses:
            with contextlib.suppress(StoreUnavailable):  # any other error fails the test
                use()
        store.close()
