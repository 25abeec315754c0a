"""Redis as managed servers offer it: TLS with a private authority, passwords that change; clusters
are refused."""

from __future__ import annotations

import contextlib
import datetime
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import google.auth
import google.auth.exceptions
import pytest
import redis
from redis.credentials import CredentialProvider

import userlock
from sample_app.stack import ports
from tests.authority import Authority
from tests.servers import RedisServer
from tests.waiting import wait_until
from userlock import LockService, LockServiceUnavailable
from userlock.admin.diagnostics import examine
from userlock.admin.findings import Verdict
from userlock.lock.store import StoreUnavailable
from userlock.stores.redis import RedisStore
from userlock.stores.redis.google_tokens import GoogleTokens
from userlock.stores.registry import open_store
from userlock.testing import FenceContract, RaceContract, VerbContract, WakeContract

NOW = datetime.datetime(2026, 1, 2, 10, tzinfo=datetime.UTC)


class Managed(RedisServer):
    """A Redis with TLS only for clients that have a password.

    Args:
        folder: the folder of its files.
        password: the first password of the user "default".
    """

    def __init__(self, folder: Path, password: str) -> None:
        self.authority = Authority(folder)
        self.tls_port = ports.any_free()
        self._password: str | None = None
        certificate = self.authority.issue("server", "DNS:localhost")
        super().__init__(
            folder,
            *("--tls-port", str(self.tls_port), "--tls-auth-clients", "no"),
            *("--tls-cert-file", str(certificate.certificate)),
            *("--tls-key-file", str(certificate.key)),
            *("--tls-ca-cert-file", str(self.authority.certificate)),
        )
        self.change_password(password)

    def change_password(self, password: str) -> None:
        """Take another password from now on, and close all connections."""
        with contextlib.closing(redis.Redis(port=self.port, password=self._password)) as client:
            client.config_set("requirepass", password)
            client.client_kill_filter(skipme=True)
        self._password = password

    def tls_url(self, user: str = "", scheme: str = "rediss", **options: object) -> str:
        options = {
            "prefix": uuid.uuid4().hex,
            "ssl_ca_certs": self.authority.certificate,
            "socket_connect_timeout": 2,
            "socket_timeout": 2,
        } | options
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"{scheme}://{user}localhost:{self.tls_port}/0?{query}"


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Managed]:
    server = Managed(tmp_path_factory.mktemp("managed-redis"), "first")
    yield server
    server.stop()


@pytest.fixture
def own_managed(tmp_path: Path) -> Iterator[Managed]:
    server = Managed(tmp_path, "first")
    yield server
    server.stop()


class TestOverTlsWithAPassword(VerbContract, RaceContract, FenceContract, WakeContract):
    @pytest.fixture
    def store(self, managed: Managed) -> Iterator[RedisStore]:
        with contextlib.closing(open_store(managed.tls_url(":first@", "valkeys"))) as store:
            assert isinstance(store, RedisStore)
            yield store


@pytest.mark.parametrize("user", ["", ":wrong@"])
def test_without_the_password_it_is_refused(managed: Managed, user: str) -> None:
    store = RedisStore.from_url(managed.tls_url(user))
    with pytest.raises(StoreUnavailable) as caught:
        store.create("ann", b"first", 60)
    assert not caught.value.sent or "NOAUTH" in caught.value.reason or user == ""
    assert "wrong" not in caught.value.reason.replace("wrong number", "").replace("WRONGPASS", "")


class Provider(CredentialProvider):
    """An app's own provider."""

    def __init__(self, password: str) -> None:
        self.password = password
        self.asked = 0

    def get_credentials(self) -> tuple[str, str]:
        self.asked += 1
        return "default", self.password


#: Named in URLs.
provider = Provider("first")


class TestAProvider:
    @pytest.fixture(params=["passed in", "named in the URL"])
    def store(self, request: pytest.FixtureRequest, own_managed: Managed) -> Iterator[RedisStore]:
        provider.password, provider.asked = "first", 0
        if request.param == "passed in":
            client = redis.Redis.from_url(
                own_managed.tls_url().replace("prefix=", "client_name="),
                credential_provider=provider,
            )
            store = RedisStore(client, connect_timeout=2, timeout=2)
        else:
            store = RedisStore.from_url(own_managed.tls_url(credentials=f"{__name__}:provider"))
        yield store
        store.close()

    def test_its_password_may_change(self, store: RedisStore, own_managed: Managed) -> None:
        assert store.create("ann", b"first", 60) is not None
        assert provider.asked == 1
        own_managed.change_password("second")
        provider.password = "second"
        assert store.read("ann") is not None
        assert store.create("bob", b"first", 60) is not None
        assert provider.asked == 2

    def test_its_old_password_is_refused(self, store: RedisStore, own_managed: Managed) -> None:
        """The negative control."""
        own_managed.change_password("second")
        with pytest.raises(StoreUnavailable, match=r"WRONGPASS|invalid username") as caught:
            store.create("ann", b"first", 60)
        assert not caught.value.sent

    def test_waiters_are_woken(self, store: RedisStore) -> None:
        assert store.wake_ups is not None
        store.wake_ups.begin("token", SimpleNamespace())  # type: ignore[arg-type]
        assert store.wake_ups.come

    def test_it_fails(self, own_managed: Managed, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(self: Provider) -> tuple[str, str]:
            raise RuntimeError("the secret is s3cret")

        monkeypatch.setattr(Provider, "get_credentials", fail)
        store = RedisStore.from_url(own_managed.tls_url(credentials=f"{__name__}:provider"))
        with pytest.raises(StoreUnavailable, match=r"provider failed .RuntimeError.") as caught:
            store.create("ann", b"first", 60)
        assert not caught.value.sent
        assert "s3cret" not in caught.value.reason


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("ssl_ca_cert=/a.pem", "did you mean ssl_ca_certs"),
        ("credentials=iam", "is google, or names a provider"),
        ("credentials=json:dumps", "is a function, no"),
        ("credentials=nowhere:provider", "there is no module nowhere"),
        ("wake_ups=maybe", "wake_ups is yes or no"),
        ("credentials=", "is google, or names a provider"),
        ("ssl_ca_certs=/nonexistent.pem", "must be a readable file"),
    ],
)
def test_malformed(options: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RedisStore.from_url(f"rediss://127.0.0.1:6379?{options}")


def test_a_password_and_a_provider() -> None:
    with pytest.raises(ValueError, match="and credentials= as well") as caught:
        RedisStore.from_url("redis://:s3cret@127.0.0.1:6379?credentials=google")
    assert "s3cret" not in str(caught.value)


class Google:
    """Google's credentials: each refresh gives another token."""

    def __init__(self, clock: Callable[[], datetime.datetime]) -> None:
        self.token = ""
        self.expiry: datetime.datetime | None = None
        self.refreshed = 0
        self.fails = False
        self._clock = clock

    def refresh(self, request: object) -> None:
        if self.fails:
            raise google.auth.exceptions.RefreshError("no metadata server: s3cret")
        self.refreshed += 1
        self.token = f"token-{self.refreshed}"
        self.expiry = (self._clock() + datetime.timedelta(hours=1)).replace(tzinfo=None)


class TestGoogleTokens:
    @pytest.fixture
    def time(self) -> list[datetime.datetime]:
        return [NOW]

    @pytest.fixture
    def account(self, time: list[datetime.datetime]) -> Google:
        return Google(lambda: time[0])

    @pytest.fixture
    def tokens(self, account: Google, time: list[datetime.datetime]) -> GoogleTokens:
        return GoogleTokens(account, now=lambda: time[0])

    def test_a_token_is_used_until_shortly_before_its_end(
        self, tokens: GoogleTokens, account: Google, time: list[datetime.datetime]
    ) -> None:
        assert tokens.get_credentials() == ("default", "token-1")
        time[0] += datetime.timedelta(minutes=49)
        assert tokens.get_credentials() == ("default", "token-1")
        assert account.refreshed == 1
        time[0] += datetime.timedelta(minutes=2)
        assert tokens.get_credentials()[1] in ("token-1", "token-2")
        wait_until(lambda: tokens.get_credentials() == ("default", "token-2"))
        assert account.refreshed == 2

    def test_one_that_has_ended_is_replaced_at_once(
        self, tokens: GoogleTokens, time: list[datetime.datetime]
    ) -> None:
        tokens.get_credentials()
        time[0] += datetime.timedelta(hours=2)
        assert tokens.get_credentials() == ("default", "token-2")

    def test_without_another_one_the_old_one_serves_to_its_end(
        self, tokens: GoogleTokens, account: Google, time: list[datetime.datetime]
    ) -> None:
        tokens.get_credentials()
        account.fails = True
        time[0] += datetime.timedelta(minutes=55)
        assert tokens.get_credentials() == ("default", "token-1")
        time[0] += datetime.timedelta(minutes=6)
        with pytest.raises(redis.AuthenticationError, match=r"no access token .RefreshError.$"):
            tokens.get_credentials()
        account.fails = False
        assert tokens.get_credentials()[0] == "default"

    def test_with_a_server(
        self, own_managed: Managed, monkeypatch: pytest.MonkeyPatch, account: Google
    ) -> None:
        """Of the environment's account, as the URL says."""
        account = Google(lambda: datetime.datetime.now(datetime.UTC))
        monkeypatch.setattr(google.auth, "default", lambda scopes: (account, "project"))
        own_managed.change_password("token-1")
        store = RedisStore.from_url(own_managed.tls_url(credentials="google"))
        with contextlib.closing(store):
            assert store.create("ann", b"first", 60) is not None
            assert account.refreshed == 1

    def test_no_account(self, own_managed: Managed, monkeypatch: pytest.MonkeyPatch) -> None:
        def nobody(scopes: object) -> None:
            raise google.auth.exceptions.DefaultCredentialsError("none here")

        monkeypatch.setattr(google.auth, "default", nobody)
        service = LockService.from_url(own_managed.tls_url(credentials="google"), outage="fail")
        with pytest.raises(LockServiceUnavailable, match="DefaultCredentialsError"):
            service.acquire("ann")


class TestClusters:
    def test_a_clusters_client_is_refused(self) -> None:
        with pytest.raises(TypeError, match="a server that is no cluster"):
            RedisStore(SimpleNamespace())

    def test_a_node_of_a_cluster_says_so(self, tmp_path: Path) -> None:
        servers = [_node(tmp_path / str(number)) for number in range(2)]
        try:
            _join(servers)
            with contextlib.closing(RedisStore.from_url(servers[0].url)) as store:
                there = [_is_refused(store, f"learner-{number}") for number in range(20)]
                assert any(there)
                assert not all(there)
        finally:
            for server in servers:
                server.stop()


def _node(folder: Path) -> RedisServer:
    folder.mkdir()
    return RedisServer(folder, "--cluster-enabled", "yes", "--cluster-port", str(ports.any_free()))


def _join(servers: list[RedisServer]) -> None:
    first, second = (redis.Redis(port=server.port) for server in servers)
    with contextlib.closing(first), contextlib.closing(second):
        found: Any = second.config_get("cluster-port")
        bus = int(found["cluster-port"])
        first.execute_command("CLUSTER ADDSLOTSRANGE", 0, 8191)
        second.execute_command("CLUSTER ADDSLOTSRANGE", 8192, 16383)
        first.execute_command("CLUSTER MEET", ports.LOOPBACK, servers[1].port, bus)

        def joined() -> bool:
            states: list[Any] = [each.execute_command("CLUSTER INFO") for each in (first, second)]
            return all("ok" in str(state["cluster_state"]) for state in states)

        wait_until(joined, 30)


def _is_refused(store: RedisStore, lock_id: str) -> bool:
    try:
        return store.create(lock_id, b"first", 60) is None
    except StoreUnavailable as trouble:
        return "one node of a cluster" in trouble.reason and "mode disabled" in trouble.reason


def test_the_rights_in_the_documentation_suffice(redis_server: RedisServer) -> None:
    """For everything that a lock does, wake-ups included; `doctor` too."""
    page = (Path(__file__).parents[3] / "docs/deploy.md").read_text()
    found = re.search(r"\| ACL of Redis, Valkey \| `([^`]+)`", page)
    assert found is not None
    prefix = uuid.uuid4().hex
    rights = found[1].replace("PREFIX", prefix).split()
    with contextlib.closing(redis.Redis(port=redis_server.port)) as client:
        client.execute_command("ACL", "SETUSER", prefix, "reset", "on", ">secret", *rights)
    url = f"redis://{prefix}:secret@{redis_server.address}/0?prefix={prefix}"
    service = LockService.from_url(url, outage="fail")
    with contextlib.closing(service), userlock.scope(service) as scope:
        assert scope.acquire("ann").fence > 0
        assert service.store.wake_ups is not None
        service.store.wake_ups.begin("token", SimpleNamespace())  # type: ignore[arg-type]
        assert service.store.wake_ups.come
        scope.release("ann")
        scope.acquire("ann", heartbeat=True).extend(10)
    assert Verdict.WRONG not in {each.verdict for each in examine(service.store)}


@pytest.mark.parametrize("known", [True, False], ids=["its authority", "another authority"])
def test_a_certificate_without_the_address(managed: Managed, tmp_path: Path, known: bool) -> None:
    """`ssl_check_hostname=false` leaves the check of the authority."""
    authority = managed.authority if known else Authority(tmp_path)
    url = managed.tls_url(":first@", ssl_check_hostname="false", ssl_ca_certs=authority.certificate)
    url = url.replace("localhost", "127.0.0.1")
    with contextlib.closing(RedisStore.from_url(url)) as store:
        if known:
            assert store.create("by-address", b"first", 60) is not None
            return
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            store.create("by-address", b"first", 60)
