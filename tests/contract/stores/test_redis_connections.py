"""The ways to reach a Redis: clients of any make, TLS, sockets in the file system, Sentinel."""

from __future__ import annotations

import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from sample_app.stack import ports
from sample_app.stack.children import Child
from tests.servers import RedisServer, real
from userlock.lock.store import StoreUnavailable
from userlock.stores.redis import RedisStore


class Secured(RedisServer):
    """A Redis that also listens with TLS, and on a socket in the file system."""

    def __init__(self, folder: Path) -> None:
        self.certificate = folder / "certificate.pem"
        self.socket = folder / "redis.sock"
        self.tls_port = ports.any_free()
        key = folder / "key.pem"
        subprocess.run(
            [
                *(real("openssl", "openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes"),
                *("-keyout", str(key), "-out", str(self.certificate), "-days", "2"),
                *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            ],
            check=True,
            capture_output=True,
        )
        super().__init__(
            folder,
            *("--tls-port", str(self.tls_port), "--tls-auth-clients", "no"),
            *("--tls-cert-file", str(self.certificate), "--tls-key-file", str(key)),
            *("--tls-ca-cert-file", str(self.certificate), "--unixsocket", str(self.socket)),
        )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    server = Secured(tmp_path_factory.mktemp("secured-redis"))
    yield server
    server.stop()


def use(store: RedisStore) -> None:
    """Call each verb once, on a connection that is used again."""
    version = store.create("ann", b"first", 60)
    assert version is not None
    appended = store.append("ann", b"\nline")
    assert appended is not None
    assert appended.record == b"first\nline"
    assert store.swap("ann", version, b"refused", 60) is None
    version = store.swap("ann", appended.version, b"next", 60)
    for hurry in (False, True):
        stored = store.read("ann", hurry=hurry)
        assert stored is not None
        assert stored.record == b"next"
    assert store.remove("ann", version)
    store.close()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"decode_responses": True},
        {"protocol": 3},
        {"protocol": 2, "client_name": "app"},
        {"health_check_interval": 1},
        {"max_connections": 1},
    ],
    ids=lambda options: ", ".join(options) or "defaults",
)
def test_any_client_will_do(redis_server: RedisServer, options: dict[str, Any]) -> None:
    client = redis.Redis(port=redis_server.port, db=7, **options)
    use(RedisStore(client, prefix=uuid.uuid4().hex))
    client.close()


def test_a_clients_own_retries_are_not_used() -> None:
    """They might wait, and send a command again that was carried out."""
    client = redis.Redis(port=1, retry=Retry(ConstantBackoff(10), 3))
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match="refused"):
        RedisStore(client).create("ann", b"first", 60)
    assert time.monotonic() - started < 5


def test_many_threads_share_a_few_connections(own_redis: RedisServer) -> None:
    client = redis.Redis(port=own_redis.port)

    def made() -> int:
        info: Any = client.info("stats")
        return int(info["total_connections_received"])

    before = made()
    store = RedisStore(client)
    begin = threading.Barrier(64)

    def use_often(number: int) -> None:
        begin.wait(10)
        for _ in range(20):
            version = store.create(f"learner-{number}", b"first", 60)
            assert version is not None
            assert store.remove(f"learner-{number}", version)

    with ThreadPoolExecutor(64) as threads:
        list(threads.map(use_often, range(64)))
    assert made() - before <= 32
    store.close()
    client.close()


def test_a_failed_connection_takes_no_place() -> None:
    """Even while its error is kept."""
    errors = []
    for port, store in [(1, RedisStore(redis.Redis(port=1)))] * 33:
        with pytest.raises(StoreUnavailable, match=f":{port}.*refused") as caught:
            store.create("ann", b"first", 60)
        errors.append(caught)


def test_over_tls(secured: Secured) -> None:
    use(
        RedisStore.from_url(
            f"rediss://localhost:{secured.tls_port}?ssl_ca_certs={secured.certificate}"
            "&socket_connect_timeout=2&socket_timeout=2"
        )
    )


@pytest.mark.parametrize(
    "server",
    [
        lambda secured: f"rediss://localhost:{secured.tls_port}?",
        lambda secured: (
            f"rediss://127.0.0.1:{secured.tls_port}"
            f"?ssl_ca_certs={secured.certificate}&ssl_check_hostname=true&"
        ),
        lambda secured: f"rediss://localhost:{secured.port}?ssl_ca_certs={secured.certificate}&",
    ],
    ids=["unknown certificate", "another's certificate", "no TLS"],
)
def test_an_unsafe_connection_is_refused(
    secured: Secured, server: Callable[[Secured], str]
) -> None:
    store = RedisStore.from_url(f"{server(secured)}socket_connect_timeout=2&socket_timeout=2")
    with pytest.raises(StoreUnavailable) as caught:
        store.create("ann", b"first", 60)
    assert not caught.value.sent


def test_a_socket_in_the_file_system(secured: Secured) -> None:
    client = redis.Redis(unix_socket_path=str(secured.socket))
    use(RedisStore(client))
    missing = RedisStore(redis.Redis(unix_socket_path="/nonexistent/redis.sock"))
    with pytest.raises(StoreUnavailable, match=r"/nonexistent/redis\.sock") as caught:
        missing.read("ann")
    assert not caught.value.sent


def test_the_master_that_sentinel_names(redis_server: RedisServer, tmp_path: Path) -> None:
    port = ports.any_free()
    configuration = tmp_path / "sentinel.conf"
    configuration.write_text(
        f"port {port}\nbind {ports.LOOPBACK}\ndir {tmp_path}\n"
        f"sentinel monitor app {ports.LOOPBACK} {redis_server.port} 1\n"
    )
    sentinels = Sentinel([(ports.LOOPBACK, port)], socket_timeout=2)

    def answers() -> bool:
        try:
            return bool(sentinels.discover_master("app"))
        except redis.RedisError:
            return False

    child = Child(
        "sentinel",
        [real("redis-server", "redis-server"), str(configuration), "--sentinel"],
        answers=answers,
        log_file=tmp_path / "sentinel.log",
    )
    child.start()
    try:
        child.wait_until_it_answers(10)
        use(RedisStore(sentinels.master_for("app", socket_timeout=2), prefix="sentinel"))
        stranger = RedisStore(sentinels.master_for("another", socket_timeout=2))
        with pytest.raises(StoreUnavailable, match="another") as caught:
            stranger.read("ann")
        assert not caught.value.sent
    finally:
        for sentinel in sentinels.sentinels:
            sentinel.close()
        child.stop()
