"""An app's module, for processes of the command line."""

from __future__ import annotations

from google.cloud import ndb

from userlock.outbox import Outbox

print("this is printed while the app is imported")  # not into an answer

outbox = Outbox("inline://?threads=0", client=ndb.Client)


@outbox.job(name="pay")
def pay(user_id: str) -> None:
    print("this is printed while a job runs")
