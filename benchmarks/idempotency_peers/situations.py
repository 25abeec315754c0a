"""The twelve situations, and what should come of each."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from benchmarks.idempotency_peers.stand import MOST_AT_ONCE, Answer, Stand

_LONG_SECONDS = 60.0
#: How long a second request is watched while the first one is held.
_WATCH_SECONDS = 1.0
#: How long answers are kept in the last situation, and how long it waits for them to go.
KEPT_BRIEFLY_SECONDS = 2
_GONE_SECONDS = 4.0


@dataclasses.dataclass
class Outcome:
    """The facts after a situation.

    Attributes:
        faults: deviations from the right outcome, in words; none if all is well.
        remark: how it was reached, where the contestants differ.
        calls: how often the provider was called.
        charges, orders: how many there are.
        statuses: of the answers, in order; 0 for a broken connection.
    """

    faults: list[str]
    remark: str
    calls: int
    charges: int
    orders: int
    statuses: list[int]

    @property
    def words(self) -> str:
        """Return the outcome in a few words; "right" if there is no fault."""
        said = ", ".join(self.faults) or "right"
        return f"{said} ({self.remark})" if self.remark else said


@dataclasses.dataclass
class Course:
    """The answers of a situation.

    Attributes:
        all: in order.
        last: those that must be equal.
        faults: found on the way.
    """

    all: list[Answer]
    last: list[Answer]
    faults: list[str] = dataclasses.field(default_factory=list)
    remark: str = ""


@dataclasses.dataclass(frozen=True)
class Situation:
    """One situation.

    Attributes:
        line: in the table.
        play: plays it with a reference of its own.
        charges: how many there should be, and as many orders.
        status: of the final answer.
        keeps_briefly: whether answers are kept for a short time only.
    """

    line: str
    play: Callable[[Stand, str], Course]
    charges: int = 1
    status: int = 201
    keeps_briefly: bool = False

    def run(self, stand: Stand, reference: str) -> Outcome:
        """Play it, and compare its outcome with the right one."""
        stand.mend()
        course = self.play(stand, reference)
        stand.mend()
        calls, charges = stand.facts(reference)
        orders = stand.orders(reference)
        faults = _counts(len(charges), len(orders), self.charges)
        if self.status == 402 and calls > 1:
            faults.append("card asked again")
        final = course.last[-1]
        if final.status != self.status:
            faults.append(f"stays {final.status or 'without answer'}")
        elif any(each != final for each in course.last):
            faults.append("two answers")
        return Outcome(
            faults=[*faults, *course.faults],
            remark=course.remark,
            calls=calls,
            charges=len(charges),
            orders=len(orders),
            statuses=[each.status for each in course.all],
        )


def _counts(charges: int, orders: int, right: int) -> list[str]:
    """Return the faults of these numbers of charges and orders."""
    faults = []
    if charges > right:
        faults.append(f"{charges} charges")
    if charges < right:
        faults.append("no charge")
    if orders < charges:
        faults.append("a charge without an order")
    if orders > right and charges <= right:
        faults.append(f"{orders} orders")
    return faults


def _sent_again(stand: Stand, reference: str) -> Course:
    first, again = stand.send(reference), stand.send(reference, 1)
    return Course([first, again], [first, again])


def _other_parameters(stand: Stand, reference: str) -> Course:
    first = stand.send(reference)
    other = stand.send(reference, 1, cents=9900)
    if other == first:
        return Course([first, other], [first], ["the first one's answer"])
    remark = f"{other.status}" if other.status != first.status else ""
    return Course([first, other], [first], [], remark)


def _while_it_runs(stand: Stand, reference: str) -> Course:
    held = stand.begin_and_hold(reference, "before the charge")
    second = stand.begin(reference, 1)
    deadline = time.monotonic() + _WATCH_SECONDS
    while not second.done() and time.monotonic() < deadline:
        time.sleep(0.05)
    waits = not second.done()
    stand.release()
    first, early = held.answer.result(_LONG_SECONDS), second.result(_LONG_SECONDS)
    later = early if early.is_final else stand.insist(reference)
    remark = "" if early.is_final else f"{early.status}"
    return Course([first, early, later], [first, later], [], "waits" if waits else remark)


def _all_at_once(stand: Stand, reference: str) -> Course:
    answers = stand.at_once(reference, MOST_AT_ONCE)
    last = [each for each in answers if each.is_final] or answers
    others = sorted({str(each.status) for each in answers if not each.is_final})
    return Course(answers, last, [], f"some {', '.join(others)}" if others else "all answered")


def _killed_at(point: str) -> Callable[[Stand, str], Course]:
    def play(stand: Stand, reference: str) -> Course:
        killed = stand.kill_at(reference, point)
        again, third = stand.insist(reference), stand.send(reference, 1)
        return Course([killed, again, third], [again, third])

    return play


def _paused(stand: Stand, reference: str) -> Course:
    with stand.paused_at(reference, "charged") as held:
        other = stand.insist(reference)
    woken = held.answer.result(_LONG_SECONDS)
    third = stand.send(reference, 1)
    answers = [other, woken, third]
    last = [each for each in answers if each.is_final] or answers
    return Course(answers, last, [], "" if other.is_final else f"{other.status} until it wakes")


def _declined(stand: Stand, reference: str) -> Course:
    stand.set_mode("refuse")
    try:
        first, again = stand.send(reference), stand.send(reference, 1)
    finally:
        stand.set_mode("charge")
    return Course([first, again], [first, again])


def _failed_for_now(stand: Stand, reference: str) -> Course:
    stand.set_mode("fail")
    try:
        first = stand.send(reference)
    finally:
        stand.set_mode("charge")
    again, third = stand.insist(reference), stand.send(reference, 1)
    return Course([first, again, third], [again, third])


def _store_restarted(stand: Stand, reference: str) -> Course:
    first = stand.send(reference)
    stand.restart_volatile()
    again = stand.insist(reference)
    return Course([first, again], [first, again])


def _unfinished_for_long(stand: Stand, reference: str) -> Course:
    killed = stand.kill_at(reference, "charged")
    time.sleep(_GONE_SECONDS)
    stand.mend()
    stand.reap()
    again, third = stand.insist(reference), stand.send(reference, 1)
    return Course([killed, again, third], [again, third])


SITUATIONS = (
    Situation("The same request again after success", _sent_again),
    Situation("The same key with other parameters", _other_parameters),
    Situation("The same key while the first request runs", _while_it_runs),
    Situation(f"{MOST_AT_ONCE} equal requests at once", _all_at_once),
    Situation("Worker killed before the charge", _killed_at("before the charge")),
    Situation("Worker killed after the charge, before it is recorded", _killed_at("charged")),
    Situation("Worker killed after the answer is stored, not sent", _killed_at("answered")),
    Situation("Worker paused beyond its lease or time-out, then wakes", _paused),
    Situation("Card declined, the same request again", _declined, charges=0, status=402),
    Situation("Provider fails for now, the same request again", _failed_for_now),
    Situation("Store in memory restarted empty after success", _store_restarted),
    Situation(
        "Unfinished for longer than answers are kept", _unfinished_for_long, keeps_briefly=True
    ),
)
