"""Test servers that are killed, stopped or restarted, or that refuse commands."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.cli.conftest import Scene
from tests.contract.cli.process import Cli
from tests.servers import Memcached, RedisServer

COMMANDS = [("holder", "ann"), ("locks",), ("break", "ann", "--yes"), ("doctor",)]


@pytest.fixture(params=["memcached", "redis"])
def server(request: pytest.FixtureRequest) -> Memcached | RedisServer:
    found: Memcached | RedisServer = request.getfixturevalue(f"own_{request.param}")
    return found


def cli_of(server: Memcached | RedisServer) -> Cli:
    if isinstance(server, Memcached):
        return Cli(server.url())
    return Cli(server.url.replace("redis://", "redis://user:secret@"))


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_killed_server(server: Memcached | RedisServer, arguments: tuple[str, ...]) -> None:
    server.kill()
    cli = cli_of(server)
    code, out, err = cli.run(*arguments)
    assert code == 3
    assert "Connection refused" in out + err
    assert not {word for word in ("Errno", "secret") if word in out + err}
    if arguments != ("doctor",):
        assert (out, err.count("\n")) == ("", 1)
    found = cli.run(*arguments, "--json")
    assert (found.code, bool(found.document)) == (3, True)


@pytest.mark.parametrize("arguments", [COMMANDS[0], COMMANDS[1], COMMANDS[3]], ids=" ".join)
def test_a_server_that_hangs(server: Memcached | RedisServer, arguments: tuple[str, ...]) -> None:
    url = server.url() if isinstance(server, Memcached) else server.url
    with server.paused():
        assert Cli(url).run(*arguments).code == 3


def test_datastore_without_a_server() -> None:
    env = {"DATASTORE_EMULATOR_HOST": "127.0.0.1:1", "GOOGLE_CLOUD_PROJECT": "try"}
    code, out, err = Cli("datastore://", env).run("holder", "ann")
    assert (code, out) == (3, "")
    assert err.startswith("userlock holder: the store does not answer: datastore try/(default)")
    outcome = Cli("", env).run("doctor", "--datastore", "--json")
    (finding,) = outcome.document["findings"]
    assert (outcome.code, finding["verdict"], finding["subject"]) == (3, "wrong", "reachable")


def test_follow_goes_on_when_the_server_comes_back(own_memcached: Memcached) -> None:
    cli = Cli(own_memcached.url())
    with cli.start("locks", "--follow", "--json", "--interval", "0.1") as process:
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
    servers = f"{own_memcached.address},{memcached.address}"
    scene = Scene(Cli(f"memcache://{servers}?prefix=cli{uuid.uuid4().hex[:8]}"))
    with contextlib.closing(scene.service):
        yield scene


def test_several_servers(two: Scene, own_memcached: Memcached) -> None:
    number_of_locks = 20  # one server has them all once in 500,000 runs
    for number in range(number_of_locks):
        two.hold(f"user{number}")
    assert two.cli.run("locks", "--json").document["held"] == number_of_locks
    asked = two.cli.run("doctor", "--json")
    assert asked.code == 0
    assert len({each["server"] for each in asked.document["findings"]}) == 2

    own_memcached.kill()
    shown = two.cli.run("locks", "--json")
    assert (shown.code, shown.document["complete"]) == (0, False)
    assert own_memcached.address in shown.document["note"]
    assert 0 < shown.document["held"] < number_of_locks
    assert two.cli.run("doctor").code == 1  # locks of the other server work


@contextlib.contextmanager
def memcached_with(tmp_path: Path, *options: str) -> Iterator[Memcached]:
    server = Memcached(tmp_path, *options)
    try:
        yield server
    finally:
        server.stop()


def test_a_memcached_without_cas(tmp_path: Path) -> None:
    with memcached_with(tmp_path, "-C") as server:
        outcome = Cli(server.url()).run("doctor", "--json")
    assert outcome.code == 1
    found = {each["subject"]: each for each in outcome.document["findings"]}
    assert found["records"]["verdict"] == "wrong"


def test_a_memcached_that_does_not_list_its_keys(tmp_path: Path) -> None:
    with memcached_with(tmp_path, "-X") as server:
        cli = Cli(server.url())
        code, out, err = cli.run("locks")
        assert (code, out) == (2, "")
        assert "does not list its keys: it says b'ERROR metadump not allowed'" in err
        scene = Scene(cli)
        scene.hold("ann")
        scene.wait("ann")
        scene.service.close()
        assert "1 contended" in cli.run("locks", "ann").out


def test_a_redis_that_evicts(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl")
    try:
        outcome = Cli(server.url).run("doctor")
    finally:
        server.stop()
    assert outcome.code == 0
    assert "warning evictions    none; volatile-ttl: when it is full" in outcome.out
    assert "noeviction" in outcome.out
