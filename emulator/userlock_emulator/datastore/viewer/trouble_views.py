"""The HTML of transactions and faults, from their documents."""

from typing import Any

from userlock_emulator.datastore.viewer import values
from userlock_emulator.datastore.viewer.frame import facts, note, post, seconds, table
from userlock_emulator.datastore.viewer.markup import Child, Markup, join, tag
from userlock_emulator.datastore.viewer.places import address
from userlock_emulator.datastore.viewer.store import Document

_MODES = {
    "pessimistic": "Pessimistic mode: a transaction holds its locks until it ends. Others wait for"
    " them up to 20 s, and are then aborted.",
    "optimistic": "Optimistic mode: no transaction holds locks, and nobody waits. A transaction is"
    " aborted when it commits if others have changed what it has read.",
    "optimistic-with-entity-groups": "Optimistic mode with entity groups: no transaction holds"
    " locks, and nobody waits. A transaction is aborted when it commits if others have changed an"
    " entity in a group that it has touched.",
}
_SHOWN = 20


def transactions(document: Document, edit: bool, refresh: bool) -> Markup:
    """Return the transactions with their locks, and the requests that wait."""
    parts: list[Child] = [
        tag("p", _MODES.get(document["mode"], document["mode"]), class_="aside"),
        tag(
            "p",
            tag("a", "Pause", href=address("transactions"))
            if refresh
            else tag("a", "Refresh every 5 seconds", href=address("transactions", refresh=5)),
        ),
    ]
    if not document["transactions"]:
        parts.append(tag("p", "No transaction is active.", class_="empty"))
    parts += [_transaction(each, document["mode"], edit) for each in document["transactions"]]
    left = document["active"] - len(document["transactions"])
    if left:
        parts.append(tag("p", f"And {left:,} more.", class_="aside"))
    if document["waiting"]:
        parts.append(tag("h2", "Requests that wait"))
        heads: list[Child] = ["Transaction", "Wants", "Of", "Waits for", "Behind", "Client"]
        rows = [_waiting(each) for each in document["waiting"]]
        parts.append(table("Requests that wait", heads, rows))
    return join(parts)


def _transaction(document: Document, mode: str, edit: bool) -> Markup:
    blocks = document["blocks"]
    where = document["project"]
    if document["database"]:
        where += f", database {document['database']}"
    pairs: list[tuple[Child, Child]] = [
        ("Age", f"{seconds(document['ageSeconds'])}, last used"
                f" {seconds(document['idleSeconds'])} ago"),
        ("Ends", f"by itself in {seconds(document['endsInSeconds'])}, unless it is used"),
        ("Client", document["client"] or tag("em", "unknown")),
        ("Project", where),
    ]  # fmt: skip
    if document["readOnly"]:
        pairs.append(("Reads only", "a snapshot, without locks"))
    elif mode == "pessimistic":
        pairs.append(("Locks", _locks(document["locks"])))
    else:
        what = "Groups" if "groups" in mode else "Has read"
        pairs.append((what, _keys(document["read"]["entities"], document["read"]["total"])))
    if document["queries"]:
        pairs.append(("Queries", f"{document['queries']:,} run"))
    button = None
    if edit:
        button = post(
            "roll-back", "Roll back", danger=bool(blocks), transaction=document["id"],
            project=document["project"], database=document["database"],
        )  # fmt: skip
    warning = None
    if blocks:
        waiting = "1 request waits" if len(blocks) == 1 else f"{len(blocks)} requests wait"
        warning = note(f"{waiting} for this transaction: {', '.join(blocks[:_SHOWN])}")
    return tag(
        "section",
        tag("div", tag("h2", "Transaction ", tag("code", document["name"])), button, class_="top"),
        warning,
        facts(*pairs),
        class_="transaction blocks" if blocks else "transaction",
    )


def _locks(locks: dict[str, Any]) -> Markup:
    if not locks["total"]:
        return tag("em", "none")
    lines: list[Child] = []
    for sort in ("exclusive", "shared"):
        for key in locks[sort][:_SHOWN]:
            lines.append(tag("li", values.key_link(key), " ", tag("span", sort, class_="mark")))
    return _listed(lines, locks["total"])


def _keys(keys: list[dict[str, Any]], total: int) -> Markup:
    if not total:
        return tag("em", "nothing")
    return _listed([tag("li", values.key_link(key)) for key in keys[:_SHOWN]], total)


def _listed(lines: list[Child], total: int) -> Markup:
    left = total - len(lines)
    if left > 0:
        lines.append(tag("li", f"and {left:,} more", class_="aside"))
    return tag("ul", lines, class_="locks")


def _waiting(document: Document) -> Markup:
    name = document["transaction"]
    return tag(
        "tr",
        tag("td", tag("code", name) if name else "outside transactions"),
        tag("td", "exclusive" if document["exclusive"] else "shared"),
        tag("td", _keys(document["entities"], document["total"]), class_="key"),
        tag("td", seconds(document["seconds"])),
        tag("td", ", ".join(document["behind"][:_SHOWN]) or "nobody any more"),
        tag("td", document["client"] or tag("em", "unknown")),
    )


def faults(document: Document, edit: bool) -> Markup:
    """Return the faults that are planted, and the reset."""
    rows = [_fault(each, edit) for each in document["faults"]]
    heads: list[Child] = ["Fault", "Requests", "Met", "Details"]
    if edit:
        heads.append("Remove")
    parts: list[Child] = [
        table("Faults", heads, rows) if rows else tag("p", "No faults are planted.", class_="empty")
    ]
    if edit:
        if len(rows) > 1:
            parts.append(tag("div", post("remove-fault", "Remove all faults"), class_="actions"))
        parts.append(tag("h2", "Reset"))
        parts.append(tag("p", "Deletes all data, ends all transactions, removes all faults."))
        link = tag("a", "Reset…", href=address("reset"), class_="button")
        parts.append(tag("div", link, class_="actions"))
    return join(parts)


def _fault(fault: Document, edit: bool) -> Markup:
    of_kind = f" of {fault['kind']}" if fault["kind"] else None
    requests = join(tag("span", fault["rpc"] or "any RPC", class_="name"), of_kind)
    count = "" if fault["count"] is None else f" of {fault['count']:,}"
    words = ["applied"] if fault["applied"] else []
    if fault["skip"]:
        words.append(f"skips {fault['skip']:,}")
    if fault["seconds"]:
        words.append(f"{fault['seconds']:g} s")
    remove = tag("td", post("remove-fault", "Remove", id=str(fault["id"]))) if edit else None
    return tag(
        "tr",
        tag("td", tag("code", fault["fault"])),
        tag("td", requests),
        tag("td", f"{fault['hits']:,}{count}"),
        tag("td", ", ".join(words)),
        remove,
    )
