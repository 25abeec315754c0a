"""Operations on trees: plant one, copy its title, add leaves, delete all of it.

A leaf is added in a transaction that reads its tree's root. So a root that is gone has no leaf that
came later, whatever the locks do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tests.chaos.models import TITLES, Leaf, Root, user_key
from tests.chaos.programs import Operation, one_of
from tests.chaos.record import Outcome
from tests.chaos.request import Request, error_of, outcome_of
from userlock.constraints import put_as_copy
from userlock.deletion import delete_tree

#: Of the many that a user may have.
_MOST_LOOKED_AT = 50
_MOST_LEAVES = 4


def tend(request: Request) -> None:
    """Do something to a tree of the first of the users."""
    random = Random(f"{request.operation.name}/{request.operation.pause}")
    one_of(random, _ACTS)(request, random)


def _plant(request: Request, random: Random) -> None:
    """Store a new root, under its own title or the next free one."""
    write = request.write(None, None)
    root = Root(
        id=write.id,
        parent=user_key(request.operation.users[0]),
        title=random.choice(TITLES),
        write=write.id,
    )
    request.recorder.note("planted", id=write.id, tree=write.id)
    if random.random() < 0.7:
        request.report(write, lambda: put_as_copy(root, "title"))
    else:
        request.report(write, root.put)


def _rename(request: Request, random: Random) -> None:
    """Change the title of a root, which another request may delete meanwhile."""
    key = _some_root(request.operation, random)
    root = None if key is None else key.get()
    if root is not None:
        request.pause()
        root.title = random.choice(TITLES)
        forbidden = request.forbids(None)
        outcome = outcome_of(error_of(root.put))
        assert not (forbidden and outcome is Outcome.ACCEPTED), "renamed without its lock"


def _add_leaves(request: Request, random: Random) -> None:
    operation = request.operation
    key = _some_root(operation, random)
    if key is None:
        return
    leaves = Leaf.query(Leaf.tree == key.id(), ancestor=user_key(operation.users[0]))
    others = leaves.fetch(_MOST_LOOKED_AT, keys_only=True)
    places = [
        (random.choice([key, *others]), random.random() < 0.5)
        for _ in range(random.randint(1, _MOST_LEAVES))
    ]

    def step() -> None:
        if key.get() is None:
            return
        for above, by_path in places:
            _add_leaf(request, key.id(), above, by_path=by_path)

    request.transact(step)


def _add_leaf(request: Request, tree: str, above: Any, *, by_path: bool) -> None:
    """Add a leaf below another entity, by its key path or by its property."""
    write = request.write(None, None)
    request.recorder.note("planted", id=write.id, tree=tree)
    request.surroundings.garden.add_file(write.id)
    leaf = Leaf(
        id=write.id,
        parent=above if by_path else above.root(),
        above=None if by_path else above,
        tree=tree,
        write=write.id,
    )
    request.report(write, leaf.put)


def _fell(request: Request, random: Random) -> None:
    key = _some_root(request.operation, random)
    if key is None:
        return
    request.pause()
    facts = {
        "id": f"{request.operation.name}.felled",
        "tree": key.id(),
        "forbidden": request.forbids(None),
    }
    request.recorder.note("felling", **facts)
    error = error_of(lambda: delete_tree(key))
    outcome = outcome_of(error)
    if outcome is not Outcome.UNKNOWN:
        request.recorder.note("felled", id=facts["id"], outcome=outcome.value)


def _some_root(operation: Operation, random: Random) -> Any:
    query = Root.query(ancestor=user_key(operation.users[0]))
    keys = query.fetch(_MOST_LOOKED_AT, keys_only=True)
    return random.choice(keys) if keys else None


_ACTS: Mapping[Callable[[Request, Random], None], int] = {
    _plant: 10,
    _add_leaves: 12,
    _rename: 3,
    _fell: 9,
}
