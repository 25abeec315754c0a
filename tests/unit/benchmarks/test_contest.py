"""Figures from waiters' records, and the detection of a broken lock."""

from __future__ import annotations

import pytest

from benchmarks.contest import Contest, Diary, Refusal, Visit, overlaps


def contest(*diaries: Diary) -> Contest:
    return Contest(10.0, 20.0, diaries)


def test_sections_back_to_back_are_the_serial_ideal() -> None:
    visits = [Visit(0.0, 9.0 + number, 10.0 + number) for number in range(12)]
    assert contest(Diary(visits[::2]), Diary(visits[1::2])).share() == pytest.approx(1.0)


def test_the_share_is_of_the_window_and_of_the_time_that_was_measured() -> None:
    # Half a second before the window opens, and a whole one after it has closed, do not count.
    early, within, late = Visit(9, 9.5, 10.5), Visit(11, 12, 14), Visit(19, 19.5, 21)
    assert contest(Diary([early, within]), Diary([late])).share() == pytest.approx(0.3)


def test_acquisitions_are_counted_where_they_were_granted() -> None:
    first = Diary([Visit(9, 9.9, 10.1), Visit(10.2, 10.3, 10.4), Visit(19, 19.9, 20.5)])
    second = Diary([Visit(9, 20.0, 20.1)])
    assert contest(first, second).acquisitions() == [2, 0]


def test_a_wait_is_followed_beyond_the_window() -> None:
    starved = Diary([Visit(11, 27, 27)])
    assert contest(starved, Diary([Visit(11, 12, 13)])).longest_wait() == 16
    assert sorted(contest(starved, Diary([Visit(11, 12, 13)])).waits()) == [1, 16]


def test_waits_that_do_not_touch_the_window_are_left_out() -> None:
    before, after = Visit(1, 9, 9.5), Visit(20.5, 29, 29)
    assert contest(Diary([before, after])).waits() == []
    assert contest(Diary([before, after])).longest_wait() == 0


def test_timed_out_waits_count_with_their_length() -> None:
    timed_out = Diary(refusals=[Refusal(12, 17)])
    assert contest(timed_out).longest_wait() == 5
    assert contest(timed_out).timeouts() == 1


def test_errors_are_reported() -> None:
    assert contest(Diary(), Diary(error="OSError: gone")).errors() == ["OSError: gone"]


def test_visits_one_after_the_other_do_not_overlap() -> None:
    visits = [Visit(0, 1, 2), Visit(0, 2, 3), Visit(0, 3.5, 4), Visit(0, 4, 4)]
    assert overlaps(visits) == []
    assert overlaps([]) == []


def test_two_in_the_section_at_once_are_found() -> None:
    """The negative control: whatever the order of the diaries."""
    first, second = Visit(0, 1.0, 2.0), Visit(0, 1.75, 3.0)
    for diaries in ((Diary([first]), Diary([second])), (Diary([second]), Diary([first]))):
        (overlap,) = contest(*diaries).overlaps()
        assert (overlap.first, overlap.second, overlap.seconds) == (first, second, 0.25)


def test_a_long_visit_is_compared_with_all_later_ones() -> None:
    long, short, last = Visit(0, 1, 10), Visit(0, 2, 3), Visit(0, 4, 5)
    assert [(found.first, found.second) for found in overlaps([last, short, long])] == [
        (long, short),
        (long, last),
    ]
