"""A process of an app that serves one paid request, and may kill itself at a point of its work.

    python -m tests.faults.idempotency.program FOLDER ROLE [POINT]

Roles: `client` (sends the request, and prints the answer), `complete` (the server completes what
is left), and `outcome`, which reaps with its clock set ahead and prints what there is as JSON. The
payment provider is a folder: a charge is a file named by its key.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.cloud import ndb

import userlock
from tests.faults.crashing import Ahead, after, before, die
from userlock.idempotency import Flow, Flows
from userlock.idempotency.rows import RequestRow
from userlock.stores import MemoryStore

OWNER = "ann"
KEY = "0ccb7813-e63d-4377-93c5-476cb93038f3"


class Declined(Exception):
    """The provider's final refusal."""


class CrashedRide(userlock.UserModel):
    _lock_id = "user_id"
    user_id = ndb.StringProperty(required=True)
    charge = ndb.StringProperty()


#: Each point: what is planted there. Those without are in the function of the request.
POINTS: dict[str, Callable[[], object]] = {
    "before the key is stored": lambda: before(Flows, "_insert"),
    "the key is stored": lambda: after(Flows, "_insert"),
    "in a phase": lambda: None,
    "after a phase": lambda: after(Flow, "phase"),
    "asked, not called": lambda: None,
    "called, not recorded": lambda: None,
    "recorded": lambda: after(Flow, "external"),
    "in the last block": lambda: None,
    "the answer is stored, not sent": lambda: after(Flows, "run"),
    "refused, not recorded": lambda: before(Flow, "finish"),
    "refused and recorded": lambda: after(Flow, "finish"),
}


def main(folder: Path, role: str, point: str = "") -> None:
    facts = json.loads((folder / "facts").read_text())
    store: Any = (
        MemoryStore()  # of this process alone: nobody is kept out by it
        if facts["lock"] == "none"
        else userlock.LockService.from_url(facts["lock"]).store
    )
    policy = userlock.LockPolicy(heartbeat_lock_timeout=1.0)
    userlock.configure(service=userlock.LockService(store, policy=policy))
    clock = Ahead()
    flows = Flows(clock=clock)
    charges = folder / "charges"
    charges.mkdir(exist_ok=True)

    def reach(here: str) -> None:
        if point == here:
            die()

    def charge(key: str) -> str:
        reach("asked, not called")
        if "refused" in facts["point"]:
            raise Declined("too poor")
        (charges / key).touch()
        reach("called, not recorded")
        return key[:8]

    @flows.function(name="ride")
    def ride(flow: Flow, to: str) -> None:
        def begin() -> int:
            made = CrashedRide(user_id=flow.user_id).put()
            reach("in a phase")
            return int(made.id())

        ride_id = flow.phase("ride", begin)
        paid = flow.external("charge", charge, final={Declined: 402})
        with flow.last() as end:
            found = CrashedRide.get_by_id(ride_id)
            found.charge = paid
            found.put()
            end.respond({"ride": ride_id, "to": to, "charge": paid})
            reach("in the last block")

    if point:
        POINTS[point]()
    with ndb.Client().context(cache_policy=False):
        if role == "client":
            print(json.dumps(ride(OWNER, KEY, to="home")), flush=True)
        elif role == "complete":
            clock.seconds += 3600
            print(json.dumps(len(list(flows.complete()))), flush=True)
        else:
            clock.seconds += 12 * 3600
            flows.reap()
            rides = list(CrashedRide.query())
            outcome = {
                "charges": sorted(each.name[:8] for each in charges.iterdir()),
                "rides": [each.charge for each in rides],
                "requests": [row.is_finished for row in RequestRow.query(namespace="")],
            }
            print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
