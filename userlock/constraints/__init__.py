"""Values that one entity at a time may have, and copies under the next free name."""

from __future__ import annotations

from userlock.constraints.copies import put_as_copy
from userlock.constraints.folds import caseless, image_name
from userlock.constraints.unique import Unique

__all__ = ["Unique", "caseless", "image_name", "put_as_copy"]
