"""One process that takes locks by commands, line by line, and reports the results.

    python -m tests.system.rivals URL NAME

    take LOCK SECONDS     take it nested in the held ones, waiting at most this long
    release               release all locks
    blind                 detect no deadlocks from now on

Each answer is a JSON object in one line. A process that does not get a lock releases those that it
holds.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from typing import Any
from unittest import mock

import userlock
from userlock.lock.scope import LockScope


def main() -> None:
    url, name = sys.argv[1:]
    logging.getLogger("userlock").setLevel(logging.ERROR)
    service = userlock.LockService.from_url(url)
    service.holder("warm-up")  # connected
    say(ready=name)
    with userlock.scope(service, request=name):
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


def blind() -> None:
    def nothing(*_: object) -> Sequence[userlock.Lease]:
        return ()

    mock.patch("userlock.lock.scope._Holding", nothing).start()
    say(blind=True)


VERBS: dict[str, Any] = {
    "take": take,
    "release": release,
    "blind": blind,
}

if __name__ == "__main__":
    main()
