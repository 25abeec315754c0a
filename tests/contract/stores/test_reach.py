"""The ways to a server: TLS with a private authority, passwords, sockets, Sentinel, any client."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import certifi
import google.auth
import google.auth.exceptions
import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.credentials import CredentialProvider
from redis.retry import Retry

from sample_app.stack import ports
from sample_app.stack.children import Child
from tests.authority import Authority
from tests.contract.stores.verbs import use
from tests.servers import Memcached, RedisServer, real, redis_store
from tests.unit.stores.test_google_tokens import Google
from tests.waiting import wait_until
from userlock import LockService, LockServiceUnavailable
from userlock.lock.store import LeaseStore, StoreUnavailable
from userlock.stores import MemcacheStore
from userlock.stores.redis import RedisStore
from userlock.stores.redis.url import parse
from userlock.stores.urls import open_store
from userlock.testing import WakeContract
from userlock.waits import run

#: A busy machine is no outage.
PATIENT = {"socket_connect_timeout": 5, "socket_timeout": 5}


class Secured(Memcached):
    scheme = "memcaches"

    def __init__(self, folder: Path, *options: str) -> None:
        self.authority = Authority(folder)
        certificate, key = self.authority.issue("localhost")
        self.tls_port = ports.any_free()
        tls = (
            *(f"ssl_chain_cert={certificate}", f"ssl_key={key}"),
            *(f"ssl_ca_cert={self.authority.certificate}", *options),
        )
        super().__init__(folder, "-Z", "-o", ",".join(tls), "-l", f"127.0.0.1:{self.tls_port}")

    def _before_start(self, command: list[str]) -> None:
        # The port of the base class stays without TLS.
        command[command.index(ports.LOOPBACK)] = f"notls:{self.address}"

    def tls_url(self, **options: object) -> str:
        return url_of(self, {"ca": self.authority.certificate, **options})


class SecuredRedis(RedisServer):
    scheme = "rediss"

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        certificate, key = self.authority.issue("localhost")
        self.socket = folder / "redis.sock"
        self.tls_port = ports.any_free()
        super().__init__(
            folder,
            *("--tls-port", str(self.tls_port), "--tls-auth-clients", "no"),
            *("--tls-cert-file", str(certificate), "--tls-key-file", str(key)),
            *("--tls-ca-cert-file", str(self.authority.certificate)),
            *("--unixsocket", str(self.socket)),
        )

    def set_password(self, password: str) -> None:
        with contextlib.closing(redis.Redis(port=self.port)) as client:
            rights = ("on", "resetpass", f">{password}", "~*", "&*", "+@all")
            client.execute_command("ACL", "SETUSER", "app", *rights)
            client.execute_command("CLIENT", "KILL", "USER", "app")

    def tls_url(self, user: str = "", **options: object) -> str:
        options = {"ssl_ca_certs": self.authority.certificate, **PATIENT, **options}
        return url_of(self, options, user)


def url_of(server: Secured | SecuredRedis, options: dict[str, Any], user: str = "") -> str:
    given = {"host": "localhost", "prefix": uuid.uuid4().hex, "scheme": server.scheme, **options}
    host, scheme = given.pop("host"), given.pop("scheme")
    query = "&".join(f"{name}={value}" for name, value in given.items() if value)
    return f"{scheme}://{user}{host}:{server.tls_port}?{query}"


@contextlib.contextmanager
def _secured(*options: str) -> Iterator[Secured]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # memcached does not run as root
        server = Secured(Path(folder), *options)
        yield server
        server.stop()


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    with _secured() as server:
        yield server


@pytest.fixture(scope="module")
def redis_over_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredRedis]:
    server = SecuredRedis(tmp_path_factory.mktemp("secured-redis"))
    yield server
    server.stop()


@pytest.fixture
def managed(redis_over_tls: SecuredRedis) -> SecuredRedis:
    redis_over_tls.set_password("first")
    return redis_over_tls


def _memcached_socket(path: Path) -> Child:
    return Child(
        "memcached",
        [real("memcached", "memcached"), "-u", "root", "-s", str(path)],
        answers=path.exists,
        log_file=path.with_suffix(".log"),
    )


@contextlib.contextmanager
def _running(child: Child) -> Iterator[Child]:
    child.start()
    try:
        child.wait_until_it_answers(10)
        yield child
    finally:
        child.stop(grace_seconds=0)


# --- each way -----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["meta", "text"])
def test_memcached_over_tls(secured: Secured, protocol: str) -> None:
    with contextlib.closing(open_store(secured.tls_url(protocol=protocol))) as store:
        use(store)


def test_connections_over_tls_are_used_again(secured: Secured) -> None:
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
    connection.sendall(b"stats\r\n")
    reply = b""
    while not reply.endswith(b"END\r\n"):
        reply += connection.recv(65536)
    (line,) = (each for each in reply.splitlines() if each.startswith(b"STAT total_connections "))
    return int(line.split()[-1])


def test_a_memcached_that_asks_for_a_certificate() -> None:
    with _secured("ssl_verify_mode=2") as server:
        with pytest.raises(StoreUnavailable):
            open_store(server.tls_url()).create("ann", b"first", 60)
        certificate, key = server.authority.issue("client")
        with contextlib.closing(open_store(server.tls_url(cert=certificate, key=key))) as store:
            use(store)


def test_a_memcached_on_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "memcached.sock"
    with (
        _running(_memcached_socket(path)) as child,
        contextlib.closing(MemcacheStore(str(path), connect_timeout=5, timeout=5)) as store,
    ):
        use(store)
        child.kill()
        with pytest.raises(StoreUnavailable):
            store.read("ann")
        path.unlink()
        child.start()
        wait_until(path.exists)
        assert store.create("ann", b"first", 60) is not None


class TestRedisOverTlsWithAPassword(WakeContract):
    @pytest.fixture
    def store(self, managed: SecuredRedis) -> Iterator[LeaseStore]:
        url = managed.tls_url("app:first@", scheme="valkeys")
        with contextlib.closing(open_store(url)) as store:
            yield store

    def test_each_verb(self, store: LeaseStore) -> None:
        use(store)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"decode_responses": True},
        {"protocol": 3},
        {"health_check_interval": 1},
        {"max_connections": 1},
    ],
    ids=lambda options: ", ".join(options) or "defaults",
)
def test_any_client_of_redis_will_do(redis_server: RedisServer, options: dict[str, Any]) -> None:
    client = redis.Redis(port=redis_server.port, db=7, **options)
    with contextlib.closing(client), contextlib.closing(_patient(client)) as store:
        use(store)


def _patient(client: Any) -> RedisStore:
    return RedisStore(client, prefix=uuid.uuid4().hex, connect_timeout=5, timeout=5)


def test_a_redis_on_a_socket(redis_over_tls: SecuredRedis) -> None:
    use(_patient(redis.Redis(unix_socket_path=str(redis_over_tls.socket))))


# --- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["secured", "redis_over_tls"])
@pytest.mark.parametrize("unsafe", ["untrusted authority", "another's certificate", "no TLS"])
def test_an_unsafe_server_is_refused(
    request: pytest.FixtureRequest, server: str, unsafe: str
) -> None:
    there: Secured | SecuredRedis = request.getfixturevalue(server)
    options: dict[str, Any] = {}
    if unsafe == "untrusted authority":
        options = {"ca" if server == "secured" else "ssl_ca_certs": ""}
    elif unsafe == "another's certificate":
        options = {"host": "127.0.0.1"}
    url = there.tls_url(**options)
    if unsafe == "no TLS":  # a plain Redis says nothing
        url = url.replace("socket_timeout=5", "socket_timeout=0.2")
        url = url.replace("socket_connect_timeout=5", "socket_connect_timeout=0.2")
        url = url.replace(str(there.tls_port), str(there.port))
    with pytest.raises(StoreUnavailable, match=None if unsafe == "no TLS" else "verify") as caught:
        open_store(url).create("ann", b"first", 60)
    assert not caught.value.sent


@pytest.mark.parametrize(
    ("url", "checked"),
    [
        ("rediss://host", True),
        ("valkeys://host?ssl_cert_reqs=optional", True),
        ("rediss://host?ssl_check_hostname=false", False),
        (
            f"rediss://host?credentials=google&ssl_check_hostname=f&ssl_ca_certs={certifi.where()}",
            False,
        ),
        ("rediss://host?credentials=google", True),
        ("rediss://host?ssl_cert_reqs=none", False),
        ("redis://host", False),
    ],
)
def test_the_name_is_checked_whatever_the_client_s_default(url: str, checked: bool) -> None:
    """redis-py 5 would check none."""
    assert ("ssl_check_hostname=true" in parse(urlsplit(url)).client_url) is checked


@pytest.mark.parametrize("known", [True, False], ids=["its authority", "another authority"])
def test_a_certificate_without_the_address(
    redis_over_tls: SecuredRedis, tmp_path: Path, known: bool
) -> None:
    """`ssl_check_hostname=false` leaves the check of the authority."""
    authority = redis_over_tls.authority if known else Authority(tmp_path)
    url = redis_over_tls.tls_url(
        host="127.0.0.1", ssl_check_hostname="false", ssl_ca_certs=authority.certificate
    )
    with contextlib.closing(redis_store(url)) as store:
        if known:
            assert store.create("by-address", b"first", 60) is not None
            return
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            store.create("by-address", b"first", 60)


@pytest.mark.parametrize(
    "store",
    [
        open_store("memcache:///nonexistent/a.sock"),
        RedisStore(redis.Redis(unix_socket_path="/nonexistent/a.sock")),
    ],
)
def test_a_socket_that_is_not_there(store: LeaseStore) -> None:
    with pytest.raises(StoreUnavailable, match=r"/nonexistent/a\.sock") as caught:
        store.read("ann")
    assert not caught.value.sent


def test_a_clients_own_retries_are_not_used() -> None:
    """They might wait, and send a command again that was carried out."""
    client = redis.Redis(port=1, retry=Retry(ConstantBackoff(10), 3))
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match="refused"):
        RedisStore(client).create("ann", b"first", 60)
    assert time.monotonic() - started < 10


# --- passwords that change ----------------------------------------------------------------------


class Provider(CredentialProvider):
    def __init__(self) -> None:
        self.password = "first"
        self.asked = 0

    def get_credentials(self) -> tuple[str, str]:
        self.asked += 1
        return "app", self.password


#: Named in URLs.
provider = Provider()


class TestAProvider:
    @pytest.fixture(params=["passed in", "named in the URL"])
    def store(self, request: pytest.FixtureRequest, managed: SecuredRedis) -> Iterator[RedisStore]:
        provider.password, provider.asked = "first", 0
        if request.param == "passed in":
            url = managed.tls_url().replace("prefix=", "client_name=")
            client = redis.Redis.from_url(url, credential_provider=provider)
            store = RedisStore(client, connect_timeout=5, timeout=5)
        else:
            store = redis_store(managed.tls_url(credentials=f"{__name__}:provider"))
        with contextlib.closing(store):
            yield store

    def test_its_password_may_change(self, store: RedisStore, managed: SecuredRedis) -> None:
        assert store.create(lock_id := uuid.uuid4().hex, b"first", 60) is not None
        assert provider.asked == 1
        managed.set_password("second")
        provider.password = "second"
        assert store.read(lock_id) is not None
        assert store.create(uuid.uuid4().hex, b"first", 60) is not None
        assert provider.asked == 2

    def test_waiters_are_woken(self, store: RedisStore) -> None:
        assert store.wake_ups is not None
        run(store.wake_ups.begin, "ann", "token", SimpleNamespace())  # type: ignore[arg-type]
        assert store.wake_ups.come


@pytest.mark.parametrize("how", ["in the URL", "by a provider"])
def test_a_wrong_password_is_refused_and_not_shown(managed: SecuredRedis, how: str) -> None:
    managed.set_password("second")
    provider.password = "s3cret"
    url = (
        managed.tls_url("app:s3cret@")
        if how == "in the URL"
        else managed.tls_url(credentials=f"{__name__}:provider")
    )
    with pytest.raises(StoreUnavailable, match=r"WRONGPASS|invalid username") as caught:
        redis_store(url).create("ann", b"first", 60)
    assert not caught.value.sent
    assert "s3cret" not in caught.value.reason


def test_a_provider_that_fails(managed: SecuredRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Provider) -> tuple[str, str]:
        raise RuntimeError("the secret is s3cret")

    monkeypatch.setattr(Provider, "get_credentials", fail)
    store = redis_store(managed.tls_url(credentials=f"{__name__}:provider"))
    with pytest.raises(StoreUnavailable, match=r"provider failed .RuntimeError.") as caught:
        store.create("ann", b"first", 60)
    assert not caught.value.sent
    assert "s3cret" not in caught.value.reason


def test_a_provider_that_hangs_is_not_waited_for(
    managed: SecuredRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is there for a later caller."""
    answer = threading.Event()

    def hang(self: Provider) -> tuple[str, str]:
        answer.wait(20)
        return "app", "first"

    monkeypatch.setattr(Provider, "get_credentials", hang)
    monkeypatch.setattr("userlock.stores.redis.connections._CREDENTIALS_TIMEOUT", 0.1)
    store = redis_store(managed.tls_url(credentials=f"{__name__}:provider"))
    started = time.monotonic()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"the credential provider takes over 0\.1 s"):
            store.create("ann", b"first", 60)
    assert time.monotonic() - started < 10
    answer.set()
    wait_until(lambda: _answers(store))
    store.close()


def _answers(store: LeaseStore) -> bool:
    with contextlib.suppress(StoreUnavailable):
        store.read("ann")
        return True
    return False


def test_a_token_of_google_as_password(
    managed: SecuredRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the environment's account, as the URL says; or of none."""
    account = Google()
    monkeypatch.setattr(google.auth, "default", lambda scopes: (account, "project"))
    with contextlib.closing(redis.Redis(port=managed.port)) as client:
        client.execute_command("CONFIG", "SET", "requirepass", "token-1")
    try:
        with contextlib.closing(redis_store(managed.tls_url(credentials="google"))) as store:
            assert store.create(uuid.uuid4().hex, b"first", 60) is not None
    finally:
        with contextlib.closing(redis.Redis(port=managed.port, password="token-1")) as client:
            client.execute_command("CONFIG", "SET", "requirepass", "")

    def nobody(scopes: object) -> None:
        raise google.auth.exceptions.DefaultCredentialsError("none here")

    monkeypatch.setattr(google.auth, "default", nobody)
    service = LockService.from_url(managed.tls_url(credentials="google"), outage="fail")
    with pytest.raises(LockServiceUnavailable, match="DefaultCredentialsError"):
        service.acquire("ann")


# --- clusters -----------------------------------------------------------------------------------


def test_a_clusters_client_is_refused() -> None:
    with pytest.raises(TypeError, match=r"redis\+cluster://"):
        RedisStore(SimpleNamespace())


def test_a_node_of_a_cluster_says_so(tmp_path: Path) -> None:
    """It has no slots yet: each key is another node's."""
    bus = str(ports.any_free())
    server = RedisServer(tmp_path, "--cluster-enabled", "yes", "--cluster-port", bus)
    with (
        contextlib.closing(redis_store(server.url)) as store,
        pytest.raises(StoreUnavailable, match=r"one node of a cluster.*redis\+cluster://"),
    ):
        store.create("ann", b"first", 60)
    server.stop()
