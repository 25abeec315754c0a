"""Values that one entity at a time may have, copies under the next free name, quotas that heal.

unique.py   the constraint of a model: which claim an entity has
claims.py   claims in models, entities and commits; their rows
folds.py    values that count as one
copies.py   the next free name
quota.py    entities above a limit are flagged
audit.py    compares entities with their claims, and repairs them
"""

from __future__ import annotations

from userlock.constraints.copies import put_as_copy
from userlock.constraints.folds import caseless, image_name
from userlock.constraints.quota import Quota, QuotaCheck, QuotaState
from userlock.constraints.unique import Unique

__all__ = ["Quota", "QuotaCheck", "QuotaState", "Unique", "caseless", "image_name", "put_as_copy"]
