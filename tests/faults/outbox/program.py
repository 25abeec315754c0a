"""A process of an app with an outbox, which may kill itself at a point of its work.

    python -m tests.faults.outbox.program FOLDER ROLE [POINT]

Roles: `stage`, `run` (delivers the messages in FOLDER), `relay`, `redrive`, and `settle`, which
relays and runs until nothing is left, with its clock set ahead, and prints the outcome as JSON. The
engine is a file in FOLDER: it loses nothing that it has taken, and survives its processes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from google.cloud import ndb

import userlock
from tests.faults.crashing import Ahead, after, before, configure, die
from userlock.outbox import EngineError, Outbox, Retry, Wake
from userlock.outbox.relay import Relay
from userlock.outbox.rows import JobRow
from userlock.outbox.waking import Waker
from userlock.outbox.worker import Worker

OWNER = "ann"


class Files:
    """An engine: a file of messages, and one of those that were delivered."""

    def __init__(self, folder: Path) -> None:
        self._sent = folder / "sent"
        self._taken = folder / "taken"
        self.deliver: Callable[[str], object] = lambda key: None

    def connect(self, deliver: Callable[[str], object]) -> None:
        self.deliver = deliver

    def wake(self, messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        append(self._sent, [each.key for each in messages])
        return [None] * len(messages)

    def close(self) -> None:
        pass

    def deliver_all(self) -> None:
        """Deliver each message; one at whose delivery the process ends comes again."""
        while len(lines(self._taken)) < len(lines(self._sent)):
            key = lines(self._sent)[len(lines(self._taken))]
            self.deliver(key)
            append(self._taken, [key])


def append(path: Path, texts: Sequence[str]) -> None:
    with path.open("a") as file:
        file.writelines(f"{text}\n" for text in texts)
        file.flush()
        os.fsync(file.fileno())


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


class CrashedLearner(userlock.UserModel):
    _lock_id_from_key = userlock.key_id
    staged = ndb.BooleanProperty(default=False)
    written = ndb.IntegerProperty(default=0)


# --- points ---------------------------------------------------------------------------------


#: Where a killed process leaves a lock, a transaction or a lease behind; all others are in process,
#: in tests/contract/outbox/test_crash_points.py. Those without a function are in the program.
POINTS: dict[str, Callable[[], object] | None] = {
    "stage: before the commit": None,
    "stage: committed, the engine not told": lambda: before(Waker, "wake"),
    "run: claimed": lambda: after(Worker, "_claim"),
    "run: in the job": None,
    "run: the failure not noted": lambda: before(Worker, "_failed"),
    "relay: told, not pushed back": lambda: before(Relay, "_push_back"),
    "redrive: revived, the engine not told": lambda: before(Waker, "wake"),
}


def main(folder: Path, role: str, point: str = "") -> None:
    facts = configure(folder)
    clock = Ahead()
    engine = Files(folder)
    client = ndb.Client()
    outbox = Outbox(
        engine,
        client=client,
        clock=clock,
        tiers={"slow": engine},
        retry=Retry(attempts=2, first_seconds=0.01, tiers={1: "slow"}),
    )
    failing = facts["failing"] and role != "settle" and role != "redrive"

    @outbox.job(name="work", transactional=facts["transactional"])
    def work(user_id: str) -> None:
        append(folder / "runs", [role])
        learner = CrashedLearner.get_by_id(user_id)
        assert learner is not None
        assert learner.staged, "a job of a transaction that was not committed"
        if failing:
            raise ValueError
        learner.written += 1
        learner.put()
        if point == "run: in the job":
            die()

    @ndb.transactional()
    def change() -> None:
        with userlock.global_lock(OWNER):
            learner = CrashedLearner.get_by_id(OWNER) or CrashedLearner(id=OWNER)
            learner.staged = True
            learner.put()
            work.stage(OWNER)
            if point == "stage: before the commit":
                die()

    if plant := POINTS.get(point):
        plant()
    with client.context():
        if role == "stage":
            change()
        elif role == "run":
            engine.deliver_all()
            clock.seconds += 60
            outbox.relay()
            engine.deliver_all()
        elif role == "relay":
            clock.seconds += 3600
            outbox.relay()
        elif role == "redrive":
            clock.seconds += 3600
            list(outbox.dead.redrive_all("", rate=1000))
    if role == "settle":
        for _ in range(8):
            engine.deliver_all()
            clock.seconds += 3600
            outbox.relay()
            engine.deliver_all()
            with client.context():
                list(outbox.dead.redrive_all("", rate=1000))
        with client.context():
            learner = CrashedLearner.get_by_id(OWNER)
            outcome = {
                "committed": learner is not None and learner.staged,
                "written": 0 if learner is None else learner.written,
                "runs": len(lines(folder / "runs")),
                "left": JobRow.query().count(),
            }
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
