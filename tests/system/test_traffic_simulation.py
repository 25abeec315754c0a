"""The traffic simulation agrees with the same requests sent to a real memcached."""

from __future__ import annotations

import os
import socket

import pytest

from benchmarks.server import Memcached as MeasuredMemcached
from benchmarks.server import memcached as started
from tests.servers import real
from tools.traffic.check import SECONDS, USERS, differences
from tools.traffic.replay import RUSH, Summary, replay, simulate, trace
from tools.traffic.sizing import item_bytes
from userlock import LockService

SEED = 1


@pytest.mark.slow
def test_real_processes_wait_as_simulated_ones_do() -> None:
    real("memcached", "memcached")
    arrivals = trace(RUSH, USERS, seconds=SECONDS, seed=SEED)
    with started() as server:
        visits = replay(f"memcache://{server.address}?prefix=traffic", arrivals, seed=SEED)
        measured = Summary.of(visits, server.requests())
    assert measured.locks == sum(map(len, arrivals.values()))
    assert measured.waiting_share > 0.2, "too few requests contend for a comparison"
    assert differences(measured, simulate(RUSH, visits, seed=SEED)) == []
    # The negative control: a simulation with sections that are half as long again is detected.
    wrong = simulate(RUSH, visits, seed=SEED, section=lambda seconds: 1.5 * seconds)
    assert len(differences(measured, wrong)) >= 3


def test_memcached_takes_as_much_for_a_record_as_is_said() -> None:
    real("memcached", "memcached")
    request = "POST /answers"
    with started() as server:
        service = LockService.from_url(f"memcache://{server.address}?prefix=learn")
        lease = service.acquire("ann", request=request)
        chunk = _chunk_bytes(server)
        service.release(lease)
        service.close()
    process = f"{socket.gethostname()}/{os.getpid()}"
    assert item_bytes(lock_id="ann", process=process, request=request) == chunk


def _chunk_bytes(server: MeasuredMemcached) -> int:
    """Return the size of the one chunk in use."""
    with socket.create_connection(server.pair, timeout=5) as connection:
        connection.sendall(b"stats slabs\r\n")
        answer = b""
        while not answer.endswith(b"END\r\n"):
            answer += connection.recv(65536)
    facts = dict(line.split()[1:] for line in answer.decode().splitlines()[:-1])
    (used,) = (name for name, value in facts.items() if "used_chunks" in name and value != "0")
    return int(facts[used.replace("used_chunks", "chunk_size")])
