"""The ways to reach a memcached: TLS with a private authority, a socket in the file system."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sample_app.stack import ports
from sample_app.stack.children import Child
from tests.authority import Authority
from tests.servers import Memcached, real
from tests.waiting import wait_until
from userlock import LockService
from userlock.lock.store import LeaseStore, StoreUnavailable
from userlock.stores.registry import open_store
from userlock.testing import FenceContract, ForkContract, RaceContract, VerbContract


class Secured(Memcached):
    """A memcached that also listens with TLS.

    Args:
        folder: the folder of its files.
        options: additional options of TLS.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.authority = Authority(folder)
        self.client = self.authority.issue("client", "DNS:client")
        server = self.authority.issue("server", "DNS:localhost")
        self.tls_port = ports.any_free()
        tls = (
            f"ssl_chain_cert={server.certificate}",
            f"ssl_key={server.key}",
            f"ssl_ca_cert={self.authority.certificate}",
            *options,
        )
        super().__init__(folder, "-Z", "-o", ",".join(tls), "-l", f"127.0.0.1:{self.tls_port}")

    def _before_start(self, command: list[str]) -> None:
        # The port of the base class stays without TLS.
        command[command.index(ports.LOOPBACK)] = f"notls:{self.address}"

    def tls_url(self, host: str = "localhost", **options: object) -> str:
        options = {"prefix": uuid.uuid4().hex, "ca": self.authority.certificate} | options
        query = "&".join(f"{name}={value}" for name, value in options.items() if value)
        return f"memcaches://{host}:{self.tls_port}?{query}"


@contextlib.contextmanager
def _open_folder() -> Iterator[Path]:
    """Provide a folder that others may read: memcached does not run as root."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    with _open_folder() as folder:
        server = Secured(folder)
        yield server
        server.stop()


@pytest.fixture
def folder() -> Iterator[Path]:
    with _open_folder() as folder:
        yield folder


class TestOverTls(VerbContract, RaceContract, ForkContract, FenceContract):
    @pytest.fixture
    def store(self, secured: Secured) -> Iterator[LeaseStore]:
        with contextlib.closing(open_store(secured.tls_url())) as store:
            yield store

    def test_connections_are_used_again(self, secured: Secured) -> None:
        """TLS sends tickets after the handshake, which must not count as the end of one."""
        service = LockService.from_url(secured.tls_url())
        with (
            contextlib.closing(service),
            socket.create_connection((ports.LOOPBACK, secured.port)) as plain,
        ):
            service.release(service.acquire("ann"))
            before = _made(plain)
            for _ in range(20):
                service.release(service.acquire("ann"))
            assert _made(plain) == before


def _made(connection: socket.socket) -> int:
    """Return how many connections the server has accepted so far."""
    connection.sendall(b"stats\r\n")
    reply = b""
    while not reply.endswith(b"END\r\n"):
        reply += connection.recv(65536)
    (line,) = (each for each in reply.splitlines() if each.startswith(b"STAT total_connections "))
    return int(line.split()[-1])


class TestUnsafe:
    @pytest.mark.parametrize(
        "options",
        [{"ca": ""}, {"host": "127.0.0.1"}],
        ids=["an authority that is not trusted", "another's certificate"],
    )
    def test_it_is_refused(self, secured: Secured, options: dict[str, str]) -> None:
        store = open_store(secured.tls_url(**options))
        with pytest.raises(StoreUnavailable, match="certificate verify failed") as caught:
            store.create("ann", b"first", 60)
        assert not caught.value.sent

    def test_a_server_without_tls_is_refused(self, secured: Secured) -> None:
        url = secured.tls_url().replace(str(secured.tls_port), str(secured.port))
        with pytest.raises(StoreUnavailable) as caught:
            open_store(url).create("ann", b"first", 60)
        assert not caught.value.sent


def test_a_server_that_asks_for_a_certificate(folder: Path) -> None:
    server = Secured(folder, "ssl_verify_mode=2")
    try:
        with pytest.raises(StoreUnavailable):
            open_store(server.tls_url()).create("ann", b"first", 60)
        url = server.tls_url(cert=server.client.certificate, key=server.client.key)
        with contextlib.closing(open_store(url)) as store:
            assert store.create("ann", b"first", 60) is not None
    finally:
        server.stop()


def test_a_restart_of_the_server(folder: Path) -> None:
    server = Secured(folder)
    try:
        with contextlib.closing(open_store(server.tls_url())) as store:
            version = store.create("ann", b"first", 60)
            server.restart()
            assert store.read("ann") is None
            assert store.create("ann", b"other", 60) is not None
            assert not store.remove("ann", version)
    finally:
        server.stop()


def _on_a_socket(path: Path) -> Child:
    return Child(
        "memcached",
        [real("memcached", "memcached"), "-u", "root", "-s", str(path)],
        answers=path.exists,
        log_file=path.with_suffix(".log"),
    )


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Provide the path of a memcached's socket."""
    path = tmp_path_factory.mktemp("socket") / "memcached.sock"
    child = _on_a_socket(path)
    child.start()
    child.wait_until_it_answers(10)
    yield path
    child.stop(grace_seconds=0)


class TestASocket(VerbContract, RaceContract, ForkContract, FenceContract):
    @pytest.fixture
    def store(self, listening: Path) -> Iterator[LeaseStore]:
        url = f"memcache://{listening}?prefix={uuid.uuid4().hex}"
        with contextlib.closing(open_store(url)) as store:
            yield store

    def test_one_that_is_not_there(self) -> None:
        store = open_store("memcache:///nonexistent/memcached.sock")
        with pytest.raises(StoreUnavailable, match=r"/nonexistent/memcached\.sock") as caught:
            store.read("ann")
        assert not caught.value.sent

    def test_one_that_disappears(self, tmp_path: Path) -> None:
        path = tmp_path / "memcached.sock"
        child = _on_a_socket(path)
        child.start()
        child.wait_until_it_answers(10)
        with contextlib.closing(open_store(f"memcache://{path}")) as store:
            assert store.create("ann", b"first", 60) is not None
            child.kill()
            with pytest.raises(StoreUnavailable):
                store.read("ann")
            path.unlink()
            child.start()
            wait_until(path.exists)
            assert store.create("ann", b"first", 60) is not None
        child.stop(grace_seconds=0)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("memcaches:///run/memcached.sock", "has no TLS"),
        ("memcache:///run/a.sock,/run/b.sock", "names several sockets"),
        ("memcaches://host?key=/k.pem", "is the key of cert="),
        ("memcaches://host?ca=/nonexistent.pem", "ca= must be a readable file"),
        ("memcache://host?ca=/nonexistent.pem", "unknown option ca"),
        ("memcache://host/run/memcached.sock", "it must look like memcache://HOST:PORT"),
        ("memcaches://host?cert=/nonexistent.pem", "cert= and key= must be readable files"),
    ],
)
def test_malformed(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        open_store(url)
