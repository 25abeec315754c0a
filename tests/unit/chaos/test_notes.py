"""The records of several processes, and the programs that they run."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from tests.chaos.history import read
from tests.chaos.programs import MIXES, VARIANTS, Accident, Guard, Operation, Read, Way, program
from tests.chaos.record import Outcome, Recorder, Write


def test_writes_are_read_as_they_were_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "notes")
    recorder.about_to(Write("1", "o", "e", None, token="t1"))
    recorder.about_to(Write("2", "o", None, "1", deletes=True, together="t"))
    recorder.ended(Write("1", "o", "e", None), Outcome.ACCEPTED)
    recorder.close()
    first, second = read([tmp_path / "notes"]).writes.values()
    assert (first.entity, first.token, first.outcome) == ("e", "t1", Outcome.ACCEPTED)
    assert (second.deletes, second.together, second.outcome) == (True, "t", Outcome.UNKNOWN)
    assert first.reported is not None
    assert first.made <= second.made <= first.reported
    assert second.reported is None


def test_a_killed_process_leaves_its_records(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    recorder = Recorder(path)
    recorder.about_to(Write("1", "o", "e", None))
    recorder.ended(Write("1", "o", "e", None), Outcome.REFUSED)
    recorder.about_to(Write("2", "o", "e", None))
    recorder.close()
    path.write_text(path.read_text()[:-5])
    (write,) = read([path]).writes.values()
    assert (write.id, write.outcome) == ("1", Outcome.REFUSED)


def test_the_life_of_a_lease(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "notes")
    reported = {"overslept": 0.0, "excused": False}
    recorder.note("asked", id="p/1", lock_id="ann", who="p", batch=True, timeout=3.0)
    recorder.note("queued", id="p/1")
    recorder.note(
        "granted", id="p/1", token="t", deadline=5.0, degraded=True, backed_until=4.0, **reported
    )
    recorder.note("confirmed", token="t", deadline=6.0)
    recorder.note("extended", token="t", deadline=7.0, backed_until=4.5)
    recorder.note("releasing", token="t")
    recorder.note("confirmed", token="t", deadline=9.0)  # too late
    recorder.note("releasing", token="t")
    recorder.note("asked", id="p/2", lock_id="ann", who="p", batch=True, timeout=3.0)
    recorder.note("failed", id="p/2", error="LockTimeout", **reported)
    recorder.close()
    history = read([tmp_path / "notes"])
    lease, other = history.attempts.values()
    assert lease.queued is not None
    assert lease.granted is not None
    assert lease.confirmed is not None
    assert lease.released is not None
    assert lease.began < lease.queued < lease.granted < lease.confirmed < lease.released
    assert (lease.held_from, lease.deadline) == (lease.confirmed, 7.0)
    assert lease.backed_until == 4.5
    assert lease.held_until == min(lease.released, 7.0)
    assert (other.granted, other.error) == (None, "LockTimeout")
    assert list(history.tenures) == ["t"]


def test_spans_have_a_beginning_and_an_end(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "notes")
    with recorder.span("broken", locks=["ann"]):
        recorder.note("late", kind="broken", locks=["ann"], lasts=5.0)
    recorder.note("starved", who="p", began=1.0)
    recorder.note("begins", number=9, kind="process killed", who="p")
    recorder.close()
    late, broken, starved, killed = read([tmp_path / "notes"]).spans
    assert (starved.began, starved.who) == (1.0, "p")
    assert late.ended == late.began + 5
    assert broken.meets(late.began, late.began)
    assert not broken.meets(broken.ended + 1, broken.ended + 2)
    assert (killed.who, killed.ended) == ("p", math.inf)


def test_effects_of_faults(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "notes")
    recorder.note("met", kind="packets late", count=3)
    recorder.close()
    assert read([tmp_path / "notes"]).met == {"packets late": 3}


def operations(seed: str, performer: str, mix: str = "interactive") -> list[Operation]:
    return list(itertools.islice(program(seed, performer, MIXES[mix]), 2000))


def test_a_program_is_the_same_for_the_same_seed() -> None:
    assert operations("1", "p.0") == operations("1", "p.0")
    assert operations("1", "p.0") != operations("2", "p.0")
    first, second = operations("1", "p.0"), operations("1", "p.1")
    assert {each.name for each in first}.isdisjoint(each.name for each in second)


def test_programs_use_all_kinds() -> None:
    made = operations("1", "p.0") + operations("1", "b.0", "batch")
    made += operations("1", "c.0", "beyond their leases")
    assert {each.way for each in made} == set(Way)
    assert {each.guard for each in made} == set(Guard)
    assert {each.read for each in made} == set(Read)
    assert {each.accident for each in made} == set(Accident)
    assert {each.batch for each in made} == {True, False}
    assert {len(each.users) for each in made} == {1, 2}
    assert {each.in_transaction for each in made} == {True, False}
    assert {each.variant for each in made} == set(range(VARIANTS))


def test_of_two_users_one_may_be_locked() -> None:
    partly = [each for each in operations("1", "p.0") if each.guard is Guard.PARTLY]
    assert {len(each.users) for each in partly if each.way is not Way.TASKLETS} == {2}
    several = [each for each in partly if each.way in (Way.MULTI, Way.DROPPED)]
    for each in several:
        mine = [name for name in each.entities if name.startswith(f"{each.users[0]}/")]
        assert (len(mine), len(each.entities)) == (2, 3)
    assert len(several) > len(partly) / 4


def test_tasklets_have_an_entity_each() -> None:
    apart = [each for each in operations("1", "p.0") if each.way is Way.TASKLETS]
    assert {len(set(each.entities)) for each in apart} == {3}
