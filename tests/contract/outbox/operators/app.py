"""An app's module, for processes of the command line."""

from __future__ import annotations

import os

from google.cloud import ndb

from userlock.outbox import Outbox, dead_letters

#: A process with this variable does not look, in its transaction, whether a job is still dead.
UNGUARDED = "USERLOCK_TEST_UNGUARDED"

print("this is printed while the app is imported")  # not into an answer

if os.environ.get(UNGUARDED):
    dead_letters._is_meant = lambda row, *_: row is not None

outbox = Outbox("inline://?threads=0", client=ndb.Client)


@outbox.job(name="pay")
def pay(user_id: str) -> None:
    print("this is printed while a job runs")
