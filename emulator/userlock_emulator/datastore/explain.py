"""Query explain: the plan and the statistics of a query.

Both follow the service's documentation: the indexes that the service would use and the operations
that it would bill. The time is the emulator's own.
"""

from userlock_emulator.datastore.composite import Requirement, requirements
from userlock_emulator.datastore.protos import Message
from userlock_emulator.datastore.query import KEY, Order, ParsedQuery

# The service's name for the key.
_NAME = "__name__"
# "Aggregation queries: pricing". This many index entries are billed as one read.
_ENTRIES_PER_READ = 1000
_NANOSECONDS = 1_000_000_000


def explain_plan(query: ParsedQuery, metrics: Message) -> None:
    """Fill the plan into an ExplainMetrics."""
    # A built-in index is one of the kind, whether or not an ancestor bounds the keys in it.
    used = dict.fromkeys(
        (requirement.ancestor and requirement.composite is not None, properties)
        for requirement in requirements(query)
        for properties in _indexes(requirement)
    )
    metrics.plan_summary.SetInParent()
    for ancestor, properties in used:
        index = metrics.plan_summary.indexes_used.add()
        index["query_scope"] = "Includes ancestors" if ancestor else "Collection group"
        index["properties"] = f"({', '.join(properties)})"


def explain_execution(
    metrics: Message,
    *,
    results: int,
    documents: int,
    entries: int,
    keys: int,
    nanoseconds: int,
) -> None:
    """Fill the statistics into an ExplainMetrics.

    Args:
        metrics: to be filled.
        results: number of returned results.
        documents: number of entities read.
        entries: number of index entries read.
        keys: number of keys in the results: small operations, which are free.
        nanoseconds: duration.
    """
    stats = metrics.execution_stats
    stats.results_returned = results
    seconds, rest = divmod(nanoseconds, _NANOSECONDS)
    stats.execution_duration.seconds, stats.execution_duration.nanos = seconds, rest
    billed = 0 if documents else entries
    stats.read_operations = documents + -(-billed // _ENTRIES_PER_READ)
    stats.debug_stats["index_entries_scanned"] = str(entries)
    stats.debug_stats["documents_scanned"] = str(documents)
    details = stats.debug_stats.get_or_create_struct("billing_details")
    details["documents_billable"] = str(documents)
    details["index_entries_billable"] = str(billed)
    details["small_ops"] = str(keys)
    details["min_query_cost"] = "0" if documents or billed else "1"


def _indexes(requirement: Requirement) -> list[tuple[str, ...]]:
    """Return the properties of each index in use, the key included."""
    composite = requirement.composite
    if composite is not None:
        return [_named(composite.properties)]
    ordered = (*requirement.orders, *(Order(name) for name in requirement.free))
    if ordered:
        return [_named(ordered)]
    return [_named((Order(name),)) for name in requirement.equal] or [_named(())]


def _named(properties: tuple[Order, ...]) -> tuple[str, ...]:
    if not properties or properties[-1].name != KEY:
        properties = (*properties, Order(KEY))
    return tuple(
        f"{_NAME if name == KEY else name} {'DESC' if descending else 'ASC'}"
        for name, descending in properties
    )
