"""Interleaving, with a clock that the operations themselves move."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from random import Random

import pytest

from benchmarks.runner import Contender, Operation, interleave, mean, median, repeat


class World:
    """A clock in nanoseconds, and a record."""

    def __init__(self) -> None:
        self.now = 0
        self.diary: list[str] = []

    def timer(self) -> int:
        return self.now

    def operation(self, name: str, cost: int) -> Operation:
        def run() -> None:
            self.diary.append(name)
            self.now += cost

        return run

    def contender(self, name: str, cost: int, *, units: int = 1) -> Contender:
        return Contender(name=name, operations=repeat(self.operation(name, cost)), units=units)


@pytest.fixture
def world() -> World:
    return World()


def test_each_contender_is_timed_once_a_round(world: World) -> None:
    times = interleave(
        [world.contender("a", 30), world.contender("b", 70)],
        rounds=3,
        operations=5,
        timer=world.timer,
    )
    assert times == {"a": [30, 30, 30], "b": [70, 70, 70]}


def test_warm_up_rounds_run_and_are_not_kept(world: World) -> None:
    times = interleave(
        [world.contender("a", 30)], rounds=1, operations=5, timer=world.timer, warm_up=3
    )
    assert times == {"a": [30]}
    assert world.diary == ["a"] * 20


def test_the_order_changes_from_round_to_round(world: World) -> None:
    contenders = [world.contender(name, 1) for name in "abc"]
    interleave(contenders, rounds=30, operations=1, timer=world.timer, random=Random(1), warm_up=0)
    rounds = [tuple(world.diary[start : start + 3]) for start in range(0, 90, 3)]
    assert {tuple(sorted(order)) for order in rounds} == {("a", "b", "c")}
    assert len(set(rounds)) == 6


def test_time_is_given_per_unit_of_work(world: World) -> None:
    times = interleave(
        [world.contender("twenty at once", 600, units=20)],
        rounds=1,
        operations=2,
        timer=world.timer,
    )
    assert times == {"twenty at once": [30]}


def test_preparations_and_the_context_are_not_timed(world: World) -> None:
    @contextlib.contextmanager
    def around() -> Iterator[None]:
        world.now += 1000
        world.diary.append("enter")
        yield
        world.diary.append("leave")
        world.now += 1000

    def operations(count: int) -> Iterator[Operation]:
        for _ in range(count):
            world.now += 1000
            world.diary.append("prepare")
            yield world.operation("run", 30)

    times = interleave(
        [Contender(name="a", operations=operations, around=around)],
        rounds=1,
        operations=2,
        timer=world.timer,
        warm_up=0,
    )
    assert times == {"a": [30]}
    assert world.diary == ["enter", "prepare", "prepare", "run", "run", "leave"]


@pytest.mark.parametrize(("centre", "expected"), [(median, 10), (mean, 208)])
def test_the_centre_of_a_round_is_a_choice(world: World, centre: object, expected: float) -> None:
    costs = [10, 10, 10, 10, 1000]

    def operations(count: int) -> list[Operation]:
        return [world.operation("a", cost) for cost in costs[:count]]

    times = interleave(
        [Contender(name="a", operations=operations)],
        rounds=1,
        operations=5,
        centre=centre,  # type: ignore[arg-type]
        timer=world.timer,
    )
    assert times == {"a": [expected]}


def test_results_live_until_the_round_is_over(world: World) -> None:
    alive: set[int] = set()
    most = 0

    class Thing:
        def __init__(self) -> None:
            nonlocal most
            alive.add(id(self))
            most = max(most, len(alive))

        def __del__(self) -> None:
            alive.discard(id(self))

    interleave(
        [Contender(name="a", operations=repeat(Thing))],
        rounds=2,
        operations=7,
        timer=world.timer,
    )
    assert most == 7
    assert not alive


def test_an_error_is_not_swallowed(world: World) -> None:
    def fails() -> None:
        raise RuntimeError("memcached did not add")

    with pytest.raises(RuntimeError, match="did not add"):
        interleave([Contender(name="a", operations=repeat(fails))], rounds=1, operations=1)


def test_names_must_differ(world: World) -> None:
    with pytest.raises(ValueError, match="different names"):
        interleave([world.contender("a", 1), world.contender("a", 2)], rounds=1, operations=1)
