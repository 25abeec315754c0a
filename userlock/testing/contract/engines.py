"""The contract of every engine of the outbox, as tests to subclass.

The subclass gives a fixture `engine`, and `delivered`. `EngineForkContract` stands apart: it needs
a process that survives a fork.
"""

from __future__ import annotations

import functools
import os
import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager

import pytest

from userlock.outbox.engines import Engine, EngineError, Wake
from userlock.testing.contract.base import Race, Timed, exit_code, fork

#: The fast path's time, which delays a request. In seconds.
_FAST_SECONDS = 0.3
#: Without hurry, as the relay has it. In seconds.
_RELAYED_SECONDS = 10.0
#: How much longer than its time a call may take on a busy machine, in seconds.
_LATE_SECONDS = 0.5
_DELAY_SECONDS = 2.0
_THREADS = 8
_EACH = 10
#: Characters and lengths of keys.
_KEYS = ["a", "aGVsbG8", "-_-" * 3, "0123456789", "x" * 2500]


class EngineBase(Timed):
    """Base of the contract's parts. Their subclasses provide an `engine` fixture."""

    #: Whether the engine takes a name once, while it remembers it.
    knows_names = True
    #: Whether it keeps delays, roughly.
    keeps_delays = True
    #: By how much a delayed message may come early, in seconds.
    early_seconds = 0.0
    #: The longest time from a message that is due to its delivery, in seconds.
    late_seconds = 20.0

    def delivered(self, engine: Engine) -> Sequence[str]:
        """Return the keys that were delivered until now, each as often as it was."""
        raise NotImplementedError

    def stopped(self, engine: Engine) -> AbstractContextManager[object] | None:
        """Return a context in which the backend does not answer; None if it has none."""
        return None

    def eventually(self, engine: Engine, *keys: str, delay: float = 0.0) -> Sequence[str]:
        """Wait until all these have been delivered; return all that were."""
        end = self.now(engine) + delay + self.late_seconds
        while True:
            found = self.delivered(engine)
            missing = Counter(keys) - Counter(found)
            if not missing:
                return found
            assert self.now(engine) < end, f"taken, but not delivered: {dict(missing)!r:.300}"
            self.wait(engine, 0.02)


class EngineContract(EngineBase):
    """The rules of `userlock.outbox.Engine`, as tests."""

    def test_each_message_that_is_taken_is_delivered(self, engine: Engine) -> None:
        assert isinstance(engine, Engine)
        for count in (0, 20, 100):  # the most
            messages = [_message() for _ in range(count)]
            assert _sent(engine, messages) == [None] * count
            self.eventually(engine, *(each.key for each in messages))

    @pytest.mark.parametrize("key", _KEYS, ids=lambda key: f"{key[:12]}, {len(key)}")
    def test_a_message_carries_the_key_alone(self, engine: Engine, key: str) -> None:
        key = f"{key}{secrets.token_hex(8)}"
        assert _sent(engine, [_message(key)]) == [None]
        found = self.eventually(engine, key)
        assert [each for each in found if key in each] == [key], "the key came with something else"

    def test_the_key_of_another_attempt_is_another_message(self, engine: Engine) -> None:
        """The names differ: the first message may be done, or lost, or still be on its way."""
        key = secrets.token_hex(8)
        assert _sent(engine, [_message(key)]) == [None]
        self.eventually(engine, key)
        assert _sent(engine, [_message(key), _message(key)]) == [None, None]
        self.eventually(engine, key, key, key)

    def test_a_name_that_it_knows_is_no_error(self, engine: Engine) -> None:
        message = _message(delay=_DELAY_SECONDS if self.keeps_delays else 0)
        for _ in range(3):
            assert _sent(engine, [message, message]) == [None, None]
        found = self.eventually(engine, message.key)
        if self.knows_names:
            last = _message()
            assert _sent(engine, [last]) == [None]
            found = self.eventually(engine, last.key)
            assert found.count(message.key) == 1, "it took a name twice while it knew it"

    def test_a_delayed_message_comes_later(self, engine: Engine) -> None:
        if not self.keeps_delays:
            pytest.skip("the engine keeps no delays")
        late, soon = _message(delay=_DELAY_SECONDS), _message()
        began = self.now(engine)
        assert _sent(engine, [late, soon]) == [None, None]
        self.eventually(engine, soon.key)
        if self.now(engine) - began < _DELAY_SECONDS - self.early_seconds:
            assert late.key not in self.delivered(engine), "it came with those that were due"
        self.eventually(engine, late.key, delay=_DELAY_SECONDS)
        passed = self.now(engine) - began
        assert passed >= _DELAY_SECONDS - self.early_seconds, f"it came after {passed:.2f} s"

    def test_without_time_nothing_is_raised(self, engine: Engine) -> None:
        for timeout in (0.0, -1.0, 1e-6):
            messages = [_message(), _message()]
            errors = engine.wake(messages, timeout)
            assert len(errors) == 2
            assert all(each is None or isinstance(each, EngineError) for each in errors)
            taken = [each.key for each, error in zip(messages, errors, strict=True) if not error]
            self.eventually(engine, *taken)

    def test_a_backend_that_does_not_answer_costs_no_more_than_the_time(
        self, engine: Engine
    ) -> None:
        """Also on the first call, and with many messages."""
        for count in (1, 30):
            context = self.stopped(engine)
            if context is None:
                pytest.skip("the engine has no backend")
            with context:
                began = self.now(engine)
                errors = engine.wake([_message() for _ in range(count)], _FAST_SECONDS)
                took = self.now(engine) - began
                assert len(errors) == count
                assert all(isinstance(each, EngineError) for each in errors), errors
                assert all(str(each) for each in errors), "an error without words"
                assert took < _FAST_SECONDS + _LATE_SECONDS, f"it took {took:.2f} s"
            self._works_again(engine)

    def _works_again(self, engine: Engine) -> None:
        end = self.now(engine) + self.late_seconds
        while _sent(engine, [message := _message()]) != [None]:
            assert self.now(engine) < end, "the backend answers again, but messages are refused"
            self.wait(engine, 0.05)
        self.eventually(engine, message.key)

    def test_it_is_used_by_threads(self, engine: Engine) -> None:
        sent = [[_message() for _ in range(_EACH)] for _ in range(_THREADS)]

        def send(messages: Sequence[Wake]) -> None:
            for each in messages:
                assert _sent(engine, [each]) == [None]

        Race().run(*(functools.partial(send, messages) for messages in sent))
        self.eventually(engine, *(each.key for messages in sent for each in messages))

    def test_it_is_closed(self, engine: Engine) -> None:
        """Twice, and used afterwards: messages are refused, or delivered, but nothing is raised."""
        message = _message()
        assert _sent(engine, [message]) == [None]
        self.eventually(engine, message.key)
        engine.close()
        engine.close()
        last = _message()
        (error,) = engine.wake([last], _RELAYED_SECONDS)
        if error is None:
            self.eventually(engine, last.key)
        else:
            assert isinstance(error, EngineError)


class EngineForkContract(EngineBase):
    """The rules of an engine that was used before a fork, on both sides of it."""

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
    def test_a_forked_child_has_connections_of_its_own(self, engine: Engine) -> None:
        """Once the child's first messages may be refused: the relay sends them again."""
        first, of_child = _message(), secrets.token_hex(8)
        assert _sent(engine, [first]) == [None]
        self.eventually(engine, first.key)

        def work() -> int:
            wakes = (engine.wake([_message(of_child)], _FAST_SECONDS) for _ in range(10))
            taken = any(errors == [None] for errors in wakes)
            engine.close()
            return 0 if taken else 2

        child = fork(work)
        messages = [_message() for _ in range(_EACH)]
        try:
            for each in messages:
                assert _sent(engine, [each]) == [None], "the child disturbed its parent"
        finally:
            code = exit_code(child)
        assert code != 2, "the engine took no message in a forked child"
        assert code == 0, "the engine raised in a forked child, or kept it waiting"
        self.eventually(engine, of_child, *(each.key for each in messages))


def _message(key: str = "", *, delay: float = 0.0) -> Wake:
    return Wake(key or secrets.token_hex(8), f"{secrets.token_hex(16)}-0-0", delay)


def _sent(engine: Engine, messages: Sequence[Wake]) -> list[EngineError | None]:
    return engine.wake(messages, _RELAYED_SECONDS)
