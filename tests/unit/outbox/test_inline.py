"""The engine of threads, without any: a test delivers its messages."""

from __future__ import annotations

from userlock.outbox.engines import Wake
from userlock.outbox.engines.inline import InlineEngine
from userlock.testing import ManualClock


def test_it_delivers_as_many_as_are_asked_for(clock: ManualClock) -> None:
    engine = InlineEngine(threads=0, clock=clock)
    delivered: list[str] = []
    engine.connect(delivered.append)
    engine.wake([Wake(key, f"name-{key}") for key in "abc"], 1)
    assert [engine.run_pending(most=2), delivered] == [2, ["a", "b"]]
    assert [engine.run_pending(most=2), delivered] == [1, ["a", "b", "c"]]


def test_it_is_idle_when_no_message_is_due(clock: ManualClock) -> None:
    engine = InlineEngine(threads=0, clock=clock)
    engine.connect(lambda _: None)
    engine.wake([Wake("a", "now"), Wake("b", "later", delay=60)], 1)
    assert not engine.wait_until_idle(0)
    engine.run_pending()
    assert engine.wait_until_idle(0)


def test_a_job_that_raises_anything_ends_no_thread() -> None:
    class TimeIsOut(BaseException):
        """As gevent's."""

    delivered: list[str] = []

    def deliver(key: str) -> None:
        delivered.append(key)
        raise TimeIsOut

    engine = InlineEngine(threads=1)
    engine.connect(deliver)
    engine.wake([Wake(key, f"name-{key}") for key in "ab"], 1)
    assert engine.wait_until_idle(10)
    engine.close()
    assert delivered == ["a", "b"]
