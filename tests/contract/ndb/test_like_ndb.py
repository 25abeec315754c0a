"""A program behaves with userlock as without: under the lock, and in a roll-out."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import HealthCheck, given, settings

import userlock
from tests.contract.ndb.programs import (
    CARELESS_STEPS,
    STEPS,
    Block,
    CarelessRun,
    Ours,
    Outcome,
    Run,
    Theirs,
    in_a_transaction,
    outcome,
    plainly,
    programs,
    step,
)
from userlock.ndb import checks
from userlock.ndb.context import Attempt

pytestmark = pytest.mark.usefixtures("context", "quick_retries")

a_few = settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def under_the_lock(model: type, program: list[Block]) -> Outcome:
    return outcome(Run, model, program, userlock.global_lock)


def carelessly(model: type, program: list[Block]) -> Outcome:
    return outcome(CarelessRun, model, program, nullcontext)


class TestUnderTheLock:
    @a_few
    @given(program=programs(STEPS))
    def test_nothing_is_refused_and_all_is_the_same(self, program: list[Block]) -> None:
        assert under_the_lock(Ours, program) == under_the_lock(Theirs, program)

    def test_a_difference_would_be_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The negative control: a read of a deleted entity, in the transaction that deletes it."""
        delete_and_look = [step(what, "a", "get", "put") for what in (Run.delete, Run.change)]
        program: list[Block] = [
            (plainly, [step(Run.create, "a", "get", "put")]),
            (in_a_transaction, delete_and_look),
        ]
        assert under_the_lock(Ours, program) == under_the_lock(Theirs, program)
        monkeypatch.setattr(checks, "current_attempt", Attempt)
        assert under_the_lock(Ours, program) != under_the_lock(Theirs, program)


class TestInARollOut:
    """The first step of docs/adoption.md: nothing changes."""

    @a_few
    @given(program=programs(CARELESS_STEPS))
    def test_all_is_the_same(self, program: list[Block]) -> None:
        userlock.configure(enforcement="log", fencing=False)
        assert carelessly(Ours, program) == carelessly(Theirs, program)

    @pytest.mark.parametrize(
        ("refusal", "unlike"),
        [(userlock.CreatedWithoutLock, {}), (userlock.EntityExistsError, {"enforcement": "log"})],
        ids=["enforced", "fenced"],
    )
    def test_with_more_it_would_not_be(
        self, refusal: type[Exception], unlike: dict[str, str]
    ) -> None:
        """The negative control."""
        userlock.configure(**unlike)  # type: ignore[arg-type]
        overwrite = [step(CarelessRun.overwrite, "a", "get", "put")] * 2
        carelessly(Theirs, [(plainly, overwrite)])
        with pytest.raises(refusal):
            carelessly(Ours, [(plainly, overwrite)])
