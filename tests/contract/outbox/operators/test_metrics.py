"""Test what OpenTelemetry is told of jobs."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from tests.contract.outbox.operators.conftest import Shop
from tests.contract.test_opentelemetry import Backend
from userlock.contrib import opentelemetry
from userlock.contrib.opentelemetry import LAG_BUCKETS, RUN_BUCKETS, instrument
from userlock.events import LISTENERS, JobRan, Listeners
from userlock.outbox import Outbox, listing

MARK = "zoe.marker+7@example.org"


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def rounds(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Provide the times at which the outbox is read, by the shop's clock."""
    monkeypatch.setattr(opentelemetry, "SYSTEM_CLOCK", shop.clock)
    found: list[float] = []
    take = listing.take_status

    def counted(*args: Any, **options: Any) -> listing.Status:
        found.append(shop.clock.now())
        assert options["timeout"] <= 5
        return take(*args, **options)

    monkeypatch.setattr(listing, "take_status", counted)
    return found


def observe(shop: Shop, backend: Backend) -> None:
    instrument(Listeners(), meter_provider=backend.meters, outbox=shop.outbox)


def gauges(backend: Backend) -> dict[str, dict[str, float]]:
    """Return the gauges of the outbox: the values by state."""
    return {
        name.removeprefix("userlock.outbox."): {
            str(dict(attributes).get("userlock.state", "")): point.value
            for attributes, point in points.items()
        }
        for name, points in backend.metrics().items()
        if name.startswith("userlock.outbox.")
    }


def test_runs_by_job_and_outcome(shop: Shop, backend: Backend) -> None:
    listener = backend.listener()
    LISTENERS.add(listener)
    try:
        shop.stage(shop.pay, MARK)
        shop.clock.advance(30)
        shop.deliver()
        shop.kill(shop.pay, MARK, error=KeyError("x"))
        shop.error = RuntimeError(MARK)
        shop.stage(shop.mail, MARK)
        shop.deliver()
    finally:
        LISTENERS.remove(listener)
    runs = {
        tuple(value for _, value in sorted(attributes)): count
        for attributes, count in backend.counted("userlock.job.runs").items()
    }
    assert runs == {
        ("pay", "done"): 1,
        ("KeyError", "pay", "dead"): 1,
        ("RuntimeError", "mail", "failed"): 1,
    }
    lags = backend.metrics()["userlock.job.lag"]
    pay = lags[(("messaging.destination.name", "pay"),)]
    assert (pay.count, pay.max, pay.explicit_bounds) == (2, 30, LAG_BUCKETS)
    runs_of = backend.metrics()["messaging.process.duration"]
    assert {point.explicit_bounds for point in runs_of.values()} == {RUN_BUCKETS}
    assert {dict(attributes)["messaging.system"] for attributes in runs_of} == {"userlock"}
    assert MARK not in repr(backend.metrics())


def test_the_class_of_an_error_is_a_name(backend: Backend) -> None:
    kinds = [
        ("KeyError: 'x'", "KeyError"),
        ("a.b.Error: no", "a.b.Error"),
        ("the process ended", "_OTHER"),
        ("f.<locals>.E: x", "_OTHER"),
        ("\x1b[2J: x", "_OTHER"),
        ("x" * 500, "_OTHER"),
    ]
    listener = backend.listener()
    for error, _ in kinds:
        listener(JobRan("ann", "pay", "failed", 1, 0.1, 0.2, error))
    found = {
        dict(each)["error.type"]: count
        for each, count in backend.counted("userlock.job.runs").items()
    }
    assert found == Counter(kind for _, kind in kinds)


def test_the_gauges(shop: Shop, backend: Backend, rounds: list[float]) -> None:
    shop.kill(shop.close_books, "ann")
    shop.stage(shop.pay, "ann")
    shop.stage(shop.pay, "bob", delay=500)
    shop.clock.advance(100)
    shop.engine.down = True
    shop.stage(shop.pay, "eve", delay=1)
    observe(shop, backend)
    assert gauges(backend) == {
        "lag": {"": pytest.approx(100)},
        "jobs": {"due": 1, "later": 2, "running": 0, "dead": 1},
        "blocked": {"": 1},
        "refused": {"": 1},
    }
    assert MARK not in repr(backend.metrics())


def test_the_outbox_is_read_once_a_minute(
    shop: Shop, backend: Backend, rounds: list[float]
) -> None:
    observe(shop, backend)
    for _ in range(13):
        assert gauges(backend)["lag"] == {"": 0}
        shop.clock.advance(10)
    assert [each - rounds[0] for each in rounds] == [0, 60, 120]


def test_many_readers_at_once_cost_one_round(
    shop: Shop, backend: Backend, rounds: list[float]
) -> None:
    observe(shop, backend)
    threads = [threading.Thread(target=backend.metrics) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(rounds) == 1


def test_an_outage_leaves_a_gap_and_is_not_asked_again_at_once(
    shop: Shop, backend: Backend, rounds: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    observe(shop, backend)
    assert "lag" in gauges(backend)
    take = listing.take_status

    def fail(*args: Any, **options: Any) -> None:
        rounds.append(shop.clock.now())
        raise ConnectionError("no")

    monkeypatch.setattr(listing, "take_status", fail)
    shop.clock.advance(61)
    for _ in range(3):
        assert set(gauges(backend)) == {"refused"}, "nothing old is reported"
    assert len(rounds) == 2
    monkeypatch.setattr(listing, "take_status", take)
    shop.clock.advance(61)
    assert "lag" in gauges(backend)


def test_an_outbox_without_a_client_reports_nothing_and_breaks_nothing(
    shop: Shop, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    instrument(Listeners(), meter_provider=backend.meters, outbox=Outbox(shop.engine))
    assert set(gauges(backend)) == {"refused"}
    assert "client=ndb.Client" in caplog.text
