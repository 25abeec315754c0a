"""Ways in: from caches, in transactions, in tasklets, in threads."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from google.cloud import ndb

from tests.contract.ndb.servers import EmptyGlobalCache
from tests.contract.ndb.ways.lookups import key_of
from tests.contract.ndb.ways.models import Person
from tests.contract.ndb.ways.tables import Gives, by_somebody_else, in_thread, way_in

# --- caches ---------------------------------------------------------------------------------


def read_into_the_context_cache(user: str) -> Any:
    return key_of(user).get()


way_in("context cache", prepare=read_into_the_context_cache)(lambda user: key_of(user).get())
context_cache_by_a_query = way_in(
    "query from the context cache", prepare=read_into_the_context_cache
)(lambda user: Person.query(Person.name == user).get())


def with_a_global_cache() -> AbstractContextManager[object]:
    context: Any = ndb.get_context().new(global_cache=EmptyGlobalCache(), cache=None)
    used: AbstractContextManager[object] = context.use()
    return used


def read_into_the_global_cache(user: str) -> None:
    """Read it into the cache; then put it as a request that does not use this cache."""
    person = key_of(user).get(use_cache=False)
    assert ndb.get_context().global_cache.cache
    by_somebody_else(person.put)


global_cache = way_in(
    "global cache", around=with_a_global_cache, prepare=read_into_the_global_cache
)(lambda user: key_of(user).get())
way_in(
    "global cache, async",
    around=with_a_global_cache,
    prepare=read_into_the_global_cache,
    is_async=True,
    sent_at_once=True,
)(lambda user: key_of(user).get_async())
# --- transactions ---------------------------------------------------------------------------
way_in("in a transaction", "ndb.transaction")(
    lambda user: ndb.transaction(lambda: key_of(user).get(), join=True)
)
way_in("in a read-only transaction", outside=True)(
    lambda user: ndb.transaction(lambda: key_of(user).get(), read_only=True)
)
way_in("in a transaction, async", "ndb.transaction_async")(
    lambda user: ndb.transaction_async(lambda: key_of(user).get_async(), join=True)
)


@way_in("in a transactional function", "ndb.transactional")
def transactional(user: str) -> Any:
    @ndb.transactional()
    def read() -> Any:
        return key_of(user).get()

    return read()


@way_in("in a transactional function, async", "ndb.transactional_async")
def transactional_async(user: str) -> Any:
    @ndb.transactional_async()
    def read() -> Any:
        return key_of(user).get()

    return read()


@way_in("in a transactional tasklet", "ndb.transactional_tasklet")
def transactional_tasklet(user: str) -> Any:
    @ndb.transactional_tasklet()
    def read() -> Any:
        person = yield key_of(user).get_async()
        return person

    return read()


@way_in("in a non_transactional function", "ndb.non_transactional", outside=True)
def non_transactional(user: str) -> Any:
    @ndb.non_transactional()
    def read() -> Any:
        return key_of(user).get()

    return ndb.transaction(read)


way_in("query in a transaction")(
    lambda user: ndb.transaction(Person.query(Person.name == user).fetch, join=True)
)


# --- tasklets -------------------------------------------------------------------------------


@way_in("in a tasklet", "ndb.tasklet", is_async=True)
def tasklet(user: str) -> Any:
    @ndb.tasklet
    def read() -> Any:
        person = yield key_of(user).get_async()
        return person

    return read()


@way_in("in a tasklet, several at once", is_async=True)
def tasklet_with_several(user: str) -> Any:
    @ndb.tasklet
    def read() -> Any:
        person, _ = yield key_of(user).get_async(), key_of("nobody").get_async()
        return person

    return read()


@way_in("query in a tasklet", is_async=True, sent_at_once=True)
def tasklet_with_a_query(user: str) -> Any:
    @ndb.tasklet
    def read() -> Any:
        people = yield Person.query(Person.name == user).fetch_async()
        return people

    return read()


@way_in("in a synctasklet", "ndb.synctasklet")
def synctasklet(user: str) -> Any:
    @ndb.synctasklet
    def read() -> Any:
        person = yield key_of(user).get_async()
        return person

    return read()


@way_in("in a toplevel", "ndb.toplevel")
def toplevel(user: str) -> Any:
    @ndb.toplevel
    def read() -> Any:
        person = yield key_of(user).get_async()
        return person

    return read()


# --- threads --------------------------------------------------------------------------------


thread = way_in("in another thread", gives=Gives.UNLOCKED, outside=True)(
    lambda user: in_thread(lambda: key_of(user).get())
)
way_in("in a thread with our context variables")(
    lambda user: in_thread(lambda: key_of(user).get(), with_our_context=True)
)
