"""ndb's public names: each is tested by a way in or out, or is known to be neither.

A release of ndb that brings a new one fails here: put it on the table, or on
the list below.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator

import google.cloud.ndb
from google.cloud import ndb

from tests.contract.ndb.ways.complete import WAYS_IN, WAYS_OUT

#: Names that return no entity and write none.
NEITHER = """
Client.context
Context.call_on_commit Context.call_on_transaction_complete Context.in_transaction
Context.clear_cache Context.flush Context.get_cache_policy Context.set_cache_policy
Context.get_datastore_policy Context.set_datastore_policy
Context.get_global_cache_policy Context.set_global_cache_policy
Context.get_global_cache_timeout_policy Context.set_global_cache_timeout_policy
Context.get_memcache_policy Context.set_memcache_policy
Context.get_memcache_timeout_policy Context.set_memcache_timeout_policy
Context.get_namespace
Context.clear_retry_state Context.get_retry_state Context.in_retry Context.set_retry_state
Key.app Key.database Key.flat Key.id Key.integer_id Key.kind Key.namespace Key.pairs Key.parent
Key.project Key.reference Key.root Key.serialized Key.string_id Key.to_legacy_urlsafe Key.urlsafe
Model.allocate_ids Model.allocate_ids_async Model.has_complete_key Model.key Model.query
PolyModel.class_
Query.analyze Query.bind Query.count Query.count_async Query.filter Query.order
QueryIterator.cursor_after QueryIterator.cursor_before QueryIterator.probably_has_next
ndb.get_context ndb.get_toplevel_context ndb.in_transaction
ndb.sleep ndb.wait_all ndb.wait_any
"""

#: Names from App Engine's first ndb that exist and are not implemented.
NOT_IMPLEMENTED = """
Context.memcache_add Context.memcache_cas Context.memcache_decr Context.memcache_delete
Context.memcache_get Context.memcache_gets Context.memcache_incr Context.memcache_replace
Context.memcache_set Context.urlfetch
Key.from_old_key Key.to_old_key
Query.run_to_queue QueryIterator.index_list
ndb.add_flow_exception ndb.get_indexes ndb.get_indexes_async ndb.make_connection
ndb.make_context ndb.make_default_context ndb.set_context
"""

#: Classes besides properties, errors and query nodes.
CLASSES = """
AutoBatcher BlobKey Client Context ContextOptions Cursor Expando Future GeoPt GlobalCache Index
IndexState Key MemcacheCache MetaModel Model ModelAdapter ModelAttribute IndexProperty
ParameterizedFunction ParameterizedThing PolyModel Query QueryIterator QueryOptions QueueFuture
RedisCache ReducingFuture RepeatedStructuredPropertyPredicate SerialQueueFuture TransactionOptions
User
"""

#: `metadata` and `stats` have models of Datastore's own kinds, which are not put.
MODULES = """
blobstore client context django_middleware exceptions global_cache key metadata model msgprop
polymodel query stats tasklets utils version
"""

_WALKED = (
    *(ndb.Client, ndb.Context, ndb.Expando, ndb.Key, ndb.Model, ndb.PolyModel),
    *(ndb.Query, ndb.QueryIterator),
)
_LEFT_OUT = (ndb.Property, BaseException, ndb.Node, ndb.Parameter)


def _names_of(owner: type) -> Iterator[str]:
    for name, value in vars(owner).items():
        if not name.startswith("_") and not isinstance(value, (str, tuple, property)):
            yield f"{owner.__name__}.{name}"


def test_each_function_and_method_is_on_one_of_the_lists() -> None:
    there = {name for owner in _WALKED for name in _names_of(owner)}
    there |= {
        f"ndb.{name}"
        for name in ndb.__all__
        if callable(getattr(ndb, name)) and not inspect.isclass(getattr(ndb, name))
    }
    tried = {name for way in WAYS_IN for name in way.covers}
    tried |= {name for way in WAYS_OUT for name in way.covers}
    neither = {*NEITHER.split(), *NOT_IMPLEMENTED.split()}
    assert sorted(there - tried - neither) == [], "new: on which list do they belong?"
    assert sorted((tried | neither) - there) == [], "gone"
    assert tried.isdisjoint(neither)


def test_each_class_is_known() -> None:
    classes = {name for name in ndb.__all__ if inspect.isclass(getattr(ndb, name))}
    others = {name for name in classes if not issubclass(getattr(ndb, name), _LEFT_OUT)}
    assert others == set(CLASSES.split())


def test_each_module_is_known() -> None:
    modules = {module.name for module in pkgutil.iter_modules(google.cloud.ndb.__path__)}
    assert {name for name in modules if not name.startswith("_")} == set(MODULES.split())
