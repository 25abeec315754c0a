"""One process that takes locks by commands, line by line, and reports the results.

    python -m tests.system.rivals URL NAME

    take LOCK SECONDS     take it nested in the held ones, waiting at most this long
    work SECONDS STEPS    a batch job: that many steps under the locks, yielding after each
    stubborn SECONDS STEPS  the same without yielding
    visit LOCK COUNT      take and release it that often, with pauses, like interactive requests
    release               release all locks
    blind                 detect no deadlocks from now on

Each answer is a JSON object in one line. A process that does not get a lock releases those that it
holds.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import time
from collections.abc import Sequence
from typing import Any
from unittest import mock

import userlock
from userlock.lock.lease import Priority
from userlock.lock.scope import LockScope


def main() -> None:
    url, name = sys.argv[1:]
    logging.getLogger("userlock").setLevel(logging.ERROR)
    service = userlock.LockService.from_url(url)
    service.holder("warm-up")  # connected
    say(ready=name)
    priority = Priority.BATCH if name.startswith("batch") else Priority.INTERACTIVE
    with userlock.scope(service, request=name, priority=priority):
        for line in sys.stdin:
            verb, *arguments = line.split()
            VERBS[verb](*arguments)


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def scope() -> LockScope:
    scope = userlock.current_scope()
    assert scope is not None
    return scope


def take(lock_id: str, seconds: str) -> None:
    try:
        userlock.acquire_lock(lock_id, wait_timeout=float(seconds), lock_timeout=30)
    except userlock.LockError as error:
        say(error=type(error).__name__, message=str(error))
        scope().close()
    else:
        say(got=lock_id)


def release() -> None:
    scope().close()
    say(released=True)


def work(seconds: str, steps: str, *, yielding: bool = True) -> None:
    (tenure,) = scope().held.values()
    longest, passed = 0.0, 0
    for _ in range(int(steps)):
        began = time.monotonic()
        time.sleep(float(seconds))  # the work
        longest = max(longest, time.monotonic() - began)
        if yielding:
            new = tenure.yield_to_waiters()
            passed += new is not tenure
            tenure = new
    say(longest_step=longest, passed=passed)


def stubborn(seconds: str, steps: str) -> None:
    work(seconds, steps, yielding=False)


def visit(lock_id: str, count: str) -> None:
    waits, errors = [], 0
    for _ in range(int(count)):
        time.sleep(random.uniform(0, 0.1))  # reads the result, and clicks
        began = time.monotonic()
        try:
            with userlock.global_lock(lock_id):
                waits.append(time.monotonic() - began)
                time.sleep(0.002)  # the work
        except userlock.LockTimeout:
            errors += 1
    say(waits=waits, errors=errors)


def blind() -> None:
    def nothing(*_: object) -> Sequence[userlock.Lease]:
        return ()

    mock.patch("userlock.lock.scope._Holding", nothing).start()
    say(blind=True)


VERBS: dict[str, Any] = {
    "take": take,
    "release": release,
    "work": work,
    "stubborn": stubborn,
    "visit": visit,
    "blind": blind,
}

if __name__ == "__main__":
    main()
