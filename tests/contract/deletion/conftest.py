"""Albums with tracks, pictures and files. Jobs run when a test says so; time by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.outbox.conftest import Mailbox
from userlock.constraints import Unique
from userlock.deletion import Deletion, Tree, delete_tree, find_deletion
from userlock.deletion.tree import DeletionRow
from userlock.ndb import capabilities
from userlock.outbox import Outbox, Retry
from userlock.outbox.rows import JobRow
from userlock.testing import ManualClock


class Album(userlock.UserModel):
    """The root."""

    _lock_id_from_key = userlock.root_id
    _unique = (Unique("title"),)
    title = ndb.StringProperty()


class Track(userlock.UserModel):
    """Below an album's key, also below each other."""

    _lock_id_from_key = userlock.root_id
    title = ndb.StringProperty()


class Picture(userlock.UserModel):
    """Names its album, or its track; has a file."""

    _lock_id = "fan"
    fan = ndb.StringProperty()
    of = ndb.KeyProperty("o")
    file = ndb.StringProperty()


class Remark(userlock.Model):
    """Names its picture; written in transactions."""

    _write_policy = userlock.WritePolicy.IN_TRANSACTION
    picture = ndb.KeyProperty()


KINDS = (Album, Track, Picture, Remark)


def album_key(fan: str = "ann", name: str = "one") -> Any:
    return ndb.Key("Fan", fan, Album, name)


class Albums:
    """An app: albums, with a tree.

    Attributes:
        files: where the pictures' files are.
        fails: names of files whose removal raises.
        stamped: the owners that `on_delete` was called with.
    """

    def __init__(
        self, client: ndb.Client, mailbox: Mailbox, clock: ManualClock, files: Path, batch: int = 4
    ) -> None:
        self.mailbox = mailbox
        self.clock = clock
        self.files = files
        self.fails: set[str] = set()
        self.stamped: list[str] = []
        self.outbox = Outbox(
            mailbox,
            client=client,
            clock=clock,
            retry=Retry(attempts=4, first_seconds=10, jitter=0),
        )
        self.tree = Tree(
            Album,
            self.outbox,
            children={
                Album: {Picture: "of"},
                Track: {Picture: "of"},
                Picture: {Remark: "picture", Picture: "of"},
            },
            assets={Picture: self.remove_file},
            on_delete=self.stamped.append,
            batch=batch,
            clock=clock,
        )

    def remove_file(self, picture: Any) -> None:
        if picture.file in self.fails:
            raise OSError(f"{picture.file} is busy")
        (self.files / picture.file).unlink(missing_ok=True)

    def fill(self, fan: str = "ann", name: str = "one", tracks: int = 3) -> Any:
        """Store an album with everything below it. Returns its key."""
        key = album_key(fan, name)
        with userlock.global_lock(fan):
            Album(key=key, title=name).put()
            entities: list[Any] = []
            for number in range(tracks):
                track = ndb.Key(Track, number + 1, parent=key)
                deep = ndb.Key(Track, 99, Track, "deep", parent=track)
                entities += [Track(key=track), Track(key=deep)]
                for of in (track, deep, key):
                    entities.append(self.new_picture(fan, of, f"{fan}-{name}-{number}-{of.id()}"))
            remarks = [
                Remark(picture=each) for each in ndb.put_multi(entities) if each.kind() == "Picture"
            ]
            for first in range(0, len(remarks), 20):  # the legacy mode takes 25
                some = remarks[first : first + 20]
                ndb.transaction(lambda some=some: ndb.put_multi(some))
        return key

    def new_picture(self, fan: str, of: Any, file: str) -> Picture:
        (self.files / file).write_text("a picture")
        return Picture(fan=fan, of=of, file=file)

    def picture(self, fan: str, of: Any, file: str) -> Any:
        picture = self.new_picture(fan, of, file)
        picture.put()
        ndb.transaction(lambda: Remark(picture=picture.key).put())
        return picture.key

    def delete(self, key: Any) -> Deletion:
        with userlock.global_lock(key.root().id()):
            return delete_tree(key)

    def found(self, deletion: Deletion) -> Deletion:
        """Return a deletion as it is now."""
        found = find_deletion(deletion.owner, deletion.id)
        assert found is not None
        return found

    def run_jobs(self, times: int = 1) -> None:
        """Deliver all messages; for more times, what the relay finds later."""
        self.mailbox.deliver_all()
        for _ in range(times - 1):
            self.clock.advance(1000)
            self.outbox.relay()
            self.mailbox.deliver_all()

    def left(self) -> dict[str, int]:
        """Return the numbers of stored entities, by kind, and of files."""
        found = {kind.__name__: len(kind.query().fetch(keys_only=True)) for kind in KINDS}
        return {name: n for name, n in found.items() if n} | (
            {"files": n} if (n := len(list(self.files.iterdir()))) else {}
        )


def rows() -> list[Any]:
    return list(DeletionRow.query(namespace="").fetch(use_cache=False))


def jobs() -> list[Any]:
    return list(JobRow.query(namespace="").fetch(use_cache=False))


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def batch() -> int:
    return 4


@pytest.fixture
def albums(
    batch: int,
    ndb_client: ndb.Client,
    mailbox: Mailbox,
    clock: ManualClock,
    service: userlock.LockService,
    tmp_path: Path,
    quick_retries: None,
) -> Iterator[Albums]:
    """Provide the app in an ndb context."""
    albums = Albums(ndb_client, mailbox, clock, tmp_path, batch)
    with ndb_client.context(cache_policy=False):
        capabilities.honours_base_version(ndb_client)
        yield albums
    albums.outbox.close()
