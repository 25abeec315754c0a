r"""Property paths, and masks made of them.

A path names a property, or a property of an embedded entity: "address.city". A dot or a backslash
that belongs to a name is escaped with a backslash: r"a\.b". Paths do not reach into arrays.
"""

import re
from collections.abc import Iterable
from typing import TypeAlias

from userlock_emulator.datastore import validation
from userlock_emulator.datastore.errors import invalid
from userlock_emulator.datastore.protos import EntityPb, Message, ValuePb

KEY = "__key__"

PropertyPath = tuple[str, ...]
# A covered property maps to the covered part of the entity in it; an empty part is all of it.
_Tree: TypeAlias = "dict[str, _Tree]"

_SEGMENT = re.compile(r"((?:[^.\\]|\\[.\\])+)(\.|$)")
_ESCAPE = re.compile(r"\\([.\\])")


def parse_path(text: str) -> PropertyPath:
    """Return the names in a property path, outermost first.

    Raises:
        DatastoreError: INVALID_ARGUMENT.
    """
    validation.check_name("property path", text, allow_reserved=True)
    names = []
    position = 0
    separator = "."
    while separator:
        match = _SEGMENT.match(text, position)
        if match is None:
            raise invalid(f'Invalid property path "{text}".')
        names.append(_ESCAPE.sub(r"\1", match[1]))
        separator = match[2]
        position = match.end()
    return tuple(names)


class Mask:
    """A subset of the properties of entities. The key is always included."""

    def __init__(self, paths: Iterable[PropertyPath]) -> None:
        self._tree: _Tree = {}
        for path in paths:
            _cover(self._tree, path)

    def cut(self, entity: EntityPb) -> None:
        """Remove from `entity` everything that the mask does not cover."""
        _cut(self._tree, entity)

    def overwrite(self, entity: EntityPb, source: EntityPb) -> None:
        """Copy the properties that the mask covers from `source` to `entity`.

        Covered properties that `source` lacks are removed; properties outside the mask stay.
        """
        _overwrite(self._tree, entity, source)


def read_mask(request: Message) -> Mask | None:
    """Return the mask of a read request; None: everything.

    Raises:
        DatastoreError: INVALID_ARGUMENT.
    """
    if not request.HasField("property_mask"):
        return None
    return Mask(path for path in map(parse_path, request.property_mask.paths) if path != (KEY,))


def write_mask(mutation: Message) -> Mask | None:
    """Return the mask of a mutation; None: everything.

    Raises:
        DatastoreError: INVALID_ARGUMENT, also for a path with a reserved name.
    """
    mask = read_mask(mutation)
    if mask is None:
        return None
    for path in map(parse_path, mutation.property_mask.paths):
        for name in path:
            if validation.is_reserved(name) and path != (KEY,):
                raise invalid(f'The property_mask.property.name "{name}" is reserved.')
    return mask


def _cover(tree: _Tree, path: PropertyPath) -> None:
    name, *rest = path
    if not rest:
        tree[name] = {}
    elif name not in tree:
        tree[name] = {}
        _cover(tree[name], tuple(rest))
    elif tree[name]:
        _cover(tree[name], tuple(rest))


def _cut(tree: _Tree, entity: EntityPb) -> None:
    for name in list(entity.properties):
        if name not in tree:
            del entity.properties[name]
            continue
        part = tree[name]
        if not part:
            continue
        value = entity.properties[name]
        if _is_entity(value):
            _cut(part, value.entity_value)
        if not (_is_entity(value) and value.entity_value.properties):
            del entity.properties[name]


def _overwrite(tree: _Tree, entity: EntityPb, source: EntityPb) -> None:
    for name, part in tree.items():
        there = name in source.properties
        if not part:
            if there:
                entity.properties[name].CopyFrom(source.properties[name])
            elif name in entity.properties:
                del entity.properties[name]
            continue
        given = source.properties.get(name)
        if given is not None and given.WhichOneof("value_type") == "array_value":
            raise invalid(f'A property path reaches into the array in property "{name}".')
        if given is not None and _is_entity(given):
            embedded = embedded_entity(entity, name, like=given)
            _overwrite(part, embedded, given.entity_value)
        elif name in entity.properties and _is_entity(entity.properties[name]):
            _cut_out(part, entity.properties[name].entity_value)


def _cut_out(tree: _Tree, entity: EntityPb) -> None:
    """Remove the covered properties."""
    for name, part in tree.items():
        if name not in entity.properties:
            continue
        if not part:
            del entity.properties[name]
        elif _is_entity(entity.properties[name]):
            _cut_out(part, entity.properties[name].entity_value)


def embedded_entity(entity: EntityPb, name: str, like: ValuePb | None = None) -> EntityPb:
    """Return the entity in a property. Any other value is replaced by an empty entity.

    The new entity is indexed as `like` is.
    """
    value = entity.properties[name]
    if not _is_entity(value):
        value.Clear()
        value.entity_value.SetInParent()
        if like is not None:
            value.exclude_from_indexes = like.exclude_from_indexes
    return value.entity_value


def _is_entity(value: ValuePb) -> bool:
    return bool(value.WhichOneof("value_type") == "entity_value")
