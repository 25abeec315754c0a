"""Corners where an update could be lost."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import Elsewhere, Overtake, add_five, stored_points
from tests.contract.ndb.models import Learner, VideoLog
from tests.contract.ndb.servers import Wire

pytestmark = pytest.mark.usefixtures("key")


class Sized(userlock.UserModel):
    """Measures itself in a hook, as some models do, and takes its owner from there."""

    _lock_id = "owner"
    owner = ndb.StringProperty()
    size = ndb.IntegerProperty()
    number = ndb.IntegerProperty(default=0)

    def _pre_put_hook(self) -> None:
        self.owner = str(self.key.id())
        self.size = len(ndb.model._entity_to_protobuf(self)._pb.SerializeToString())


class TestNothingIsLost:
    @pytest.mark.parametrize("checked", [True, False])
    def test_a_delete_does_not_pass_a_creation_that_is_under_way(self, checked: bool) -> None:
        """Creations go in a commit of their own."""
        userlock.configure(enforcement="raise" if checked else "off")
        with userlock.global_lock("bob"):
            learner = Learner(id="bob")
            learner.put_async()
            learner.key.delete()
        assert stored_points("bob") is None

    def test_a_creation_does_not_pass_a_delete_that_is_under_way(self) -> None:
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            learner.key.delete_async()
            learner.points = 9
            learner.put()
        assert stored_points() == 9

    def test_a_put_in_a_callback_on_commit_is_refused_not_dropped(self) -> None:
        def change_twice() -> None:
            learner = Learner.get_by_id("ann")
            learner.points = 1
            learner.put()

            def later() -> None:
                learner.points = 2
                learner.put()

            ndb.context.get_context().call_on_commit(later)

        with userlock.global_lock("ann"), pytest.raises(userlock.WriteAfterCommit):
            ndb.transaction(change_twice)
        assert stored_points() == 1

    def test_a_transaction_does_not_commit_after_its_lock_was_left(self, context: Any) -> None:
        unfinished = ndb.tasklets.Future()
        reached: list[int] = []

        def change() -> Any:
            learner = Learner.get_by_id("ann")
            learner.points = 1
            learner.put()
            reached.append(1)
            return unfinished  # and goes on when that is done

        with userlock.global_lock("ann"):
            future = ndb.transaction_async(change)
            while not reached:
                context.eventloop.run1()
        unfinished.set_result(None)
        with pytest.raises(userlock.PutAfterRelease, match="about to commit"):
            future.get_result()
        assert stored_points() == 0

    def test_a_result_that_arrived_before_the_transaction_is_fenced_in_it(
        self, overtake: Overtake
    ) -> None:
        with userlock.global_lock("ann"):
            results = iter(Learner.query())
            assert results.has_next()
            overtake(add_five)

            def put_it() -> None:
                learner = next(results)
                learner.points += 100
                learner.put()

            with pytest.raises(userlock.StaleWriteError):
                ndb.transaction(put_it)
        assert stored_points() == 5

    def test_a_hook_that_serialises_the_entity_does_not_lose_the_fence(
        self, overtake: Overtake
    ) -> None:
        def create() -> None:
            with userlock.global_lock("ann"):
                Sized(id="ann").put()

        def somebody_writes() -> None:
            with userlock.global_lock("ann"):
                other = Sized.get_by_id("ann")
                other.number = 5
                other.put()

        create()
        with userlock.global_lock("ann"):
            sized = Sized.get_by_id("ann", use_cache=False)
            overtake(somebody_writes)
            sized.number = 100
            with pytest.raises(userlock.StaleWriteError):
                sized.put()
        assert Sized.get_by_id("ann", use_cache=False).number == 5

    def test_the_lock_id_is_read_after_the_hook_has_run(self) -> None:
        """The hook may set the owner, or change it."""
        with userlock.global_lock("ann"):
            Sized(id="ann").put()
            with pytest.raises(userlock.CreatedWithoutLock, match="'zed'"):
                Sized(id="zed", owner="ann").put()

    @pytest.mark.parametrize("name", ["another", None])
    def test_so_is_one_whose_key_was_changed_after_its_id_was_allocated(
        self, name: str | None, wire: Wire
    ) -> None:
        """Several entities of one object: each is a creation, not a change of the first."""
        with userlock.global_lock("ann"):
            log = VideoLog(learner_id="ann", seconds=1)
            first = log.put()
            log.key = None if name is None else ndb.Key(VideoLog, name)
            second = log.put()
            log.seconds = 2
            log.put()
        assert [each.get(use_cache=False).seconds for each in (first, second)] == [1, 2]
        commits = [request for rpc, request in wire.rpcs if rpc == "commit"]
        matched = [bool(commit.mutations[0].base_version) for commit in commits]
        assert matched == [False, False, True]


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize("later", [0, 20])
def test_a_put_in_a_transaction_that_is_over_is_refused(later: int) -> None:
    within: list[Any] = []
    ndb.transaction(lambda: within.append(ndb.get_context()))
    for _ in range(later):
        ndb.transaction(lambda: None)
    with userlock.global_lock("ann"):
        learner = Learner.get_by_id("ann")
        with within[0].use(), pytest.raises(userlock.WriteAfterCommit):
            learner.put()


@pytest.mark.parametrize(
    ("error", "raised"),
    [(None, pytest.raises(userlock.WriteViolation)), (KeyError, contextlib.nullcontext())],
    ids=["committed", "rolled back"],
)
@pytest.mark.parametrize("where", ["under the lock", "where the context ends"])
def test_a_dropped_tasklet_that_puts_in_a_transaction_that_is_over(
    elsewhere: Elsewhere, error: Any, raised: Any, where: str
) -> None:
    """Of a transaction that was rolled back nobody needs to learn it."""

    @ndb.tasklet
    def later(answer: Any, learner: Any) -> Any:
        yield answer
        yield learner.put_async()

    def request() -> None:
        answer = ndb.tasklets.Future()

        def change() -> None:
            later(answer, Learner.get_by_id("ann"))
            if error is not None:
                raise error

        with userlock.global_lock("ann"):
            with contextlib.suppress(KeyError):
                ndb.transaction(change)
            answer.set_result(None)
            if where == "under the lock":
                Learner.get_by_id("bob")  # which runs the event loop

    with raised:
        elsewhere(request)


class PutsInCommits(Wire):
    """Runs code of the application, as a tasklet would, while the commit is under way."""

    def sent(self, name: str, request: Any) -> Any:
        if name == "commit":
            with pytest.raises(userlock.WriteAfterCommit):
                Learner(id="late").put_async()
        return super().sent(name, request)


@pytest.mark.usefixtures("key")
def test_a_put_while_the_commit_is_under_way_is_refused(ndb_client: ndb.Client) -> None:
    def change() -> None:
        Learner.get_by_id("ann").put()  # with the transaction's id, the commit is sent at once

    with userlock.global_locks(["ann", "late"]):
        PutsInCommits(ndb_client)
        ndb.transaction(change)
    assert stored_points("late") is None
