"""Keys of locks: each is of one prefix and one lock id, in every store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
import redis
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from userlock.stores import MemcacheStore
from userlock.stores.datastore import DatastoreStore
from userlock.stores.datastore.rows import check_prefix as check_datastores
from userlock.stores.datastore.rows import row_name
from userlock.stores.keys import KeySpace
from userlock.stores.redis import RedisStore
from userlock.stores.redis.store import MOST_ID_BYTES

Named = tuple[str, str]  # a prefix and a lock id


#: Never used: it takes long to make one.
CLIENT = redis.Redis()


def in_memcached(named: Named) -> object:
    prefix, lock_id = named
    return KeySpace(prefix).lock(lock_id)


def in_redis(named: Named) -> object:
    prefix, lock_id = named
    return RedisStore(CLIENT, prefix=prefix).key(lock_id)


def in_datastore(named: Named) -> object:
    prefix, lock_id = named
    return row_name(check_datastores(prefix), lock_id)


STORES = [in_memcached, in_redis, in_datastore]
_pieces = ["a", "b", ":", ":lock", ":lock=", "=", "#", "lock", "é", " ", "/", "x" * 300, "\ud800"]
_texts = st.lists(st.sampled_from(_pieces), min_size=1, max_size=6).map("".join)
#: Those of ids that are hashed, as if somebody had chosen them for an id.
_hashes = _texts.map(lambda text: hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())
_named = st.tuples(_texts, _texts | _hashes | st.text(min_size=1))


def key_of(store: Callable[[Named], object], named: Named) -> object | None:
    """Return the key; None where the prefix is refused."""
    try:
        return store(named)
    except ValueError:
        return None


@pytest.mark.parametrize("store", STORES)
@settings(max_examples=50)
@given(_named, _named)
@example(("a", "b:lock=c"), ("a:lock=b", "c"))
@example(("a", "b=c"), ("a=b", "c"))
@example(("a", "b#c"), ("a=b", "c"))
@example(("a", "b:lock" + "#" * 200), ("a:lock=b", "#" * 199))
def test_two_locks_never_share_a_key(
    store: Callable[[Named], object], one: Named, other: Named
) -> None:
    assume(one != other)
    keys = key_of(store, one), key_of(store, other)
    assert None in keys or keys[0] != keys[1]


@pytest.mark.parametrize(
    ("store", "pair"),
    [
        (in_memcached, [("a", "b:lock=c"), ("a:lock=b", "c")]),
        (in_redis, [("a", "b:lock=c"), ("a:lock=b", "c")]),
        (in_datastore, [("a", "b=c"), ("a=b", "c")]),
    ],
)
def test_with_any_prefix_they_would(
    store: Callable[[Named], object], pair: list[Named], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: without the check of prefixes."""
    for place in ("redis.store", "keys"):
        monkeypatch.setattr(f"userlock.stores.{place}.check_prefix", lambda prefix, also="": prefix)
    one, other = map(store, pair)
    assert one == other


@pytest.mark.parametrize("prefix", ["", "a=b", "a#b", "a b", "é", "x" * 81, "a\n"])
@pytest.mark.parametrize(
    "open_store",
    [
        lambda prefix: MemcacheStore(prefix=prefix),
        lambda prefix: RedisStore(redis.Redis(), prefix=prefix),
        lambda prefix: DatastoreStore(client=object(), prefix=prefix),
    ],
    ids=["memcached", "redis", "datastore"],
)
def test_every_store_refuses_such_a_prefix(
    open_store: Callable[[str], object], prefix: str
) -> None:
    with pytest.raises(ValueError, match="a key prefix must be 1 to 80 printable"):
        open_store(prefix)


@pytest.mark.parametrize("store", [in_memcached, in_redis])
def test_a_key_is_short_however_long_the_id_is(store: Callable[[Named], object]) -> None:
    for lock_id in ("x" * 1_000_000, "é" * 1_000_000):
        key = store(("a", lock_id))
        assert isinstance(key, bytes)
        assert len(key) < 100
    longest = store(("a", "é" * (MOST_ID_BYTES // 2)))
    assert isinstance(longest, bytes)
    assert len(longest) <= len(b"a:lock=") + MOST_ID_BYTES
