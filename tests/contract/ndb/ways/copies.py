"""Ways in: objects made of other objects."""

from __future__ import annotations

import copy
import pickle
from typing import Any

from tests.contract.ndb.ways.lookups import key_of
from tests.contract.ndb.ways.models import Answering, Open, Person, Slotted
from tests.contract.ndb.ways.tables import Gives, way_in

shallow_copy = way_in("copy.copy")(lambda user: copy.copy(key_of(user).get()))
way_in("copy.deepcopy")(lambda user: copy.deepcopy(key_of(user).get()))
deep_copy_of_an_expando = way_in(
    "copy.deepcopy of an Expando",
    model=Open,
    arrange=lambda user: [Open(id=user, name=user, mood="good")],
)(lambda user: copy.deepcopy(Open.get_by_id(user)))
way_in("copy.copy of a model with slots", model=Slotted, arrange=lambda user: [Slotted(id=user)])(
    lambda user: copy.copy(Slotted.get_by_id(user))
)
way_in(
    "copy.copy of a model with __getattr__",
    model=Answering,
    arrange=lambda user: [Answering(id=user)],
)(lambda user: copy.copy(Answering.get_by_id(user)))
pickled = way_in("pickled", gives=Gives.UNLOCKED)(
    lambda user: pickle.loads(pickle.dumps(key_of(user).get()))  # noqa: S301 (our own)
)
constructed = way_in("constructor from to_dict", "Model.to_dict", gives=Gives.NEW)(
    lambda user: Person(id=user, **key_of(user).get().to_dict())
)


@way_in("populate from to_dict", "Model.populate", gives=Gives.NEW)
def populated(user: str) -> Any:
    other = Person(key=key_of(user))
    other.populate(**key_of(user).get().to_dict())
    return other


@way_in("populate of the entity itself")
def populated_itself(user: str) -> Any:
    person = key_of(user).get()
    person.populate(name=user)
    return person


@way_in(
    "given another key",
    gives=Gives.NEW,
    arrange=lambda user: [Person(id=name, name=name) for name in (user, f"{user}'s twin")],
)
def given_another_key(user: str) -> Any:
    person = key_of(f"{user}'s twin").get()
    person.key = key_of(user)
    return person
