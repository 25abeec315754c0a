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
from typing import Any

from google.cloud import ndb

import userlock
from tests.faults.crashing import Ahead, after, before, die
from userlock.idempotency import Flow, Flows
from userlock.idempotency.rows import RequestRow
from userlock.idempotency.runner import Run
from userlock.ndb import capabilities
from userlock.outbox import EngineError, Outbox, Wake
from userlock.outbox.rows import JobRow
from userlock.stores import MemoryStore

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


class DiesInCommit:
    """A stub whose process dies in its commit of that number: before it is sent, or applied."""

    def __init__(self, stub: Any, number: int, *, applied: bool) -> None:
        self._stub = stub
        self._left = number
        self._applied = applied

    def __getattr__(self, name: str) -> Any:
        rpc = getattr(self._stub, name)
        return _Commit(rpc, self._reach) if name == "commit" else rpc

    def _reach(self, commit: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left < 0:
            if self._applied:
                commit().result()
            die()
        return commit()


class _Commit:
    def __init__(self, rpc: Any, reach: Callable[[Callable[[], Any]], Any]) -> None:
        self._rpc = rpc
        self._reach = reach

    def future(self, *args: Any, **options: Any) -> Any:
        return self._reach(lambda: self._rpc.future(*args, **options))


#: The commits of an attempt. Its process dies before they are sent, or before their reply is read.
COMMITS = ("the key", "the phase", "before the call", "the reply", "the answer")
REFUSED_COMMITS = (*COMMITS[:3], "the refusal")
_COMMITS = {
    f"{when}: {name}": (number, applied)
    for names in (COMMITS, REFUSED_COMMITS)
    for number, name in enumerate(names)
    for when, applied in (("not sent", False), ("applied, not known", True))
}

#: Each point: what is planted there. Those without are in the function of the request.
POINTS: dict[str, Callable[[], object]] = {
    "before the key is stored": lambda: before(Run, "_insert"),
    "the key is stored": lambda: after(Run, "_insert"),
    "in a phase": lambda: None,
    "after a phase": lambda: after(Flow, "phase"),
    "asked, not called": lambda: None,
    "called, not recorded": lambda: None,
    "recorded": lambda: after(Flow, "external"),
    "in the last block": lambda: None,
    "the answer is stored, not sent": lambda: after(Flows, "run"),
    "refused, not recorded": lambda: before(Flow, "finish"),
    "refused and recorded": lambda: after(Flow, "finish"),
    **dict.fromkeys(_COMMITS, lambda: None),
}
#: Of a request that the provider refuses.
REFUSED = [point for point in POINTS if "refus" in point]
#: Nothing is stored yet; the answer is.
BEGUN_NOT = ("before the key is stored", "not sent: the key")
FINISHED = (
    "the answer is stored, not sent",
    "refused and recorded",
    "applied, not known: the answer",
    "applied, not known: the refusal",
)


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

    if point in _COMMITS:
        capabilities.honours_base_version(client)  # which commits, too
        number, applied = _COMMITS[point]
        client.stub = DiesInCommit(client.stub, number, applied=applied)
    elif point in POINTS:
        POINTS[point]()
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
