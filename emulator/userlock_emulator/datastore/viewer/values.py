"""Values of entities, as HTML; from their form in the REST API."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from userlock_emulator.datastore.key_text import gql_key, path_text
from userlock_emulator.datastore.viewer import places
from userlock_emulator.datastore.viewer.markup import Child, Markup, join, tag

Rest = Mapping[str, Any]

# What a page shows of a long value: in a table, and on the entity's own page.
_SHORT, _LONG = 80, 2000
_SHORT_ITEMS, _LONG_ITEMS = 3, 200
_BLOB_BYTES = 64
_MAX_DEPTH = 20
MOST_PROPERTIES = 500


def brief(value: Rest) -> Markup:
    """Return a value for a cell of a table."""
    return _Values(_SHORT, _SHORT_ITEMS, nests=False).shown(value, 0)


def whole(value: Rest) -> Markup:
    """Return a value for the page of its entity, with all that is known of it."""
    return _Values(_LONG, _LONG_ITEMS, nests=True).shown(value, 0)


def marks(value: Rest) -> str:
    """Return the words on how a value is stored: unindexed, its meaning."""
    words = ["unindexed"] if value.get("excludeFromIndexes") else []
    if "meaning" in value:
        words.append(f"meaning {value['meaning']}")
    return ", ".join(words)


def kind_of(value: Rest) -> str:
    """Return the type of a value, in a word."""
    for name, word in _WORDS.items():
        if name in value:
            return word
    return "no value"


def key_link(key: Rest, *, full: bool = False) -> Markup:
    """Return a key as a link to its entity. An incomplete key leads nowhere."""
    parsed = places.from_rest(key)
    text = gql_key(parsed) if full else path_text(parsed)
    if not parsed.path or parsed.path[-1].WhichOneof("id_type") is None:
        return tag("code", text or "an empty key")
    link = tag("a", text, href=places.address("entity", key=places.token(parsed)))
    namespace = parsed.partition_id.namespace_id
    beside = tag("span", f" in {namespace}", class_="aside") if namespace and not full else None
    return tag("code", link, beside)


_WORDS = {
    "nullValue": "null",
    "booleanValue": "boolean",
    "integerValue": "integer",
    "doubleValue": "double",
    "timestampValue": "timestamp",
    "keyValue": "key",
    "stringValue": "string",
    "blobValue": "blob",
    "geoPointValue": "geo point",
    "entityValue": "entity",
    "arrayValue": "array",
}


class _Values:
    """The writer of values with given bounds."""

    def __init__(self, most: int, items: int, *, nests: bool) -> None:
        self._most = most
        self._items = items
        self._nests = nests

    def shown(self, value: Rest, depth: int) -> Markup:
        match kind_of(value):
            case "null":
                return tag("em", "null")
            case "boolean":
                return tag("code", "true" if value["booleanValue"] else "false")
            case "integer":
                return tag("code", value["integerValue"])
            case "double":
                return tag("code", str(value["doubleValue"]))
            case "timestamp":
                return tag("span", value["timestampValue"], class_="time")
            case "key":
                return key_link(value["keyValue"], full=self._nests)
            case "string":
                return self._text(value["stringValue"])
            case "blob":
                return self._blob(value["blobValue"])
            case "geo point":
                point = value["geoPointValue"]
                text = f"{point.get('latitude', 0)}, {point.get('longitude', 0)}"
                return tag("code", text)
            case "entity":
                return self._entity(value["entityValue"], depth)
            case "array":
                return self._array(value["arrayValue"].get("values", []), depth)
            case _:
                return tag("em", "no value")

    def _text(self, text: str) -> Markup:
        if not text:
            return tag("em", "empty string")
        if len(text) <= self._most:
            return tag("span", text, class_="text", dir="auto")
        rest = f"… {len(text):,} characters"
        return join(
            tag("span", text[: self._most], class_="text", dir="auto"),
            tag("span", rest, class_="aside"),
        )

    def _blob(self, encoded: str) -> Markup:
        try:
            raw = base64.b64decode(encoded)
        except (binascii.Error, ValueError):
            return tag("em", "a damaged blob")
        size = tag("span", f"{len(raw):,} bytes", class_="aside")
        if not self._nests:
            return size
        cut = "…" if len(raw) > _BLOB_BYTES else ""
        return join(tag("code", raw[:_BLOB_BYTES].hex(" ") + cut), " ", size)

    def _entity(self, entity: Rest, depth: int) -> Markup:
        properties = entity.get("properties", {})
        if not self._nests:
            names = ", ".join(sorted(properties)[: self._items])
            more = ", …" if len(properties) > self._items else ""
            return tag("span", f"{{{names[: self._most]}{more}}}", class_="aside")
        if depth >= _MAX_DEPTH:
            return tag("em", "nested deeper than this page shows")
        key = entity.get("key")
        rows: list[Child] = [_row("its key", tag("div", key_link(key, full=True)))] if key else []
        rows += [
            _row(tag("code", name), self._with_marks(each, depth))
            for name, each in sorted(properties.items())[: self._items]
        ]
        rows.append(_left(len(properties) - self._items, "properties"))
        return tag("dl", rows, class_="nested") if properties or key else tag("em", "empty entity")

    def _array(self, values: list[Rest], depth: int) -> Markup:
        if not values:
            return tag("em", "empty array")
        if not self._nests:
            shown = [self.shown(each, depth + 1) for each in values[: self._items]]
            return join(
                tag("span", f"{len(values):,}: ", class_="aside"),
                *(join(", " if place else None, each) for place, each in enumerate(shown)),
                ", …" if len(values) > self._items else None,
            )
        if depth >= _MAX_DEPTH:
            return tag("em", "nested deeper than this page shows")
        items: list[Child] = [
            tag("li", self._with_marks(each, depth)) for each in values[: self._items]
        ]
        left = len(values) - self._items
        if left > 0:
            items.append(tag("li", f"and {left:,} more: see the JSON", class_="aside"))
        return tag("ol", items, class_="nested")

    def _with_marks(self, value: Rest, depth: int) -> Markup:
        kind = kind_of(value)
        type_ = "" if kind == "null" else kind
        words = tag("span", ", ".join(filter(None, (type_, marks(value)))), class_="mark")
        shown = self.shown(value, depth + 1)
        return join(words, shown) if kind in ("array", "entity") else join(shown, " ", words)


def _row(name: Child, value: Child) -> Markup:
    return tag("div", tag("dt", name), tag("dd", value))


def _left(number: int, what: str) -> Markup | None:
    if number <= 0:
        return None
    return _row(f"and {number:,} more", tag("span", f"{what}: see the JSON", class_="aside"))
