"""Test `userlock doctor`."""

from __future__ import annotations

import pytest

from tests.unit.cli.terminal import Terminal
from userlock.admin.findings import Finding, Findings, Verdict
from userlock.admin.selftest import Latency, faults_of_records, judge_latency
from userlock.cli.doctor import folded
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

FINE = Finding("h:1", "reachable", Verdict.OK, "it answers", facts={"up": True})
DOWN = Finding("h:1", "reachable", Verdict.WRONG, "it does not answer: [Errno 111] no", "Look.")
OTHER_DOWN = DOWN._replace(server="h:2")
OLD = Finding("h:1", "version", Verdict.WARNING, "1.4.13", "Take a newer one.", {"v": "1.4.13"})
NO_CAS = Finding("h:1", "cas", Verdict.WRONG, "off \x1b[31m", "Start it without -C.")


class Doctor(Terminal):
    """A terminal on a store whose examination has a result that is given."""

    findings: tuple[Finding, ...] = ()


@pytest.fixture
def doctor(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    terminal = Doctor(MemoryStore(clock=clock), clock)
    monkeypatch.setattr("userlock.admin.memory.examine", lambda _: list(terminal.findings))
    return terminal


def finds(doctor: Doctor, *findings: Finding) -> None:
    doctor.findings = findings


@pytest.mark.parametrize(
    ("findings", "code", "verdict"),
    [
        ([FINE], 0, "ok"),
        ([FINE, OLD], 0, "warning"),
        ([FINE, OLD, NO_CAS], 1, "wrong"),
        ([DOWN], 3, "wrong"),
        ([FINE, OTHER_DOWN], 1, "wrong"),
        ([DOWN, OTHER_DOWN], 3, "wrong"),
    ],
)
def test_the_worst_decides(
    doctor: Doctor, findings: list[Finding], code: int, verdict: str
) -> None:
    finds(doctor, *findings)
    assert doctor.run("doctor").code == code
    outcome = doctor.run("doctor", "--json")
    assert outcome.code == code
    assert outcome.document["verdict"] == verdict
    assert len(outcome.document["findings"]) == len(findings)


def test_it_says_what_is_wrong_and_what_to_do(doctor: Doctor) -> None:
    finds(doctor, FINE, OLD, NO_CAS, OTHER_DOWN)
    assert doctor.run("doctor").out == (
        "h:1\n"
        "  ok      reachable    it answers\n"
        "  warning version      1.4.13\n"
        "                       → Take a newer one.\n"
        "  wrong   cas          off \\x1b[31m\n"
        "                       → Start it without -C.\n"
        "h:2\n"
        "  wrong   reachable    it does not answer: no\n"
        "                       → Look.\n"
        "1 ok, 1 warning, 2 wrong\n"
    )


def test_quiet(doctor: Doctor) -> None:
    finds(doctor, FINE, OLD)
    out = doctor.run("doctor", "--quiet").out
    assert "it answers" not in out
    assert "1.4.13" in out


def test_facts_for_programs(doctor: Doctor) -> None:
    finds(doctor, OLD)
    (found,) = doctor.run("doctor", "--json").document["findings"]
    assert found == {
        "server": "h:1",
        "subject": "version",
        "verdict": "warning",
        "says": "1.4.13",
        "advice": "Take a newer one.",
        "facts": {"v": "1.4.13"},
    }


def test_colours_on_a_terminal_only(doctor: Doctor) -> None:
    finds(doctor, FINE)
    assert "\x1b[32mok\x1b[0m" in doctor.run("doctor", tty=True).out
    assert "\x1b" not in doctor.run("doctor").out
    doctor.environ["NO_COLOR"] = "1"
    assert "\x1b" not in doctor.run("doctor", tty=True).out


def test_long_texts_are_folded() -> None:
    lines = folded("one two three four " * 10, 23, 80).split("\n")
    assert len(lines) > 1
    assert all(len(line) < 80 for line in lines)
    assert all(line.startswith(" " * 23) for line in lines[1:])


def test_a_store_in_memory(terminal: Terminal) -> None:
    code, out, _ = terminal.run("doctor")
    assert code == 0
    assert "within one process only" in out
    assert terminal.memory().lock_ids() == []


class _Careless(MemoryStore):
    """A store that ignores versions."""

    def swap(self, lock_id: str, version: object, record: bytes, ttl_seconds: float) -> int | None:
        stored = self.read(lock_id)
        return (
            None if stored is None else super().swap(lock_id, stored.version, record, ttl_seconds)
        )

    def remove(self, lock_id: str, version: object) -> bool:
        stored = self.read(lock_id)
        return stored is not None and super().remove(lock_id, stored.version)


def test_a_store_that_takes_outdated_versions_is_found_out(clock: ManualClock) -> None:
    wrong = faults_of_records(_Careless(clock=clock))
    assert "it took a change that was decided on an outdated version" in wrong
    assert "it removed a record by an outdated version" in wrong
    terminal = Terminal(_Careless(clock=clock), clock)
    assert terminal.run("doctor").code == 1


class _Forgetful(MemoryStore):
    """A store that loses appended lines."""

    def append(self, lock_id: str, line: bytes) -> None:
        return None


def test_a_store_that_appends_nothing_is_found_out(clock: ManualClock) -> None:
    assert faults_of_records(_Forgetful(clock=clock)) == [
        "a line was not appended: no caller can join the queue"
    ]


def test_a_good_store_has_no_trouble(clock: ManualClock) -> None:
    """The negative control of the two above."""
    assert faults_of_records(MemoryStore(clock=clock)) == []


@pytest.mark.parametrize(
    ("p50", "p99", "verdict"),
    [
        (0.0001, 0.001, Verdict.OK),
        (0.008, 0.01, Verdict.WARNING),
        (0.0001, 0.2, Verdict.WARNING),
    ],
)
def test_latency(p50: float, p99: float, verdict: Verdict) -> None:
    found = Findings("h:1")
    judge_latency(found, Latency(10, p50, p99), 0.3)
    assert [each.verdict for each in found] == [verdict]
