"""Test `userlock doctor`."""

from __future__ import annotations

import pytest

from tests.unit.cli.terminal import Terminal
from userlock.admin.health import Finding, Verdict, judge_latency
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

FINE = Finding("h:1", "reachable", Verdict.OK, "it answers")
_NO_ANSWER = "it gives no usable answer: [Errno 111] no"
DOWN = Finding("h:1", "reachable", Verdict.WRONG, _NO_ANSWER, "Look.")
OTHER_DOWN = DOWN._replace(server="h:2")
OLD = Finding("h:1", "version", Verdict.WARNING, "1.4.13", "Take a newer one.")
BROKEN = Finding("h:1", "records", Verdict.WRONG, "off \x1b[31m", "Start it without -C.")


class Doctor(Terminal):
    """A terminal on a store whose examination has a result that is given."""

    findings: tuple[Finding, ...] = ()


@pytest.fixture
def doctor(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    terminal = Doctor(MemoryStore(clock=clock), clock)
    monkeypatch.setattr("userlock.admin.health.examine", lambda _: list(terminal.findings))
    return terminal


@pytest.mark.parametrize(
    ("findings", "code", "verdict"),
    [
        ([FINE], 0, "ok"),
        ([FINE, OLD], 0, "warning"),
        ([FINE, OLD, BROKEN], 1, "wrong"),
        ([DOWN], 3, "wrong"),
        ([FINE, OTHER_DOWN], 1, "wrong"),
        ([DOWN, OTHER_DOWN], 3, "wrong"),
    ],
)
def test_the_worst_decides(
    doctor: Doctor, findings: list[Finding], code: int, verdict: str
) -> None:
    doctor.findings = tuple(findings)
    assert doctor.run("doctor").code == code
    outcome = doctor.run("doctor", "--json")
    assert (outcome.code, outcome.document["verdict"]) == (code, verdict)
    assert len(outcome.document["findings"]) == len(findings)


def test_it_says_what_is_wrong_and_what_to_do(doctor: Doctor) -> None:
    doctor.findings = FINE, OLD, BROKEN, OTHER_DOWN
    lines = [
        "h:1\n",
        "  ok      reachable    it answers\n",
        "  warning version      1.4.13\n",
        "                       → Take a newer one.\n",
        "  wrong   records      off \\x1b[31m\n",
        "                       → Start it without -C.\n",
        "h:2\n",
        "  wrong   reachable    it gives no usable answer: no\n",
        "                       → Look.\n",
        "1 ok, 1 warning, 2 wrong\n",
    ]
    assert doctor.run("doctor").out == "".join(lines)
    del lines[1]
    assert doctor.run("doctor", "--quiet").out == "".join(lines)
    assert doctor.run("doctor", "--json").document["findings"][1] == {
        "server": "h:1",
        "subject": "version",
        "verdict": "warning",
        "says": "1.4.13",
        "advice": "Take a newer one.",
    }


class _Careless(MemoryStore):
    def swap(self, lock_id: str, version: object, record: bytes, ttl_seconds: float) -> int | None:
        stored = self.read(lock_id)
        return (
            None if stored is None else super().swap(lock_id, stored.version, record, ttl_seconds)
        )

    def remove(self, lock_id: str, version: object) -> bool:
        stored = self.read(lock_id)
        return stored is not None and super().remove(lock_id, stored.version)


class _Forgetful(MemoryStore):
    def append(self, lock_id: str, line: bytes) -> None:
        return None


class _Lenient(MemoryStore):
    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        stored = self.read(lock_id)
        if stored is not None:
            return super().swap(lock_id, stored.version, record, ttl_seconds)
        return super().create(lock_id, record, ttl_seconds)


@pytest.mark.parametrize(
    ("kind", "faults"),
    [
        (MemoryStore, []),  # the negative control
        (
            _Careless,
            [
                "it took a change that was decided on an outdated version",
                "it removed a record by an outdated version",
            ],
        ),
        (_Forgetful, ["a line was not appended: no caller can join the queue"]),
        (_Lenient, ["it created a record that was there already: two can have one lock"]),
    ],
)
def test_a_store_that_does_not_keep_records(
    clock: ManualClock, kind: type[MemoryStore], faults: list[str]
) -> None:
    store = kind()
    outcome = Terminal(store, clock).run("doctor")
    assert outcome.code == bool(faults)
    assert all(fault in outcome.out for fault in faults)
    assert store.lock_ids() == [], "it leaves nothing behind"


class _Late(MemoryStore):
    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        return super().create(lock_id, record, 60)


def test_a_store_that_ends_leases_late(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("userlock.admin.health._MOST_LIFE", 0.2)
    out = Terminal(_Late(), clock).run("doctor").out
    assert "warning clock        a lease of 0.1 s had not ended after 0.2 s" in out


class _Early(MemoryStore):
    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        return super().create(lock_id, record, int(ttl_seconds))


def test_a_store_that_ends_leases_early(clock: ManualClock) -> None:
    outcome = Terminal(_Early(), clock).run("doctor")
    assert outcome.code == 1
    assert "wrong   clock        a lease of 0.1 s had ended after 0.0 s\n" in outcome.out


def test_a_store_in_memory_is_for_tests(clock: ManualClock) -> None:
    assert "within one process only" in Terminal(MemoryStore(), clock).run("doctor").out


@pytest.mark.parametrize(
    ("p50", "p99", "verdict"),
    [
        (0.0001, 0.001, Verdict.OK),
        (0.008, 0.01, Verdict.WARNING),
        (0.0001, 0.2, Verdict.WARNING),
    ],
)
def test_latency(p50: float, p99: float, verdict: Verdict) -> None:
    assert judge_latency([p50] * 50 + [p99] * 50, 0.3)[1] == verdict
