"""The HTML of kinds, entities and queries, from their documents."""

from collections import Counter
from itertools import groupby
from typing import Any

from userlock_emulator.datastore import gql
from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.key_text import gql_name
from userlock_emulator.datastore.viewer import places, querying, values
from userlock_emulator.datastore.viewer.frame import (
    choice,
    facts,
    field,
    further,
    note,
    place_text,
    table,
)
from userlock_emulator.datastore.viewer.markup import Child, Markup, exact, join, tag
from userlock_emulator.datastore.viewer.places import Fields, address
from userlock_emulator.datastore.viewer.store import Document

_COLUMNS = 6
_DIRECTIONS = ["ascending", "descending"]
_PLACE = Partition._fields


def kinds(document: Document, fields: Fields, edit: bool) -> Markup:
    """Return the kinds, in a table for each partition."""
    rows = document["kinds"]
    parts: list[Child] = []
    for partition, group in groupby(rows, key=_partition):
        text = place_text(partition)
        parts.append(tag("h2", _capital(text)))
        lines = [
            tag(
                "tr",
                tag("td", tag("a", row["kind"], href=_kind_address(row)), class_="kind"),
                tag("td", _count(row), class_="number"),
            )
            for row in group
        ]
        parts.append(table(f"Kinds of {text}", ["Kind", "Entities"], lines, ends_in_number=True))
    if not rows:
        parts.append(tag("p", "There are no entities.", class_="empty"))
    if document["start"] is not None:
        parts.append(further("kinds", "Further kinds", fields, start=document["start"]))
    if edit:
        parts.append(_new(_fields(fields, _PLACE)))
    return join(_find(_fields(fields, _PLACE)), parts)


def kind(document: Document, fields: Fields, edit: bool) -> Markup:
    """Return a page of a kind's entities."""
    partition = _partition(document)
    place = {**places.fields_of_partition(partition), "kind": document["kind"]}
    gql = f"SELECT * FROM {gql_name(document['kind'])}"  # noqa: S608 - for people
    where = places.fields_of_partition(partition)
    links = [tag("a", "Query this kind", href=address("query", where, gql=gql), class_="button")]
    if edit:
        links.append(_new(place, inline=True))
    return join(
        tag("p", _capital(place_text(partition)), class_="aside"),
        tag("div", links, class_="actions"),
        _entities(document["entities"], f"Entities of {document['kind']}")
        or tag("p", "There are no entities here.", class_="empty"),
        further("kind", "Next page", {**place, "cursor": document["cursor"]})
        if document["cursor"]
        else None,
    )


def entity(document: Document, edit: bool) -> Markup:
    """Return all about an entity."""
    key = places.from_rest(document["key"])
    word = places.token(key)
    pairs: list[tuple[Child, Child]] = [("Key", tag("code", document["gql"], class_="whole"))]
    database = key.partition_id.database_id
    if database:
        pairs.append(("Database", database))
    if document["urlsafe"]:
        pairs.append(("Urlsafe key", tag("code", document["urlsafe"], class_="whole")))
    if len(key.path) > 1:
        parent = type(key)()
        parent.CopyFrom(key)
        del parent.path[-1]
        pairs.append(("Parent", values.key_link(places.rest(parent))))
    kind_fields = {
        **places.fields_of_partition(places.partition_of_key(key)), "kind": key.path[-1].kind,
    }  # fmt: skip
    pairs.append(("Kind", tag("a", key.path[-1].kind, href=address("kind", kind_fields))))
    if document["found"]:
        pairs += [
            ("Updated", tag("span", document.get("updateTime", "unknown"), class_="time")),
            ("Created", tag("span", document.get("createTime", "unknown"), class_="time")),
            ("Version", tag("code", document["version"])),
            ("Size", f"{document['bytes']:,} bytes"),
        ]
    parts: list[Child] = [facts(*pairs)]
    if "error" in document:
        parts.append(note(document["error"], error=True))
    elif not document["found"]:
        parts.append(tag("p", "There is no such entity.", class_="empty"))
    else:
        parts.append(_properties(document["properties"]))
    if edit and document["found"]:
        links = [tag("a", "Delete", href=address("delete", key=word), class_="button")]
        if "error" not in document:
            links.insert(0, tag("a", "Edit", href=address("edit", key=word), class_="button"))
        parts.append(tag("div", links, class_="actions"))
    return join(parts)


def query(document: Document, fields: Fields) -> Markup:
    """Return the forms of a query, and its result."""
    error = document.get("error")
    parts: list[Child] = [_gql_form(fields), _filter_form(fields)]
    if error:
        parts.append(note(f"{error['status']}: {error['message']}", error=True))
    if document.get("refused"):
        parts.append(note("Clients get no result, but this error: ", document["refused"].rstrip()))
    if "indexesUsed" in document and not error:
        parts.append(_indexes(document["indexesUsed"]))
    if "aggregations" in document:
        parts.append(_aggregations(document["aggregations"]))
    if "entities" in document:
        parts.append(tag("h2", "Results"))
        parts.append(
            _entities(document["entities"], "Results")
            or tag("p", "The query has no results.", class_="empty")
        )
        if document["next"]:
            parts.append(further("query", "Next page", fields, **document["next"]))
    return join(parts)


def _gql_form(fields: Fields) -> Markup:
    return tag(
        "form",
        tag("label", "GQL", for_="f-gql"),
        tag(
            "textarea",
            exact(fields.get("gql", "")),
            id="f-gql",
            name="gql",
            rows=3,
            spellcheck="false",
        ),
        tag(
            "div",
            _place_fields(fields, "gql"),
            tag("p", tag("button", "Run", class_="strong")),
            class_="filter",
        ),
        action=address("query"),
    )


def _filter_form(fields: Fields) -> Markup:
    open_ = "kind" in fields and "gql" not in fields
    rows: list[Child] = []
    for number in querying.FILTERS:
        rows.append(
            tag(
                "div",
                field("Property", f"p{number}", fields),
                choice(
                    "Operator",
                    f"o{number}",
                    list(gql.COMPARATORS),
                    fields.get(f"o{number}", "="),
                ),
                choice(
                    "Type",
                    f"t{number}",
                    list(querying.TYPES),
                    fields.get(f"t{number}", "string"),
                ),
                field("Value", f"v{number}", fields),
                class_="filter",
                role="group",
                aria_label=f"Filter {number}",
            )
        )
    form = tag(
        "form",
        tag(
            "div",
            field("Kind", "kind", fields),
            field("Ancestor", "ancestor", fields, hint="Task, 'a'"),
            class_="filter",
        ),
        rows,
        tag(
            "div",
            field("Order by", "order", fields),
            choice("Direction", "direction", _DIRECTIONS, fields.get("direction", "")),
            class_="filter",
        ),
        tag(
            "div",
            _place_fields(fields, "form"),
            tag("p", tag("button", "Run this form", class_="strong")),
            class_="filter",
        ),
        action=address("query"),
    )  # fmt: skip
    return tag("details", tag("summary", "Query by form"), form, open=open_)


def _place_fields(fields: Fields, form: str) -> list[Child]:
    # Two forms are on the page, and an id occurs once.
    found: list[Child] = []
    for name in _PLACE:
        identity = f"f-{form}-{name}"
        label = tag("label", _capital(name), for_=identity)
        box = tag(
            "input",
            id=identity,
            name=name,
            value=fields.get(name, ""),
            autocomplete="off",
            spellcheck="false",
            placeholder="(default)" if name != "project" else None,
        )
        found.append(tag("p", label, box))
    return found


def _indexes(used: list[dict[str, Any]]) -> Markup:
    listed = [
        tag("li", tag("code", index.get("properties", "")), f" · {index.get('query_scope', '')}")
        for index in used
    ]
    return join(tag("h2", "Indexes used"), tag("ul", listed, class_="plain"))


def _aggregations(results: dict[str, Any]) -> Markup:
    rows = [
        tag("tr", tag("td", tag("code", name)), tag("td", values.brief(value)))
        for name, value in results.items()
    ]
    return join(tag("h2", "Results"), table("Results", ["Aggregation", "Value"], rows))


def _entities(entities: list[Document], label: str) -> Markup | None:
    """Return entities as a table: the properties that most of them have."""
    if not entities:
        return None
    seen = Counter(name for each in entities for name in each.get("properties", {}))
    columns = sorted(seen, key=lambda name: (-seen[name], name))[:_COLUMNS]
    timed = any("updateTime" in each for each in entities)
    heads: list[Child] = ["Key", *(tag("code", name) for name in columns)]
    if len(seen) > len(columns):
        heads.append("Others")
    if timed:
        heads.append("Updated")
    return table(label, heads, [_line(each, columns, len(heads)) for each in entities])


def _line(document: Document, columns: list[str], width: int) -> Markup:
    key = values.key_link(document["key"]) if document["key"] else tag("em", "damaged")
    first = tag("td", key, class_="key")
    if "error" in document:
        error = tag("td", document["error"], class_="aside", colspan=max(width - 1, 1))
        return tag("tr", first, error)
    properties = document.get("properties", {})
    cells: list[Child] = [
        tag("td", values.brief(properties[name]) if name in properties else None)
        for name in columns
    ]
    left = width - 1 - len(columns) - ("updateTime" in document)
    if left:
        others = len(properties) - sum(name in properties for name in columns)
        cells.append(tag("td", f"{others:,} more" if others else None, class_="aside"))
    if "updateTime" in document:
        cells.append(tag("td", _short_time(document["updateTime"]), class_="time"))
    return tag("tr", first, cells)


def _properties(properties: dict[str, Any]) -> Markup:
    if not properties:
        return tag("p", "The entity has no properties.", class_="empty")
    shown = list(properties.items())[: values.MOST_PROPERTIES]
    rows = [
        tag(
            "tr",
            tag("td", tag("code", name)),
            tag("td", values.whole(value), class_="kind"),
            tag("td", values.kind_of(value), tag("br"), values.marks(value) or None, class_="mark"),
        )
        for name, value in shown
    ]
    left = len(properties) - len(shown)
    return join(
        tag("h2", "Properties"),
        table("Properties", ["Name", "Value", "Type"], rows),
        tag("p", f"And {left:,} more: see the JSON.", class_="aside") if left else None,
    )


def _find(place: dict[str, str]) -> Markup:
    hidden = [tag("input", type="hidden", name=name, value=text) for name, text in place.items()]
    box = field("Find a key", "text", {}, hint="Task, 'a', or urlsafe")
    return tag(
        "form", hidden, tag("div", box, tag("p", tag("button", "Find")), class_="filter"),
        action=address("find"),
    )  # fmt: skip


def _new(place: dict[str, str], *, inline: bool = False) -> Markup:
    link = tag("a", "New entity", href=address("new", place), class_="button")
    return link if inline else tag("div", link, class_="actions")


def _partition(document: Document) -> Partition:
    return Partition(document["project"], document["database"], document["namespace"])


def _kind_address(row: Document) -> str:
    place = places.fields_of_partition(_partition(row))
    return address("kind", {**place, "kind": row["kind"]})


def _count(row: Document) -> str:
    return f"{'more than ' if row.get('more') else ''}{row['count']:,}"


def _fields(fields: Fields, names: tuple[str, ...]) -> dict[str, str]:
    return {name: fields[name] for name in names if fields.get(name)}


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _short_time(text: str) -> str:
    """Return a time to the second."""
    return f"{text[:10]} {text[11:19]}"
