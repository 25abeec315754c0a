"""The model layer. Its import puts the gate into ndb, whichever module is imported first."""

from __future__ import annotations

import userlock.ndb.hooks  # noqa: F401
