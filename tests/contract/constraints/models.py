"""Models with constraints, and a look at all claims."""

from __future__ import annotations

import socket
from typing import Any

from google.cloud import ndb

import userlock
from userlock.constraints import Unique, caseless, image_name
from userlock.constraints.claims import ClaimRow


class Owner(userlock.UserModel):
    """An owner of campaigns: the root of their keys."""

    _lock_id_from_key = userlock.key_id
    handle = ndb.StringProperty()
    _unique = (Unique("handle", fold=caseless, per="all"),)

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedOwner"


class Campaign(userlock.UserModel):
    """Unique by title per owner, unless archived."""

    _lock_id_from_key = userlock.root_id
    _unique = (Unique("title", fold=caseless, unless="archived"),)
    title = ndb.StringProperty()
    archived = ndb.BooleanProperty(default=False)
    points = ndb.IntegerProperty(default=0)
    note = ndb.TextProperty(default="")

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedCampaign"


class MarkedCampaign(Campaign):
    """Its commits are recognised."""

    write_id = userlock.WriteIdProperty()

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedMarkedCampaign"


class Screen(userlock.Model):
    """Unique by the bare name below a campaign; written in transactions."""

    _write_policy = userlock.WritePolicy.IN_TRANSACTION
    _unique = (Unique("base", per="parent", unless=lambda screen: screen.state == "archived"),)
    file_name = ndb.StringProperty(required=True)
    base = ndb.ComputedProperty(lambda screen: image_name(screen.file_name))
    state = ndb.StringProperty(default="active")

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedScreen"


class Seat(userlock.Model):
    """Unique by two properties, and by a third."""

    _write_policy = userlock.WritePolicy.unsafe("claims hold without policies")
    _overwrites = True
    _unique = (Unique("row", "number", per="all"), Unique("code", per="all", name="by code"))
    row = ndb.StringProperty()
    number = ndb.IntegerProperty()
    code = ndb.StringProperty()

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedSeat"


def campaign(title: str, *, owner: str = "ann", model: Any = Campaign, **values: Any) -> Any:
    """Return a new campaign of an owner."""
    return model(parent=ndb.Key(Owner, owner), title=title, **values)


def put(title: str, *, owner: str = "ann", model: Any = Campaign, **values: Any) -> Any:
    """Put a new campaign under its lock."""
    with userlock.global_lock(owner):
        made = campaign(title, owner=owner, model=model, **values)
        made.put()
    return made


def degraded_service() -> userlock.LockService:
    """Return a service whose locks are degraded: nobody listens at the store's port."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    return userlock.LockService.from_url(f"memcache://127.0.0.1:{port}")


def claims() -> dict[str, str]:
    """Return all rows: value and holder."""
    rows = ClaimRow.query(namespace="").fetch(use_cache=False, use_global_cache=False)
    return {f"{row.constraint}: {row.value}": repr(row.holder) for row in rows}


def check_claims(*models: Any) -> None:
    """Check that rows and entities agree, in the namespace of the context."""
    listed: dict[Any, Any] = {}
    for model in models:
        for entity in model.query().fetch(use_cache=False, use_global_cache=False):
            for key in entity.userlock_claims:
                assert key not in listed, f"{key} is listed by {listed[key]} and {entity.key}"
                listed[key] = entity.key
    rows = ClaimRow.query(namespace="").fetch(use_cache=False, use_global_cache=False)
    assert {row.key: row.holder for row in rows} == listed
