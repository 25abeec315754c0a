"""An app whose jobs run in RQ's workers; the addresses of its servers are in the environment."""

from __future__ import annotations

import os

from google.cloud import ndb

import userlock
from userlock.outbox import Outbox

userlock.configure(
    service=userlock.LockService.from_url(f"redis://{os.environ['TEST_RQ']}/1?prefix=jobs")
)
outbox = Outbox(f"rq://{os.environ['TEST_RQ']}/0", client=ndb.Client)


class Account(userlock.UserModel):
    """Counted by a job."""

    _lock_id_from_key = userlock.key_id
    count = ndb.IntegerProperty(default=0)


@outbox.job(transactional=True)
def count(user_id: str) -> None:
    account = Account.get_by_id(user_id) or Account(id=user_id)
    account.count += 1
    account.put()
