"""The function `global_locks`: in order, all or none, within one wait."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import pytest

import userlock
from tests.unit.lock.pulse import Here
from userlock import LockService, LockServiceUnavailable, LockTimeout
from userlock.events import Acquired, Event
from userlock.lock.scope import current_scope
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

pytestmark = pytest.mark.usefixtures("configured")


def held(service: LockService, names: Iterable[str] = "abcde") -> str:
    return "".join(name for name in names if service.holder(name) is not None)


class TestOrder:
    @pytest.mark.parametrize("given", ["cba", "bbaacc"])
    def test_canonical_whatever_is_given(self, events: list[Event], given: str) -> None:
        with userlock.global_locks(list(given)) as locks:
            assert [lock.lock_id for lock in locks] == ["a", "b", "c"]
        taken = [event.lock_id for event in events if isinstance(event, Acquired)]
        assert taken == ["a", "b", "c"]

    def test_ints_are_ids_like_their_strings(self) -> None:
        with userlock.global_locks([10, "9", 9, "10"]) as locks:
            assert [lock.lock_id for lock in locks] == ["10", "9"]

    def test_any_iterable(self, service: LockService) -> None:
        for ids in ({"a", "b"}, {"a": 1, "b": 2}.keys(), (name for name in "ab"), ("b", "a")):
            with userlock.global_locks(ids):
                assert held(service) == "ab"
        assert held(service) == ""

    @pytest.mark.parametrize(
        ("ids", "error", "message"),
        [
            ([], ValueError, "at least one"),
            ("ann", TypeError, "not one str"),
            (b"ann", TypeError, "not one bytes"),
            (7, TypeError, "not one int"),
            (["a", ""], ValueError, "must not be empty"),
            (["a", None], TypeError, "lock id must be"),
        ],
    )
    def test_invalid_arguments_are_reported_at_once(
        self, ids: list[str], error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            userlock.global_locks(ids)

    @pytest.mark.parametrize(
        "wrong", [{"wait_timeout": -1}, {"lock_timeout": 0}, {"priority": "urgent"}]
    )
    def test_other_invalid_arguments_are_reported_at_once(self, wrong: dict[str, object]) -> None:
        with pytest.raises(ValueError, match=next(iter(wrong)).partition("_")[2] or "priority"):
            userlock.global_locks(["a"], **wrong)  # type: ignore[arg-type]


class TestAllOrNone:
    def test_a_time_out(self, service: LockService, clock: ManualClock) -> None:
        theirs = service.acquire("c", request="POST /c")
        with pytest.raises(LockTimeout) as caught:
            userlock.global_locks(["a", "b", "c", "d"], wait_timeout=2).__enter__()
        assert caught.value.lock_id == "c"
        assert caught.value.holder is not None
        assert caught.value.holder.request == "POST /c"
        assert held(service) == "c"
        assert current_scope() is None
        service.release(theirs)

    def test_what_was_held_before_stays(self, service: LockService) -> None:
        service.acquire("c")
        with userlock.global_lock("a") as outer:
            with pytest.raises(LockTimeout):
                userlock.global_locks(["a", "b", "c"], wait_timeout=0).__enter__()
            assert outer.held
            assert held(service) == "ac"
        assert held(service) == "c"

    def test_a_lease_that_ends_during_the_wait(
        self, service: LockService, clock: ManualClock
    ) -> None:
        theirs = service.acquire("b")
        clock.after(3.0, lambda: service.release(theirs))
        with pytest.raises(LockTimeout) as caught:
            userlock.global_locks(["a", "b"], lock_timeout=2, wait_timeout=5).__enter__()
        assert caught.value.lock_id == "a"
        assert "lock_timeout=" in caught.value.__notes__[0]
        assert held(service) == ""

    def test_a_store_that_goes_away(self, store: MemoryStore, clock: ManualClock) -> None:
        service = LockService(store, clock=clock, outage="fail")
        create = store.create

        def only_the_first(lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
            if lock_id == "b":
                store.go_down()
            return create(lock_id, record, ttl_seconds)

        store.create = only_the_first  # type: ignore[method-assign]
        with userlock.scope(service) as scope:
            with pytest.raises(LockServiceUnavailable):
                userlock.global_locks(["a", "b"]).__enter__()
            assert scope.held == {}
        store.come_back()
        clock.advance(5)
        service.release(service.acquire("z"))
        assert held(service) == "", "given back as soon as it answered"

    @pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
    def test_an_interrupt(self, here: Here, error: type[BaseException]) -> None:
        def interrupt() -> None:
            raise error

        here.service.acquire("c")
        here.clock.after(1.0, interrupt)
        with pytest.raises(error):
            userlock.global_locks(["a", "b", "c"]).__enter__()
        assert held(here.service) == "c"
        assert here.service.waiters("c") == []
        assert current_scope() is None


class TestOneWait:
    def test_is_shared(self, service: LockService, clock: ManualClock) -> None:
        """The first is free after 3 s, so 2 s are left for the second."""
        first = service.acquire("a")
        service.acquire("b")
        clock.after(3.0, lambda: service.release(first))
        started = clock.now()
        with pytest.raises(LockTimeout) as caught:
            userlock.global_locks(["a", "b"], wait_timeout=5).__enter__()
        assert clock.now() - started == pytest.approx(5, abs=0.05)
        assert caught.value.lock_id == "b"
        assert caught.value.waited_seconds == pytest.approx(5, abs=0.05), "for all of them"
        assert "after 5" in str(caught.value)

    def test_by_default_as_long_as_for_one(self, service: LockService, clock: ManualClock) -> None:
        service.acquire("b", lock_timeout=1000)
        started = clock.now()
        with userlock.scope(priority="batch"), pytest.raises(LockTimeout):
            userlock.global_locks(["a", "b"], lock_timeout=100).__enter__()
        assert clock.now() - started == pytest.approx(60)

    def test_none_at_all_tries_each_once(self, service: LockService, clock: ManualClock) -> None:
        with userlock.global_locks(["a", "b", "c"], wait_timeout=0):
            assert held(service) == "abc"
        service.acquire("b")
        with pytest.raises(LockTimeout):
            userlock.global_locks(["a", "b", "c"], wait_timeout=0).__enter__()
        assert clock.sleeps == []

    def test_what_is_free_is_taken_when_the_wait_is_used_up(self, here: Here) -> None:
        first = here.service.acquire("a")
        here.clock.after(1.9999, lambda: here.service.release(first))
        with userlock.global_locks(["a", "b"], wait_timeout=2):
            assert held(here.service) == "ab"


class TestUse:
    def test_options_are_for_each(self, service: LockService) -> None:
        with userlock.global_locks(["a", "b"], lock_timeout=7, priority="batch") as locks:
            assert [lock._lease.ttl_seconds for lock in locks] == [7, 7]
            assert [lock._lease.priority for lock in locks] == ["batch", "batch"]
        with userlock.global_locks(["a", "b"], heartbeat=True) as locks:
            assert [lock._lease.ttl_seconds for lock in locks] == [10, 10]

    def test_re_entrant(self, service: LockService) -> None:
        with userlock.global_lock("a") as a:
            with userlock.global_locks(["b", "a"]) as (again, _):
                assert again is a
                with userlock.global_locks(["a", "b", "c"]) as locks:
                    assert locks[0] is a
                assert held(service) == "ab"
            assert held(service) == "a"
        assert held(service) == ""

    def test_one_object_may_be_entered_again(self, service: LockService) -> None:
        both = userlock.global_locks(["a", "b"])
        with both, both:
            assert held(service) == "ab"
        with both:
            assert held(service) == "ab"
        assert held(service) == ""

    def test_exit_stack_and_acquire_lock_among_them(self, service: LockService) -> None:
        with userlock.scope(), contextlib.ExitStack() as stack:
            stack.enter_context(userlock.global_lock("a"))
            stack.enter_context(userlock.global_locks(["b", "c"]))
            userlock.acquire_lock("c")
            stack.enter_context(userlock.acquire_lock("d"))
            userlock.acquire_lock("e")
            assert held(service) == "abcde"
            stack.close()
            assert held(service) == "ce", "those that acquire_lock took last until the scope ends"
        assert held(service) == ""

    def test_the_others_are_released_when_one_release_fails(
        self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first error is raised."""
        remove = store.remove

        def failing(lock_id: str, version: object) -> bool:
            if lock_id in "bc":
                raise RuntimeError(f"a bug in the store of {lock_id}")
            return remove(lock_id, version)

        monkeypatch.setattr(store, "remove", failing)
        with pytest.raises(RuntimeError, match="store of c"), userlock.global_locks(list("abcd")):
            pass
        assert [store.read(name) for name in "ad"] == [None, None]

    def test_roles_have_an_order_of_their_own(self, service: LockService) -> None:
        roles = {"self": "m", "children": ["z", "a"], "nobody": None, "coach": "b", "again": "m"}
        with userlock.global_locks(roles) as locks:
            assert [lock.lock_id for lock in locks] == ["m", "a", "z", "b"]
        assert held(service) == ""

    @pytest.mark.parametrize("roles", [{}, {"self": None, "children": []}])
    def test_roles_without_locks(self, roles: dict[str, None]) -> None:
        with pytest.raises(ValueError, match="at least one lock id"):
            userlock.global_locks(roles)

    def test_a_role_that_is_no_lock_id(self) -> None:
        with pytest.raises(TypeError, match="a lock id must be"):
            userlock.global_locks({"self": [1.5]})
        for some in (b"ann", 1.5, {"a": "b"}):
            with pytest.raises(TypeError, match=f"'self' .* not one {type(some).__name__}"):
                userlock.global_locks({"self": some})
