"""Known differences from Google's emulators (Cloud SDK 528), each with its reason.

The reasons name what the service documents: the comments of `google.datastore.v1`, and the pages on
queries, aggregations and transactions. An entry says that this emulator differs on purpose, not
that nobody looked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tools.compare.programs import ARRAYS, CHECK
from tools.compare.running import BOUNDARY, ERROR, Difference

BOTH = ("datastore", "firestore")
DATASTORE = ("datastore",)
FIRESTORE = ("firestore",)

# How the texts of requests and results show a blob.
_BLOBS = ("blobValue", "blob_value")
_AGGREGATION = "RunAggregationQuery"
_QUERIES = ("RunQuery", _AGGREGATION)


@dataclass(frozen=True)
class Known:
    """A difference that is known.

    Attributes:
        of: the emulators of Google's that it is in.
        title: what they do.
        why: why this emulator does not.
        matches: returns whether a difference is this one.
    """

    of: tuple[str, ...]
    title: str
    why: str
    matches: Callable[[Difference], bool]


def known(name: str, difference: Difference) -> Known | None:
    """Return the entry that explains a difference from that emulator, or None."""
    return next((each for each in KNOWN if name in each.of and each.matches(difference)), None)


def _refused(*rpcs: str, said: tuple[str, ...] = ()) -> Callable[[Difference], bool]:
    """Match what is an error there and works here, by the error's text."""
    return lambda found: (
        found.part == ERROR
        and found.step.rpc in rpcs
        and found.ours == "OK"
        and (not said or any(text in found.said[1] for text in said))
    )


def _refused_here(*said: str, there: tuple[str, ...]) -> Callable[[Difference], bool]:
    """Match what is an error here and something else there, by our error's text."""
    return lambda found: (
        found.part == ERROR
        and found.theirs in there
        and any(text in found.said[0] for text in said)
    )


def _with(feature: str, *parts: str, rpc: str = "") -> Callable[[Difference], bool]:
    """Match by a feature of the step, and the parts that differ."""
    return lambda found: (
        feature in found.step.features
        and found.part in parts
        and (not rpc or found.step.rpc == rpc)
    )


def _limit(*words: str, there: str = "OK") -> Callable[[Difference], bool]:
    """Match a request from the table of limits that is refused here, by its rule or place."""
    return lambda found: (
        BOUNDARY in found.step.features
        and (found.ours, found.theirs) == ("INVALID_ARGUMENT", there)
        and any(word in feature for word in words for feature in found.step.features)
    )


def _once(found: Difference) -> bool:
    """Match a look-up of one key twice that is answered once."""
    return (
        "twice" in found.step.features
        and found.part in ("found", "missing")
        and sorted(set(found.ours)) == found.theirs
    )


def _ties(found: Difference) -> bool:
    """Match the same results in another order, where the last order is descending."""
    request = found.step.request
    descending = "DESC" in str(request)
    return (
        found.step.rpc == "RunQuery"
        and descending
        and found.part == "results"
        and (
            re.search("limit|offset", str(request).lower()) is not None
            or sorted(found.ours) == sorted(found.theirs)
        )
    )


def _after_key(found: Difference) -> bool:
    """Match a query with an order after `__key__`."""
    if found.step.rpc == "RunQuery":
        query = found.step.request.query
    elif found.step.rpc == _AGGREGATION:
        query = found.step.request.aggregation_query.nested_query
    else:
        return False
    names = [order.property.name for order in query.order]
    return "__key__" in names[:-1] and found.part in (
        *("results", "values", "skipped results", "more results", "marks of index values"),
        "type of results",
    )


KNOWN: tuple[Known, ...] = (
    Known(
        BOTH,
        "does not check all that a property transform says",
        "the service refuses the names and values in it as it refuses them elsewhere",
        _limit(
            "place: transform",
            "increment of",
            "maximum of",
            "minimum of",
            "server value",
            "transform of nothing",
            "with a transform",
        ),
    ),
    Known(
        BOTH,
        "does not check the elements of IN as it checks other operands",
        "they are operands",
        _limit("place: element of IN"),
    ),
    Known(
        FIRESTORE,
        "does not check the operands of an aggregation's query",
        "it refuses the same query without the aggregation",
        _limit("place: counted"),
    ),
    Known(
        DATASTORE,
        "takes a text of meaning 2 with more than 1500 bytes as an operand",
        "the Firestore emulator refuses it, as here",
        _limit("rule: meaning 2, 2083 bytes"),
    ),
    Known(
        DATASTORE,
        "has no vectors",
        "the service has, and so the Firestore emulator",
        lambda found: "rule: vector" in found.step.features and found.ours == "OK",
    ),
    Known(
        DATASTORE,
        "does not look at a query's mask, at the number of its orders, at double ones, and at"
        " reserved names in projections",
        "the Firestore emulator does, as here",
        _limit("mask of a query", "rule: mask and", "orders", "order twice", "place: projection"),
    ),
    Known(
        DATASTORE,
        "counts nested entities, but no arrays between them",
        "the Firestore emulator counts both, as here",
        _limit("levels with arrays"),
    ),
    Known(
        DATASTORE,
        "fails with INTERNAL if the previous transaction is unknown",
        "the Firestore emulator gives INVALID_ARGUMENT, as here",
        _limit("previous transaction", there="INTERNAL"),
    ),
    Known(
        DATASTORE,
        "has no aggregations",
        "its page says so",
        lambda found: found.step.rpc == _AGGREGATION and found.theirs == "UNIMPLEMENTED",
    ),
    Known(
        DATASTORE,
        "refuses queries of Firestore in Datastore mode: IN beside other filters, `NOT_IN`, OR,"
        " inequalities on several properties, orders that begin with another property",
        "the service takes them",
        _refused(
            "RunQuery",
            said=(
                *("Filter has", "NOT_IN", "composite property operator", "Only one inequality"),
                *("first sort property", "must also be a group by property"),
            ),
        ),
    ),
    Known(
        DATASTORE,
        "fails at `NOT_EQUAL` with UNKNOWN",
        "its page says that it lacks it",
        lambda found: (
            found.step.rpc == "RunQuery"
            and (found.part, found.theirs) == (ERROR, "UNKNOWN")
            and ("NOT_EQUAL" in found.step.features or "!=" in str(found.step.request))
        ),
    ),
    Known(
        DATASTORE,
        "gives `MORE_RESULTS_AFTER_LIMIT` after each query, also without a limit",
        "`NO_MORE_RESULTS` means that there are none",
        lambda found: found.part == "more results" and found.theirs == "MORE_RESULTS_AFTER_LIMIT",
    ),
    Known(
        DATASTORE,
        "ignores property masks and property transforms",
        "the service carries them out",
        lambda found: (
            (found.step.rpc == "Commit" and found.part == "transform results")
            or (
                found.part in ("found", "missing")
                and bool({"read mask", "write mask", "transform"} & found.step.features)
            )
        ),
    ),
    Known(
        FIRESTORE,
        "leaves `more_results` unset in aggregations",
        "it is `NO_MORE_RESULTS` in the service's replies",
        lambda found: (
            found.step.rpc == _AGGREGATION
            and found.part == "more results"
            and found.theirs.endswith("UNSPECIFIED")
        ),
    ),
    Known(
        FIRESTORE,
        "accepts the rollback of a committed transaction",
        "the transaction has ended",
        lambda found: (
            found.step.rpc == "Rollback"
            and (found.ours, found.theirs) == ("INVALID_ARGUMENT", "OK")
        ),
    ),
    Known(
        FIRESTORE,
        "answers a key that a look-up names twice once",
        "the Datastore emulator answers it twice, as here",
        _once,
    ),
    Known(
        FIRESTORE,
        "fails with UNKNOWN at six aggregations",
        "the service allows five, and refuses more with INVALID_ARGUMENT",
        _refused_here("number of aggregations allowed", there=("UNKNOWN",)),
    ),
    Known(
        BOTH,
        "applies the rest of a non-transactional commit in which an insert or update fails",
        "such a commit may be applied in part; here it is all or nothing",
        lambda found: (
            CHECK in found.step.features
            and "transaction" not in found.step.features
            and bool({"insert", "update"} & found.step.features)
            and found.part in ("found", "missing")
        ),
    ),
    Known(
        BOTH,
        "answers a look-up without keys",
        "the service refuses it",
        _with("mistake: no keys", ERROR),
    ),
    Known(
        BOTH,
        "fails with UNKNOWN, without a text",
        "the service gives INVALID_ARGUMENT",
        lambda found: (
            found.part == ERROR and (found.ours, found.theirs) == ("INVALID_ARGUMENT", "UNKNOWN")
        ),
    ),
    Known(
        BOTH,
        "takes a blob and a text of the same bytes for one value in an index",
        "they are values of different types, and blobs come before texts",
        lambda found: (
            found.step.rpc in _QUERIES
            and found.part in ("results", "values", "skipped results")
            and (
                any(word in str(found.ours) + str(found.step.request) for word in _BLOBS)
                # Keys alone do not show what they are ordered by.
                or (
                    found.part == "results"
                    and {"keys only", "order"} <= found.step.features
                    and sorted(found.ours) == sorted(found.theirs)
                )
            )
        ),
    ),
    Known(
        BOTH,
        "returns, counts and sums an entity once for each element of an array in it",
        "a result set holds an entity once unless the query projects the array, and arrays are no"
        " numbers",
        lambda found: (
            found.part
            in ("results", "values", "skipped results", "more results", "marks of index values")
            and f'name: "{ARRAYS}"' in str(found.step.request)
        ),
    ),
    Known(
        BOTH,
        "reports an existing or missing entity before it looks whether the transaction may write",
        "a read-only transaction cannot write at all",
        _refused_here("read-only transaction", there=("ALREADY_EXISTS", "NOT_FOUND")),
    ),
    Known(
        DATASTORE,
        "fails with INTERNAL at some projections with an order after `__key__`",
        "such orders change nothing",
        _refused("RunQuery", said=("produced invalid results",)),
    ),
    Known(
        DATASTORE,
        "takes `distinct_on` behind an order by a property that an EQUAL filter fixes",
        "the Firestore emulator refuses it, as here",
        _refused_here("must specify all group by orderings", there=("OK",)),
    ),
    Known(
        DATASTORE,
        "fails with UNKNOWN at some cursors of queries on an array",
        "a cursor fits the query that it comes from",
        lambda found: (
            "second page" in found.step.features
            and f'name: "{ARRAYS}"' in str(found.step.request)
            and (found.part, found.theirs) == (ERROR, "UNKNOWN")
        ),
    ),
    Known(
        FIRESTORE,
        "orders an OR by the properties of all its inequalities, and miscounts its offset",
        "no page says so; here it is ordered by keys",
        lambda found: (
            "or" in found.step.features
            and (
                "order" not in found.step.features or "several inequalities" in found.step.features
            )
            and (
                found.part in ("results", "skipped results")
                or (
                    found.part == "values"
                    and bool({"limit", "several inequalities"} & found.step.features)
                )
            )
        ),
    ),
    Known(
        DATASTORE,
        "ignores the orders of a query for `__key__ = X`, and so finds an entity without their"
        " properties",
        "a query finds only entities that have the properties that it orders by",
        lambda found: (
            {"key filter", "order"} <= found.step.features
            and "op: EQUAL" in str(found.step.request)
            and found.part in ("results", "skipped results", ERROR)
        ),
    ),
    Known(
        FIRESTORE,
        "breaks the ties of a descending order by descending keys",
        "the Datastore emulator orders them by ascending keys, as here",
        _ties,
    ),
    Known(
        FIRESTORE,
        "heeds orders after `__key__`, and so passes over entities without their properties",
        "no two entities have one key, so such orders change nothing; the Datastore emulator"
        " drops them, as here",
        _after_key,
    ),
    Known(
        FIRESTORE,
        "gives `MORE_RESULTS_AFTER_LIMIT` for a limit of 0 where nothing follows",
        "`NO_MORE_RESULTS` means that there are none",
        _with("limit 0", "more results"),
    ),
    Known(
        FIRESTORE,
        "writes although `base_version` is older than the entity",
        "it is a conflict, which the Datastore emulator detects, as here",
        _with("stale", "conflicts", rpc="Commit"),
    ),
    Known(
        FIRESTORE,
        "indexes the result of a transform of a property that was not indexed",
        "no page says so; here the property stays as it was",
        _with("transform", "transform results", rpc="Commit"),
    ),
    Known(
        FIRESTORE,
        "fails with UNKNOWN at a query without kind in a transaction",
        "the service takes it",
        lambda found: (
            {"kindless", "transaction"} <= found.step.features
            and (found.part, found.theirs) == (ERROR, "UNKNOWN")
        ),
    ),
    Known(
        FIRESTORE,
        "gives `NO_MORE_RESULTS` at the limit of an OR with a filter on `__key__`, though more"
        " follow",
        "without the limit both give more results",
        lambda found: (
            {"or", "key filter", "limit"} <= found.step.features
            and found.part == "more results"
            and found.theirs == "NO_MORE_RESULTS"
        ),
    ),
    Known(
        FIRESTORE,
        "refuses its own cursors of queries that order by `__key__` explicitly",
        "a cursor fits the query that it comes from",
        _refused("RunQuery", said=("index data should not include primary key",)),
    ),
    Known(
        FIRESTORE,
        "gives results again at the cursor of a page that its offset has skipped to the end",
        "such a cursor is behind the skipped results",
        lambda found: (
            {"second page", "offset"} <= found.step.features
            and found.part
            in ("results", "more results", "skipped results", "marks of index values")
        ),
    ),
    Known(
        FIRESTORE,
        "aggregates over `NOT_IN` beside `IN` or OR, and over two of `NOT_IN` and `NOT_EQUAL`",
        "the service refuses such queries",
        _refused_here("cannot be used in the same query", "Only a single", there=("OK",)),
    ),
)
