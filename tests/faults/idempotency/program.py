"""A process of an app that serves one paid request, and may kill itself at a point of its work.

    python -m tests.faults.idempotency.program FOLDER ROLE [POINT]

Roles: `client` (sends the request, and prints the answer), `complete` (the server completes what
is left), `reap`, and `outcome`, which reaps with its clock set ahead, and prints what there is as
JSON. The payment provider is a folder: a charge is a file named by its key.

A process that is to pause at a point stops itself, and goes on when it is continued.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from google.cloud import ndb

import userlock
from tests.faults.crashing import Ahead, after, before, configure, die
from userlock.idempotency import Flow, Flows
from userlock.idempotency.rows import RequestRow
from userlock.idempotency.runner import Run
from userlock.outbox import EngineError, Outbox, Wake
from userlock.outbox.rows import JobRow

OWNER = "ann"
KEY = "0ccb7813-e63d-4377-93c5-476cb93038f3"


class Declined(Exception):
    """The provider's final refusal."""


class CrashedRide(userlock.UserModel):
    _lock_id = "user_id"
    user_id = ndb.StringProperty(required=True)
    charge = ndb.StringProperty()


class Silent:
    """An engine that takes messages, and delivers none."""

    def connect(self, deliver: Callable[[str], object]) -> None:
        pass

    def wake(self, messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        return [None] * len(messages)

    def close(self) -> None:
        pass


#: Where a killed process leaves a lock or a transaction behind; the others are in process, in
#: tests/contract/idempotency/test_crash_points.py. Those without a function are in the request's.
POINTS: dict[str, Callable[[], object] | None] = {
    "before the key is stored": lambda: before(Run, "_begin"),
    "in a phase": None,
    "called, not recorded": None,
    "in the last block": None,
    "the answer is stored, not sent": lambda: after(Flows, "run"),
    "refused, not recorded": lambda: before(Flow, "finish"),
}
#: Of a request that the provider refuses.
REFUSED = ["refused, not recorded"]
#: Nothing is stored yet; the answer is.
BEGUN_NOT = ["before the key is stored"]
FINISHED = ["the answer is stored, not sent"]


def main(folder: Path, role: str, point: str = "") -> None:
    facts = configure(folder)
    clock = Ahead()
    flows = Flows(clock=clock)
    charges = folder / "charges"
    charges.mkdir(exist_ok=True)

    def reach(here: str) -> None:
        if point == here:
            die()
        if point == f"fails: {here}":
            raise RuntimeError(here)
        if point == f"pauses: {here}":
            os.kill(os.getpid(), signal.SIGSTOP)

    def charge(key: str) -> str:
        reach("asked, not called")
        if facts["point"] in REFUSED:
            raise Declined("too poor")
        (charges / key).touch()
        reach("called, not recorded")
        return key[:8]

    client = ndb.Client()
    outbox = Outbox(Silent(), client=client)
    receipt = outbox.job(name="receipt")(lambda user_id, charge: None)

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
            receipt.stage(flow.user_id, paid)
            end.respond({"ride": ride_id, "to": to, "charge": paid})
            reach("in the last block")

    if plant := POINTS.get(point):
        plant()
    with client.context(cache_policy=False):
        if role == "client":
            print(json.dumps(ride(OWNER, KEY, to="home")), flush=True)
        elif role == "complete":
            clock.seconds += 3600
            found = list(flows.complete(older_than=300))
            while any(answer is None for _, answer in found):  # the lock of one that died is kept
                found = list(flows.complete(older_than=300))
            print(json.dumps(len(found)), flush=True)
        elif role == "reap":
            clock.seconds += 400 * 24 * 3600
            print(json.dumps(flows.reap()), flush=True)
        else:
            clock.seconds += 12 * 3600
            flows.reap()
            rides = list(CrashedRide.query())
            outcome = {
                "charges": sorted(each.name[:8] for each in charges.iterdir()),
                "jobs": JobRow.query(namespace="").count(),
                "rides": [each.charge for each in rides],
                "requests": [row.is_finished for row in RequestRow.query(namespace="")],
            }
            print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
