"""The notes of several processes, and the programs that they run."""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.trial.programs import Accident, Guard, Operation, Read, Way, program
from tests.trial.record import Outcome, Recorder, Write, read


def test_notes_are_read_as_they_were_made(tmp_path: Path) -> None:
    writes = [Write("1", "o", "e", None), Write("2", "o", None, "1", deletes=True, together="t")]
    recorder = Recorder(tmp_path / "notes")
    for write in writes:
        recorder.about_to(write)
    recorder.ended(writes[0], Outcome.ACCEPTED)
    recorder.close()
    assert read([tmp_path / "notes"]) == writes
    assert [write.outcome for write in writes] == [Outcome.ACCEPTED, Outcome.UNKNOWN]


def test_a_process_that_is_killed_leaves_what_it_knew(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    recorder = Recorder(path)
    recorder.about_to(Write("1", "o", "e", None))
    recorder.ended(Write("1", "o", "e", None), Outcome.REFUSED)
    recorder.about_to(Write("2", "o", "e", None))
    recorder.close()
    path.write_text(path.read_text()[:-5])
    (write,) = read([path])
    assert (write.id, write.outcome) == ("1", Outcome.REFUSED)


def operations(seed: int, process: int, count: int) -> list[Operation]:
    return list(itertools.islice(program(seed, process), count))


def test_a_program_is_the_same_for_the_same_seed() -> None:
    assert operations(1, 0, 200) == operations(1, 0, 200)
    assert operations(1, 0, 200) != operations(2, 0, 200)
    first, second = operations(1, 0, 200), operations(1, 1, 200)
    assert {each.name for each in first}.isdisjoint(each.name for each in second)


def test_programs_have_all_that_there_is() -> None:
    made = operations(1, 0, 2000)
    assert {each.way for each in made} == set(Way)
    assert {each.guard for each in made} == set(Guard)
    assert {each.read for each in made} == set(Read)
    assert {each.accident for each in made} == set(Accident)
    assert {len(each.users) for each in made} == {1, 2}
