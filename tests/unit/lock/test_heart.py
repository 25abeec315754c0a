"""The renewals: whom it calls, when, and what cannot stop it."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Sequence

import pytest

from tests.waiting import wait_until
from userlock.clock import SYSTEM_CLOCK
from userlock.lock.renewal import RenewalThread
from userlock.testing import ManualClock


class Patient:
    """A ward that notes when it is called."""

    def __init__(self, *pauses: float | None) -> None:
        self._pauses = list(pauses)
        self.beats: list[float] = []

    def run(self, now: float) -> float | None:
        self.beats.append(now)
        pause = self._pauses.pop(0) if self._pauses else None
        return None if pause is None else now + pause


class Failing(Patient):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def run(self, now: float) -> float | None:
        super().run(now)
        raise self._error


@pytest.fixture
def renewals(clock: ManualClock) -> RenewalThread:
    return RenewalThread(clock, threaded=False)


class TestWhen:
    def test_a_ward_is_called_when_it_is_due_and_not_before(
        self, renewals: RenewalThread, clock: ManualClock
    ) -> None:
        start = clock.now()
        ward = Patient(3.0, 0.5)
        renewals.schedule(ward, start + 2)
        while (due := renewals.run_due()) is not None:
            clock.advance(due - clock.now())
        assert ward.beats == [start + 2, start + 5, start + 5.5]
        assert len(renewals) == 0

    def test_without_wards_there_is_nothing_to_do(self, renewals: RenewalThread) -> None:
        assert renewals.run_due() is None

    def test_each_ward_has_its_own_time(self, renewals: RenewalThread, clock: ManualClock) -> None:
        start = clock.now()
        wards = [Patient() for _ in range(5)]
        for number in (3, 1, 4, 0, 2):
            renewals.schedule(wards[number], start + number)
        clock.advance(2)
        assert renewals.run_due() == start + 3
        assert [len(ward.beats) for ward in wards] == [1, 1, 1, 0, 0]

    @pytest.mark.parametrize("seconds", [1.0, 5.0])
    def test_a_ward_that_is_put_down_again_has_only_its_new_time(
        self, renewals: RenewalThread, clock: ManualClock, seconds: float
    ) -> None:
        """Sooner or later than before."""
        start = clock.now()
        ward = Patient()
        renewals.schedule(ward, start + 3)
        renewals.schedule(ward, start + seconds)
        for _ in range(20):
            clock.advance(0.5)
            renewals.run_due()
        assert ward.beats == [start + seconds]

    def test_a_ward_may_put_itself_down_during_its_beat(
        self, renewals: RenewalThread, clock: ManualClock
    ) -> None:
        start = clock.now()

        class Eager(Patient):
            def run(self, now: float) -> float | None:
                super().run(now)
                if len(self.beats) == 1:
                    renewals.schedule(self, now + 1)
                    return now + 100
                return None

        ward = Eager()
        renewals.schedule(ward, start)
        renewals.run_due()
        clock.advance(200)
        renewals.run_due()
        assert len(ward.beats) == 2
        assert len(renewals) == 0


class Sociable(Patient):
    """A ward that notes with whom it is called."""

    def __init__(self, batch_key: object, *pauses: float | None) -> None:
        super().__init__(*pauses)
        self.batch_key = batch_key
        self.parties: list[int] = []

    def run_with(self, others: Sequence[Sociable], now: float) -> list[float | None]:
        self.parties.append(1 + len(others))
        return [each.run(now) for each in (self, *others)]


class TestCompany:
    def test_those_that_are_due_are_called_together(
        self, renewals: RenewalThread, clock: ManualClock
    ) -> None:
        start = clock.now()
        wards = [Sociable("us", number / 10) for number in range(5)]
        for number, ward in enumerate(wards):
            renewals.schedule(ward, start + number)
        clock.advance(3)
        assert renewals.run_due() == start + 3.1
        assert [ward.parties for ward in wards] == [[4], [], [], [], []]
        assert [len(ward.beats) for ward in wards] == [2, 1, 1, 1, 0], (
            "the first wants to be called at once"
        )
        clock.advance(0.1)
        renewals.run_due()
        assert [len(ward.beats) for ward in wards] == [2, 2, 1, 1, 0]

    def test_but_not_with_others(self, renewals: RenewalThread, clock: ManualClock) -> None:
        alone, us, them = Patient(), [Sociable("us") for _ in range(3)], Sociable("them")
        for ward in (us[0], us[1], alone, us[2], them):
            renewals.schedule(ward, clock.now())
        renewals.run_due()
        assert [ward.parties for ward in us] == [[2], [], []]
        assert all(len(ward.beats) == 1 for ward in (alone, them, *us))

    def test_nor_more_than_so_many(self, renewals: RenewalThread, clock: ManualClock) -> None:
        wards = [Sociable("us") for _ in range(250)]
        for ward in wards:
            renewals.schedule(ward, clock.now())
        renewals.run_due()
        assert [party for ward in wards for party in ward.parties] == [100, 100, 50]

    def test_one_that_is_put_down_anew_meanwhile_has_its_new_time(
        self, renewals: RenewalThread, clock: ManualClock
    ) -> None:
        start = clock.now()

        class Eager(Sociable):
            def run_with(self, others: Sequence[Sociable], now: float) -> list[float | None]:
                renewals.schedule(others[0], now + 1)
                return [now + 5 for _ in (self, *others)]

        wards = [Eager("us"), Sociable("us")]
        for ward in wards:
            renewals.schedule(ward, start)
        assert renewals.run_due() == start + 1

    def test_when_it_fails_all_are_called_again(
        self, renewals: RenewalThread, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Bad(Sociable):
            def run_with(self, others: Sequence[Sociable], now: float) -> list[float | None]:
                raise ValueError("what is this")

        wards = [Bad("us"), Bad("us")]
        for ward in wards:
            renewals.schedule(ward, clock.now())
        assert renewals.run_due() == clock.now() + 1
        assert "what is this" in caplog.text
        assert len(renewals) == 2

    def test_one_that_nobody_keeps_is_forgotten(
        self, renewals: RenewalThread, clock: ManualClock
    ) -> None:
        wards = [Sociable("us", 1.0) for _ in range(3)]
        for ward in wards:
            renewals.schedule(ward, clock.now())
        renewals.run_due()
        del wards, ward
        gc.collect()
        assert len(renewals) == 0


class TestForgetting:
    def test_a_ward_that_nobody_keeps_is_forgotten(
        self, renewals: RenewalThread, clock: ManualClock
    ) -> None:
        ward = Patient()
        beats = ward.beats
        renewals.schedule(ward, clock.now() + 1)
        assert len(renewals) == 1
        del ward
        gc.collect()
        assert len(renewals) == 0
        clock.advance(2)
        assert renewals.run_due() is None
        assert beats == []

    def test_what_is_put_down_for_those_that_have_gone_does_not_pile_up(
        self, renewals: RenewalThread, clock: ManualClock
    ) -> None:
        """Short locks with long leases: each leaves an entry for much later."""
        kept = [Patient() for _ in range(10)]
        for ward in kept:
            renewals.schedule(ward, clock.now() + 1)
        for _ in range(10_000):
            renewals.schedule(Patient(), clock.now() + 3600)
        assert len(renewals._due) < 200
        clock.advance(2)
        renewals.run_due()
        assert all(len(ward.beats) == 1 for ward in kept)

    def test_nor_does_what_is_put_down_again_and_again(
        self, renewals: RenewalThread, clock: ManualClock
    ) -> None:
        ward = Patient()
        for number in range(10_000):
            renewals.schedule(ward, clock.now() + 10_000 - number)
        assert len(renewals._due) < 200


class TestErrors:
    def test_an_error_is_logged_and_the_ward_called_again(
        self, renewals: RenewalThread, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        bad, good = Failing(ValueError("what is this")), Patient()
        renewals.schedule(bad, clock.now())
        renewals.schedule(good, clock.now())
        renewals.run_due()
        assert len(good.beats) == 1
        assert "what is this" in caplog.text
        clock.advance(1.1)
        renewals.run_due()
        assert len(bad.beats) == 2

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_without_a_thread_whoever_calls_is_told_to_stop(
        self, renewals: RenewalThread, clock: ManualClock, error: type[BaseException]
    ) -> None:
        ward = Failing(error())
        renewals.schedule(ward, clock.now())
        with pytest.raises(error):
            renewals.run_due()


class TestThread:
    @pytest.fixture
    def real(self) -> RenewalThread:
        """With a thread of its own, on real time."""
        return RenewalThread(SYSTEM_CLOCK, threaded=True)

    def test_it_begins_with_the_first_ward_and_there_is_one(self, real: RenewalThread) -> None:
        before = set(threading.enumerate())
        wards = [Patient() for _ in range(100)]
        for ward in wards:
            real.schedule(ward, SYSTEM_CLOCK.now())
        wait_until(lambda: all(ward.beats for ward in wards))
        assert real._thread is not None
        assert set(threading.enumerate()) - before == {real._thread}
        assert (real._thread.name, real._thread.daemon) == ("userlock-renewal", True)

    def test_a_ward_that_is_due_sooner_than_the_others_is_called_in_time(
        self, real: RenewalThread
    ) -> None:
        late, soon = Patient(), Patient()
        real.schedule(late, SYSTEM_CLOCK.now() + 1000)
        real.schedule(soon, SYSTEM_CLOCK.now() + 0.05)
        wait_until(lambda: bool(soon.beats))
        assert late.beats == []

    @pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
    def test_nothing_that_a_ward_raises_ends_the_thread(
        self, real: RenewalThread, error: type[BaseException]
    ) -> None:
        bad, good = Failing(error()), Patient(0.01, 0.01)
        real.schedule(bad, SYSTEM_CLOCK.now())
        wait_until(lambda: bool(bad.beats))
        thread = real._thread
        real.schedule(good, SYSTEM_CLOCK.now())
        wait_until(lambda: len(good.beats) == 3)
        assert real._thread is thread

    def test_a_process_that_can_have_no_more_threads_does_without(
        self, real: RenewalThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its locks are held as long as their leases last; the next lock tries again."""
        first, second = Patient(), Patient()

        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            real.schedule(first, SYSTEM_CLOCK.now())
        assert "leases are not renewed" in caplog.text
        real.schedule(second, SYSTEM_CLOCK.now())
        wait_until(lambda: bool(first.beats and second.beats))

    def test_a_forked_child_has_none_of_its_parents_wards(self, real: RenewalThread) -> None:
        """Also when the fork comes while the parent's thread is at work."""
        ward = Patient(*[0.001] * 100_000)
        real.schedule(ward, SYSTEM_CLOCK.now())
        wait_until(lambda: len(ward.beats) > 3)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                inherited = len(ward.beats), len(real)
                own = Patient()
                real.schedule(own, SYSTEM_CLOCK.now())
                wait_until(lambda: bool(own.beats))
                code = 0 if (len(ward.beats), 0) == inherited else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        beats = len(ward.beats)
        wait_until(lambda: len(ward.beats) > beats)
