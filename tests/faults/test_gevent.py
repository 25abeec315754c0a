"""Greenlets of gevent on locks of real servers: counted exactly; a killed one leaves nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.faults.conftest import UrlOf
from tests.servers import lacking

#: gevent patches a whole process, before anything else is imported.
PROGRAM = """
from gevent import monkey; monkey.patch_all()
import json, sys
import gevent
import userlock
from userlock import LockService

service = LockService.from_url(sys.argv[1], outage="fail")
userlock.configure(service=service)
counts = [0] * 5

def count(number):
    before = counts[number]
    gevent.sleep(0.001)
    counts[number] = before + 1

def visit(number):
    if sys.argv[2] == "without":
        return count(number)
    with userlock.global_lock(f"learner-{number}", wait_timeout=50):
        count(number)

gevent.joinall([gevent.spawn(visit, number % 5) for number in range(100)], raise_error=True)

def hold():
    with userlock.global_lock("ann", wait_timeout=50):
        gevent.sleep(60)

def until(condition):
    with gevent.Timeout(30):
        while not condition():
            gevent.sleep(0.001)

holder, waiter = gevent.spawn(hold), None
until(lambda: service.holder("ann"))
waiter = gevent.spawn(hold)
until(lambda: service.waiters("ann"))
waiter.kill()
left = len(service.waiters("ann"))
holder.kill()
print(json.dumps([counts, left, service.store.read("ann") is None]))
"""


@pytest.mark.parametrize("kind", ["memcached", "redis"])
@pytest.mark.parametrize("locks", ["with", "without"])
def test_each_visit_counts_once(url_of: UrlOf, kind: str, locks: str) -> None:
    """With the negative control."""
    if subprocess.run([sys.executable, "-c", "import gevent"], check=False).returncode:
        lacking("gevent is needed: make")
    program = [sys.executable, "-c", PROGRAM, url_of(kind), locks]
    ran = subprocess.run(program, check=True, capture_output=True, timeout=120)
    counts, left, free = json.loads(ran.stdout)
    assert (counts == [20] * 5) == (locks == "with")
    assert (left, free) == (0, True)
