"""The situations of docs/idempotency-peers.md, the provider, and the judgement of outcomes."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
from typing import Any, cast

import pytest

from benchmarks.idempotency_peers.__main__ import table
from benchmarks.idempotency_peers.contestants import CONTESTANTS
from benchmarks.idempotency_peers.documented import DOCUMENTED
from benchmarks.idempotency_peers.provider import Provider
from benchmarks.idempotency_peers.situations import SITUATIONS, Course, Outcome, Situation
from benchmarks.idempotency_peers.stand import Answer, NotHeld, Stand
from tests.documents import ROOT

PAGE = (ROOT / "docs/idempotency-peers.md").read_text()


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    return [[each.strip() for each in line.strip("|").split("|")] for line in lines]


def test_the_page_has_the_situations_and_contestants_of_the_program() -> None:
    header, _, *first = rows()[: len(SITUATIONS) + 2]
    assert header[1:] == [each.name for each in CONTESTANTS]
    said = [row[0] for row in first]
    assert said == [f"{number}. {each.line}" for number, each in enumerate(SITUATIONS, 1)]
    assert all(len(row) == len(header) and all(row) for row in first)


def test_the_page_has_what_was_read() -> None:
    read = {name: dict(enumerate(said, 1)) for name, said in DOCUMENTED.items()}
    assert {len(said) for said in DOCUMENTED.values()} == {len(SITUATIONS)}
    assert "\n".join(table(read)) in PAGE


def test_the_page_has_the_options() -> None:
    for each in CONTESTANTS:
        assert each.options in PAGE.replace("\n", " "), each.name


# --- the provider -------------------------------------------------------------------------------


def charge(provider: Provider, key: str | None) -> int:
    return provider.charge({"reference": "a", "cents": 1, "key": key})[0]


def facts(provider: Provider) -> Any:
    return provider.facts({"reference": "a"})[1]


@pytest.mark.parametrize(("keys", "charges"), [(("k", "k"), 1), (("k", "l"), 2), ((None, None), 2)])
def test_a_key_is_charged_once(keys: tuple[str | None, str | None], charges: int) -> None:
    provider = Provider()
    assert [charge(provider, key) for key in keys] == [200, 200]
    assert (facts(provider)["calls"], len(facts(provider)["charges"])) == (2, charges)


@pytest.mark.parametrize(("mode", "status"), [("refuse", 402), ("fail", 503)])
def test_a_refusal_is_no_charge(mode: str, status: int) -> None:
    provider = Provider()
    provider.mode({"mode": mode})
    assert charge(provider, "k") == status
    provider.mode({"mode": "charge"})
    assert facts(provider) == {"calls": 1, "charges": []}
    assert charge(provider, "k") == 200, "the key does not remember a refusal"


def test_a_worker_is_held_at_its_point_alone() -> None:
    provider = Provider()
    provider.hold({"point": "charged"})
    provider.reach({"point": "before the charge", "pid": 1})
    gone_on = threading.Event()

    def work() -> None:
        provider.reach({"point": "charged", "pid": 2})
        gone_on.set()

    worker = threading.Thread(target=work)
    worker.start()
    assert provider.held({}) == (200, 2)
    provider.reach({"point": "charged", "pid": 3})  # one at a time
    assert not gone_on.is_set()
    provider.release({})
    worker.join(10)
    assert gone_on.is_set()


# --- the stand ----------------------------------------------------------------------------------


class Signals(list[tuple[int, int]]):
    """The signals that were sent."""


def stand_of(monkeypatch: pytest.MonkeyPatch, *, pid: int, answer: int) -> tuple[Stand, Signals]:
    """Return a stand whose worker is held as `pid`, and answers all the same."""
    made = Stand(0, (0, 0), [], volatile=None, reaps=False)
    monkeypatch.setattr(made, "_ask", lambda *_: pid)
    monkeypatch.setattr(made, "send", lambda *_: Answer(answer))
    signals = Signals()
    monkeypatch.setattr("os.kill", lambda *given: signals.append(given))
    return made, signals


@pytest.mark.parametrize("pid", [0, -1])
def test_no_signal_goes_to_many_processes(monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
    """A worker that never got to the point has no process id: 0 would be this process's group."""
    stand, signals = stand_of(monkeypatch, pid=pid, answer=201)
    with pytest.raises(NotHeld):
        stand.kill_at("a", "charged")
    with pytest.raises(NotHeld), stand.paused_at("a", "charged"):
        pass
    assert signals == []
    stand.close()


@pytest.mark.parametrize(("answer", "counts"), [(0, True), (201, False), (500, False)])
def test_a_worker_that_answers_was_not_killed(
    monkeypatch: pytest.MonkeyPatch, answer: int, counts: bool
) -> None:
    stand, signals = stand_of(monkeypatch, pid=12345, answer=answer)
    with contextlib.nullcontext() if counts else pytest.raises(NotHeld):
        assert stand.kill_at("a", "charged") == Answer(0)
    assert signals == [(12345, signal.SIGKILL)]
    stand.close()


def test_a_worker_that_answers_was_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    stand, signals = stand_of(monkeypatch, pid=12345, answer=201)
    with pytest.raises(NotHeld), stand.paused_at("a", "charged") as held:
        held.answer.result(10)
    assert signals == [(12345, signal.SIGSTOP), (12345, signal.SIGCONT)], "it goes on all the same"
    stand.close()


# --- the judgement ------------------------------------------------------------------------------

PAID, OTHER = Answer(201, {"order": 1}), Answer(201, {"order": 2})
RUNNING, DECLINED = Answer(409), Answer(402, {"error": "card declined"})


@dataclasses.dataclass
class Left:
    """A stand after a situation, and what is left there."""

    charges: int = 1
    paid: int = 1
    calls: int = 1

    def mend(self) -> None:
        pass

    def facts(self, _: str) -> tuple[int, list[str]]:
        return self.calls, ["charge"] * self.charges

    def orders(self, _: str) -> list[str]:
        return ["charge"] * self.paid


def judged(left: Left, *answers: Answer, charges: int = 1, status: int = 201) -> Outcome:
    course = Course(list(answers), list(answers))
    situation = Situation("", lambda *_: course, charges=charges, status=status)
    return situation.run(cast(Stand, left), "a")


def test_one_charge_one_order_one_answer_is_right() -> None:
    assert judged(Left(), PAID, PAID).words == "right"
    refused = judged(Left(charges=0, paid=0), DECLINED, DECLINED, charges=0, status=402)
    assert refused.words == "right"


@pytest.mark.parametrize("charges", range(4))
@pytest.mark.parametrize("paid", range(4))
def test_any_other_numbers_are_a_fault(charges: int, paid: int) -> None:
    assert (not judged(Left(charges, paid), PAID, PAID).faults) is (charges == paid == 1)


@pytest.mark.parametrize(
    ("answers", "fault"),
    [
        ((PAID, OTHER), "two answers"),
        ((RUNNING, RUNNING), "stays 409"),
        ((PAID, Answer(0)), "stays without answer"),
        ((PAID, PAID._replace(status=200)), "stays 200"),
    ],
)
def test_other_answers_are_a_fault(answers: tuple[Answer, ...], fault: str) -> None:
    assert judged(Left(), *answers).faults == [fault]


def test_a_card_is_asked_once() -> None:
    left = Left(charges=0, paid=0, calls=2)
    outcome = judged(left, DECLINED, DECLINED, charges=0, status=402)
    assert outcome.faults == ["card asked again"]
