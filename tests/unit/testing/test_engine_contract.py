"""Test the contract of engines by negative controls: it finds each engine that breaks a rule."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.unit.testing import broken_engines as broken
from tests.unit.testing.broken_engines import GoodEngine
from userlock.outbox.engines import Engine
from userlock.testing import EngineContract, EngineForkContract, ManualClock

#: Each broken engine, with a test that must fail on it.
FOUND_OUT_BY: dict[type[GoodEngine], str] = {
    broken.HasNoClose: "test_it_has_the_methods",
    broken.LosesSome: "test_each_message_that_is_taken_is_delivered",
    broken.TakesTen: "test_the_most_messages",
    broken.NeedsOne: "test_no_messages",
    broken.AddsTheName: "test_a_message_carries_the_key_alone",
    broken.CutsKeys: "test_a_message_carries_the_key_alone",
    broken.NamesAreKeys: "test_the_key_of_another_attempt_is_another_message",
    broken.RefusesKnownNames: "test_a_name_that_it_knows_is_no_error",
    broken.ForgetsNames: "test_a_name_that_it_knows_is_no_error",
    broken.IgnoresDelays: "test_a_delayed_message_comes_later",
    broken.DelaysInMilliseconds: "test_a_delayed_message_comes_later",
    broken.DelaysForEver: "test_a_delayed_message_comes_later",
    broken.RaisesWithoutTime: "test_without_time_nothing_is_raised",
    broken.RaisesWhenStopped: "test_a_backend_that_does_not_answer_costs_no_more_than_the_time",
    broken.TakesItsTime: "test_a_backend_that_does_not_answer_costs_no_more_than_the_time",
    broken.SaysYesWhenStopped: "test_a_backend_that_does_not_answer_costs_no_more_than_the_time",
    broken.StaysDown: "test_a_backend_that_does_not_answer_costs_no_more_than_the_time",
    broken.OneThread: "test_it_is_used_by_threads",
    broken.ClosesOnce: "test_it_is_closed",
    broken.RaisesAfterClose: "test_it_is_closed",
    broken.LosesAfterClose: "test_it_is_closed",
    broken.FailsInChildren: "test_a_forked_child_has_connections_of_its_own",
    broken.RaisesInChildren: "test_a_forked_child_has_connections_of_its_own",
    broken.LosesThoseOfChildren: "test_a_forked_child_has_connections_of_its_own",
}


class Contract(EngineContract, EngineForkContract):
    """The suite, run by this module on a manual clock."""

    def delivered(self, engine: Engine) -> Sequence[str]:
        assert isinstance(engine, GoodEngine)
        engine.run()
        return engine.keys()

    def stopped(self, engine: Engine) -> AbstractContextManager[object]:
        assert isinstance(engine, GoodEngine)
        return engine.stopped()

    def now(self, engine: Engine) -> float:
        assert isinstance(engine, GoodEngine)
        return engine.clock.now()

    def wait(self, engine: Engine, seconds: float) -> None:
        assert isinstance(engine, GoodEngine)
        engine.clock.advance(seconds)


NAMES = [name for name, _ in inspect.getmembers(Contract) if name.startswith("test_")]


def cases(name: str) -> list[dict[str, Any]]:
    """Return the arguments of one test, beside the engine, as pytest would give them."""
    marks = getattr(getattr(Contract, name), "pytestmark", [])
    for mark in marks:
        if mark.name == "parametrize":
            return [{mark.args[0]: value} for value in mark.args[1]]
    return [{}]


def fails(make: type[GoodEngine], name: str) -> bool:
    """Return whether the engine fails this test of the contract."""
    for arguments in cases(name):
        try:
            getattr(Contract(), name)(make(ManualClock()), **arguments)
        except Exception:
            return True
    return False


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_that_keeps_the_rules_passes(name: str) -> None:
    assert not fails(GoodEngine, name)


@pytest.mark.parametrize(
    ("make", "name"),
    FOUND_OUT_BY.items(),
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_an_engine_that_breaks_one_is_found_out(make: type[GoodEngine], name: str) -> None:
    assert fails(make, name)


def test_every_test_has_an_engine_that_fails_it() -> None:
    assert set(FOUND_OUT_BY.values()) == set(NAMES)
