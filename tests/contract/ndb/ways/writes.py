"""Ways out."""

from __future__ import annotations

from typing import Any

from google.cloud import ndb

from tests.contract.ndb.ways.tables import in_thread, way_out

put = way_out("put", "Model.put")(lambda entity: entity.put())
put_async = way_out("put_async", "Model.put_async")(lambda entity: entity.put_async())


@way_out("put_async, future dropped")
def put_async_and_forget(entity: Any) -> None:
    entity.put_async()


put_async_of_the_base_class = way_out("put_async of ndb.Model")(
    lambda entity: ndb.Model.put_async(entity)
)
way_out("put of ndb.Model")(lambda entity: ndb.Model.put(entity))
way_out("put_multi", "ndb.put_multi")(lambda entity: ndb.put_multi([entity]))
put_multi_async = way_out("put_multi_async", "ndb.put_multi_async")(
    lambda entity: ndb.put_multi_async([entity])
)


@way_out("put in a tasklet")
def put_in_a_tasklet(entity: Any) -> Any:
    @ndb.tasklet
    def write() -> Any:
        yield ndb.sleep(0)
        yield entity.put_async()

    return write()


put_in_a_transaction = way_out("put in a transaction")(
    lambda entity: ndb.transaction(lambda: entity.put(), join=True)
)


@way_out("put in a transactional tasklet")
def put_in_a_transactional_tasklet(entity: Any) -> Any:
    @ndb.transactional_tasklet()
    def write() -> Any:
        yield entity.put_async()

    return write()


way_out("put in the callback of a map")(
    lambda entity: ndb.Query(ancestor=entity.key, kind=entity.key.kind()).map(
        lambda key: entity.put(), keys_only=True
    )
)
way_out("put from another thread", holds_nothing=True, outside=True)(
    lambda entity: in_thread(lambda: entity.put())
)
way_out("put from a thread with our context variables")(
    lambda entity: in_thread(lambda: entity.put(), with_our_context=True)
)
delete = way_out("delete", "Key.delete", deletes=True)(lambda entity: entity.key.delete())
way_out("delete_async", "Key.delete_async", deletes=True)(lambda entity: entity.key.delete_async())
way_out("delete_multi", "ndb.delete_multi", deletes=True)(
    lambda entity: ndb.delete_multi([entity.key])
)
way_out("delete_multi_async", "ndb.delete_multi_async", deletes=True)(
    lambda entity: ndb.delete_multi_async([entity.key])
)


@way_out("delete in a tasklet", deletes=True)
def delete_in_a_tasklet(entity: Any) -> Any:
    @ndb.tasklet
    def write() -> Any:
        yield ndb.sleep(0)
        yield entity.key.delete_async()

    return write()


way_out("delete in a transaction", deletes=True)(
    lambda entity: ndb.transaction(lambda: entity.key.delete(), join=True)
)
way_out("delete from another thread", deletes=True, holds_nothing=True, outside=True)(
    lambda entity: in_thread(lambda: entity.key.delete())
)
way_out("delete from a thread with our context variables", deletes=True)(
    lambda entity: in_thread(lambda: entity.key.delete(), with_our_context=True)
)
