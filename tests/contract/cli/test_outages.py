"""Test servers that are killed, stopped or restarted, or that refuse commands."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pymemcache.client.base import Client

from tests.contract.cli.conftest import Scene
from tests.contract.cli.process import Cli
from tests.servers import Memcached, RedisServer

QUICK = [("holder", "ann"), ("watch", "--once"), ("doctor",)]
MORE = [("break", "ann", "--yes"), ("watch", "ann")]
COMMANDS = [*QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE)]


@pytest.fixture(scope="module")
def startup() -> float:
    """Measure the start of Python and its imports on this machine."""
    return Cli("memory://").run("--version").seconds


@pytest.fixture
def memcached_cli(own_memcached: Memcached) -> Cli:
    return Cli(own_memcached.url())


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_killed_memcached(
    own_memcached: Memcached, memcached_cli: Cli, arguments: tuple[str, ...]
) -> None:
    own_memcached.kill()
    code, out, err, _ = memcached_cli.run(*arguments)
    assert code == 3
    assert "Connection refused" in out + err
    assert "Errno" not in out + err
    if arguments != ("doctor",):
        assert out == ""
        assert err.count("\n") == 1
    found = memcached_cli.run(*arguments, "--json")
    assert found.code == 3
    assert found.document


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_stopped_memcached_answers_within_a_second(
    own_memcached: Memcached, memcached_cli: Cli, arguments: tuple[str, ...], startup: float
) -> None:
    with own_memcached.paused():
        outcome = memcached_cli.run(*arguments)
    assert outcome.code == 3
    # The machine may be busier now than when the start was measured.
    assert outcome.seconds < 2 * startup + 1


@pytest.mark.parametrize("arguments", QUICK)
def test_a_stopped_redis_answers_within_a_second(
    own_redis: RedisServer, arguments: tuple[str, ...], startup: float
) -> None:
    with own_redis.paused():
        outcome = Cli(own_redis.url).run(*arguments)
    assert outcome.code == 3
    assert outcome.seconds < 2 * startup + 1


def test_a_killed_redis(own_redis: RedisServer) -> None:
    own_redis.kill()
    cli = Cli(own_redis.url.replace("redis://", "redis://user:secret@"))
    for arguments in QUICK:
        code, out, err, _ = cli.run(*arguments)
        assert code == 3
        assert "secret" not in out + err


def test_datastore_without_a_server() -> None:
    env = {"DATASTORE_EMULATOR_HOST": "127.0.0.1:1", "GOOGLE_CLOUD_PROJECT": "try"}
    code, out, err, _ = Cli("datastore://", env).run("holder", "ann")
    assert (code, out) == (3, "")
    assert err.startswith("userlock holder: the store does not answer: datastore try/(default)")


def test_watch_goes_on_when_the_server_comes_back(
    own_memcached: Memcached, memcached_cli: Cli
) -> None:
    with memcached_cli.start("watch", "--json", "--interval", "0.1") as process:
        assert process.stdout is not None
        assert "locks" in json.loads(process.stdout.readline())
        own_memcached.kill()
        while "error" not in json.loads(process.stdout.readline()):
            pass
        own_memcached.start()
        while "locks" not in json.loads(process.stdout.readline()):
            pass


@pytest.fixture
def two(own_memcached: Memcached, memcached: Memcached) -> Iterator[Scene]:
    """Provide two servers, one of which may be killed."""
    servers = f"{own_memcached.address},{memcached.address}"
    scene = Scene(Cli(f"memcache://{servers}?prefix=cli{uuid.uuid4().hex[:8]}"))
    with contextlib.closing(scene.service):
        yield scene


def test_several_servers(two: Scene, own_memcached: Memcached) -> None:
    number_of_locks = 20  # one server has them all once in 500,000 runs
    for number in range(number_of_locks):
        two.hold(f"user{number}")
        two.wait(f"user{number}")
    assert two.cli.run("watch", "--once", "--json").document["held"] == number_of_locks
    asked = two.cli.run("doctor", "--json")
    assert asked.code == 0
    assert len({each["server"] for each in asked.document["findings"]}) == 2

    own_memcached.kill()
    shown = two.cli.run("watch", "--once", "--json")
    assert shown.code == 0
    assert shown.document["complete"] is False
    assert own_memcached.address in shown.document["note"]
    assert 0 < shown.document["held"] < number_of_locks
    asked = two.cli.run("doctor", "--json")
    assert asked.code == 1  # locks of the other server work
    assert "not complete" in two.cli.run("watch", "--once").out


def made(tmp_path: Path, *options: str) -> contextlib.closing[_Closable]:
    return contextlib.closing(_Closable(Memcached(tmp_path, *options)))


class _Closable:
    def __init__(self, server: Memcached) -> None:
        self.server = server

    def close(self) -> None:
        self.server.stop()


def test_a_memcached_without_cas(tmp_path: Path) -> None:
    with made(tmp_path, "-C") as made_so:
        outcome = Cli(made_so.server.url()).run("doctor", "--json")
    assert outcome.code == 1
    found = {each["subject"]: each for each in outcome.document["findings"]}
    assert found["cas"]["verdict"] == "wrong"
    assert found["cas"]["advice"] == "Start it without -C."
    assert found["records"]["verdict"] == "wrong"


def test_a_memcached_that_does_not_list_its_keys(tmp_path: Path) -> None:
    with made(tmp_path, "-X") as made_so:
        cli = Cli(made_so.server.url())
        code, out, err, _ = cli.run("watch")
        assert (code, out) == (2, "")
        assert "memcached was started with -X" in err
        scene = Scene(cli)
        scene.hold("ann")
        scene.wait("ann")
        scene.service.close()
        assert "1 contended" in cli.run("watch", "--once", "ann").out
        found = cli.run("doctor", "--json").document["findings"]
        assert {each["subject"]: each["verdict"] for each in found}["listing"] == "warning"


def test_a_redis_that_evicts(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl")
    try:
        outcome = Cli(server.url).run("doctor")
    finally:
        server.stop()
    assert outcome.code == 0
    assert "warning maxmemory    volatile-ttl: when it is full" in outcome.out
    assert "noeviction" in outcome.out


@pytest.mark.slow
def test_a_memcached_that_evicts_live_locks(tmp_path: Path) -> None:
    with made(tmp_path, "-m", "8") as made_so:
        server = made_so.server
        client = Client((server.address.split(":")[0], server.port))
        for begin in range(0, 120_000, 500):  # three times the capacity
            client.set_many({f"k{begin + number}": b"x" * 120 for number in range(500)})
        client.close()
        outcome = Cli(server.url()).run("doctor", "--json")
    assert outcome.code == 1
    found = {each["subject"]: each for each in outcome.document["findings"]}
    assert found["evictions"]["verdict"] == "wrong"
    assert found["evictions"]["facts"]["evictions_among_locks"] > 0
    assert found["memory"]["verdict"] == "warning"
