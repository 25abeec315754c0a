"""The rows of claims in Datastore, as `claim_rows` writes them."""

from __future__ import annotations

import contextlib
from typing import Any

from google.cloud import ndb

from userlock.constraints import claim_rows
from userlock.ndb.model import Model
from userlock.ndb.policies import WritePolicy


class ClaimRow(Model):
    """A value that one entity has alone. Written in the commit of the entity.

    Attributes:
        holder: the entity's key.
        constraint: the kind, and the constraint's name.
        value: the value, in words.
        write: a number of its commit.
    """

    _write_policy = WritePolicy.IN_TRANSACTION

    holder = ndb.KeyProperty(claim_rows.HOLDER, indexed=False)
    constraint = ndb.StringProperty(claim_rows.CONSTRAINT)
    value = ndb.TextProperty(claim_rows.VALUE)
    write = ndb.IntegerProperty(claim_rows.WRITE, indexed=False)

    @property
    def holder_key(self) -> Any:
        """Return the holder; None if the row of another program names none.

        ndb makes a key of any value of a `KeyProperty`.
        """
        with contextlib.suppress(AttributeError):
            self.holder.flat()
            return self.holder
        return None

    @classmethod
    def _get_kind(cls) -> str:
        return claim_rows.KIND
