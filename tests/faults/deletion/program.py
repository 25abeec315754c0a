"""A process of an app with a tree that is deleted.

    python -m tests.faults.deletion.program FOLDER ROLE

Roles: `fill` stores a tree of as many entities as FOLDER/facts says, `delete` deletes its root,
`work` runs the job and the relay until nothing is left, and writes a line after each batch:
its seconds, and the memory in KiB. `visit` takes the owner's lock again and again, and prints how
long it waited. `count` prints what is left.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.cloud import ndb

import userlock
from tests.faults.crashing import Ahead
from tests.faults.outbox.program import Files, append
from userlock.deletion import Tree, delete_tree, deletions_of, unfinished
from userlock.deletion.run import Run
from userlock.deletion.walk import Walk
from userlock.outbox import Outbox
from userlock.outbox.rows import JobRow
from userlock.stores import MemoryStore

OWNER = "ann"
#: The entities below one shelf: four of five under its key, the others naming it.
SHELF = 200


class CrashedLibrary(userlock.UserModel):
    _lock_id_from_key = userlock.root_id


class CrashedShelf(userlock.UserModel):
    _lock_id_from_key = userlock.root_id


class CrashedBook(userlock.UserModel):
    _lock_id_from_key = userlock.root_id


class CrashedLoan(userlock.UserModel):
    _lock_id = "reader"
    reader = ndb.StringProperty()
    shelf = ndb.KeyProperty()
    file = ndb.StringProperty(default="")


def root() -> Any:
    return ndb.Key("CrashedReader", OWNER, CrashedLibrary, 1)


def shelf_with_books(number: int, files: Path) -> Iterator[Any]:
    """Give a shelf, and the entities below it; every tenth loan has a file."""
    shelf = CrashedShelf(id=number + 1, parent=root())
    yield shelf
    for each in range(SHELF * 4 // 5):
        yield CrashedBook(id=each + 1, parent=shelf.key)
        if each % 4:
            continue
        file = f"{number}-{each}" if each % 40 == 0 else ""
        if file:
            (files / file).write_text("a file")
        yield CrashedLoan(id=f"{number}-{each}", reader=OWNER, shelf=shelf.key, file=file)


def fill(count: int, files: Path) -> None:
    with userlock.global_lock(OWNER, lock_timeout=1000):
        CrashedLibrary(key=root()).put()
        for number in range(count // (SHELF + 1) + 1):
            ndb.put_multi(list(shelf_with_books(number, files)))
            ndb.get_context().clear_cache()


def left(files: Path) -> dict[str, int]:
    kinds = (CrashedLibrary, CrashedShelf, CrashedBook, CrashedLoan)
    found = {kind.__name__: kind.query().count() for kind in kinds}
    return found | {"files": len(list(files.iterdir())), "jobs": JobRow.query().count()}


def memory() -> int:
    """Return the memory of this process, in KiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


def note_batches(folder: Path) -> None:
    """Write a line after each batch: the seconds since the checkpoint before it, and the memory."""
    delete, checkpoint = Run._delete, Run._yield
    last = time.monotonic()

    def noted(self: Run, batch: Any) -> Any:
        deleted = delete(self, batch)
        append(folder / "batches", [f"{time.monotonic() - last:.4f} {memory()}"])
        return deleted

    def passed(self: Run) -> None:
        nonlocal last
        checkpoint(self)
        last = time.monotonic()

    Run._delete = noted  # type: ignore[method-assign]
    Run._yield = passed  # type: ignore[method-assign]


def top_down() -> None:
    """Walk in the wrong order, for a control: shelves before what is on them."""
    below = Walk.below

    def shelves_first(self: Walk, root: Any) -> Iterator[Any]:
        yield from sorted(below(self, root), key=lambda each: each.key.kind() != "CrashedShelf")

    Walk.below = shelves_first  # type: ignore[method-assign]
    Run._with_additions = lambda *_: set()  # type: ignore[method-assign]


def main(folder: Path, role: str, _point: str = "") -> None:
    facts = json.loads((folder / "facts").read_text())
    files = folder / "files"
    files.mkdir(exist_ok=True)
    store: Any = (
        MemoryStore()
        if facts["lock"] == "none"
        else userlock.LockService.from_url(facts["lock"]).store
    )
    policy = userlock.LockPolicy(heartbeat_lock_timeout=1.0)
    userlock.configure(service=userlock.LockService(store, policy=policy))
    clock, engine, client = Ahead(), Files(folder), ndb.Client()
    outbox = Outbox(engine, client=client, clock=clock, claim_seconds=1.0)
    Tree(
        CrashedLibrary,
        outbox,
        children={CrashedShelf: {CrashedLoan: "shelf"}},
        assets={
            CrashedLoan: lambda loan: loan.file and (files / loan.file).unlink(missing_ok=True)
        },
    )
    if role == "work":
        note_batches(folder)
        if facts.get("top_down"):
            top_down()
        work(outbox, engine, clock)
        return
    with client.context(cache_policy=None if role == "fill" else False):
        if role == "fill":
            fill(facts["count"], files)
        elif role == "delete":
            with userlock.global_lock(OWNER):
                delete_tree(root())
        elif role == "visit":
            visit(folder)
        elif role == "count":
            ended = [deletion.ended_at for deletion in deletions_of(OWNER)]
            print(json.dumps(left(files) | {"ended": all(ended) and bool(ended)}), flush=True)


def work(outbox: Outbox, engine: Files, clock: Ahead) -> None:
    """Run jobs until no deletion is left unfinished."""
    while True:
        engine.deliver_all()
        with outbox.context():
            if not list(unfinished()):
                return
        clock.seconds += 3600
        outbox.relay()


def visit(folder: Path) -> None:
    """Take the lock until FOLDER/stop is there."""
    waits = []
    while not (folder / "stop").exists():
        began = time.monotonic()
        with userlock.global_lock(OWNER, wait_timeout=30):
            waits.append(time.monotonic() - began)
        time.sleep(0.02)  # the pace of its visits: nothing is awaited
    (folder / "waits").write_text(json.dumps(waits))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
