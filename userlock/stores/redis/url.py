"""The parts of a Redis URL, and the client of redis-py that they describe.

    redis://[USER:PASSWORD@]HOST:PORT/DB?prefix=NAME       one server
    redis+cluster://HOST:PORT,HOST:PORT?prefix=NAME        a cluster, by some of its nodes
    redis+sentinel://HOST:PORT,HOST:PORT/SERVICE?…         the primary that Sentinels name

`rediss`, `valkey` and `valkeys` stand for `redis` in each.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlencode, urlunsplit

import redis
from redis.credentials import CredentialProvider

from userlock.apps import find_object
from userlock.errors import ConfigurationError
from userlock.stores.address import joined
from userlock.stores.pool import CONNECT_TIMEOUT, REPLY_TIMEOUT
from userlock.stores.redis.sentinels import Sentinels
from userlock.stores.urls import SECONDS, YES_NO, AddressError, options_of, tls_context

#: The begins of schemes, and what redis-py knows for them.
_CLIENTS = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}
#: The ends of schemes, and the usual ports.
_PORTS = {"": 6379, "cluster": 6379, "sentinel": 26379}
#: Options besides the store's own, as redis-py names them. It would take any.
_OPTIONS = ("credentials", "client_name", "db", "username", "password", "socket_keepalive")
_OF_SENTINELS = ("sentinel_username", "sentinel_password")
_OF_TLS = (
    *("ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname"),
    *("ssl_ciphers", "ssl_keyfile", "ssl_password"),
)
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
#: redis-py takes some malformed values, or fails later.
_TRUTH = ("(?i:true|false|yes|no|[tfyn10])", "true or false")
_FORMS = {
    "client_name": ("[!-~]*", "printable ASCII characters without spaces"),
    "credentials": (".+", "google, or the name of a provider"),
    "db": ("[0-9]{1,9}", "a whole number"),
    "socket_connect_timeout": SECONDS,
    "socket_keepalive": _TRUTH,
    "socket_timeout": SECONDS,
    "ssl_cert_reqs": ("none|optional|required", "none, optional or required"),
    "ssl_check_hostname": _TRUTH,
    "wait_replicas": ("[0-9]{1,2}", "a whole number"),
    "wake_ups": YES_NO,
}
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class Named(NamedTuple):
    """The parts of a URL."""

    client_url: str  # for redis-py, with user and password: of the first server
    options: dict[str, Any]  # of the store
    credentials: str  # the name of a provider; empty if there is none
    kind: str  # "", "cluster" or "sentinel"
    addresses: tuple[tuple[str, int], ...]  # the servers, nodes of the cluster or Sentinels
    service: str  # as the Sentinels call it
    of_sentinels: dict[str, str]  # user and password there, as redis-py names them


def parse(parts: SplitResult) -> Named:
    base, _, kind = parts.scheme.partition("+")
    hosts = parts.netloc.rpartition("@")[2].split(",")
    addresses = tuple(dict.fromkeys(_address(parts, host, _PORTS[kind]) for host in hosts))
    if len(addresses) > 1 and not kind:
        raise AddressError(
            f"it names several servers: leases are kept in one Redis, or in a cluster "
            f"({base}+cluster://), or where Sentinels say ({base}+sentinel://)"
        )
    service = parts.path.removeprefix("/") if kind == "sentinel" else ""
    if kind == "sentinel" and not re.fullmatch(r"[\w.-]{1,80}", service):
        raise AddressError(
            f"it must name the service that the Sentinels watch: "
            f"{parts.scheme}://HOST:PORT,HOST:PORT/SERVICE"
        )
    if not service and not re.fullmatch(r"/?[0-9]*", parts.path):
        raise AddressError("the database must be a number")
    options = options_of(
        parts,
        forms=_FORMS,
        prefix="userlock",
        wake_ups="yes",
        wait_replicas="0",
        socket_connect_timeout=f"{CONNECT_TIMEOUT}",
        socket_timeout=f"{REPLY_TIMEOUT}",
        without_default=(*_OPTIONS, *_OF_TLS, *(_OF_SENTINELS if service else ())),
    )
    before = {"username": parts.username, "password": parts.password}
    before["db"] = "" if service else parts.path.strip("/")
    for name in before.keys() & options.keys():
        if before[name]:
            raise AddressError(f"{name} is named twice")
    if kind == "cluster" and (parts.path.strip("/") or options.get("db", "0")).strip("0"):
        raise AddressError("a cluster has database 0 only")
    credentials = options.pop("credentials", "")
    _check_tls(parts, options, credentials, {host for host, _ in addresses})
    of_store = {
        "prefix": options.pop("prefix"),
        "connect_timeout": float(options.pop("socket_connect_timeout")),
        "timeout": float(options.pop("socket_timeout")),
        "wakes": options.pop("wake_ups") == "yes",
        "wait_replicas": int(options.pop("wait_replicas")),
    }
    of_sentinels = {
        name.removeprefix("sentinel_"): options.pop(name)
        for name in _OF_SENTINELS
        if name in options
    }
    server = parts._replace(scheme=_CLIENTS[base], query=urlencode(options))
    if kind:
        user, at, _ = parts.netloc.rpartition("@")
        server = server._replace(netloc=f"{user}{at}{joined(*addresses[0])}", path="")
    client_url = urlunsplit(server)
    return Named(client_url, of_store, credentials, kind, addresses, service, of_sentinels)


def _address(parts: SplitResult, host: str, usual: int) -> tuple[str, int]:
    one = parts._replace(netloc=host)
    if not one.hostname:
        raise AddressError("it names no host")
    try:
        port = one.port
    except ValueError:
        raise AddressError("its port must be a number from 1 to 65535") from None
    if port == 0:
        raise AddressError("port 0 does not exist")
    return one.hostname, usual if port is None else port


def _check_tls(
    parts: SplitResult, options: dict[str, str], credentials: str, hosts: set[str]
) -> None:
    """Check the options of TLS, fill in the default, and guard credentials."""
    base, plus, kind = parts.scheme.partition("+")
    over_tls = _CLIENTS[base] == "rediss"
    secure = f"{base}{'' if over_tls else 's'}{plus}{kind}://"
    for name in () if over_tls else _OF_TLS:
        if name in options:
            raise AddressError(f"{name} needs {secure}")
    ca = options.get("ssl_ca_certs", "")
    files = [options.get(name, "") for name in _TLS_FILES]
    if any(files):  # redis-py reads them for each new connection
        tls_context(*files, names=_TLS_FILES, password=options.get("ssl_password", ""))
    checked = over_tls and options.get("ssl_cert_reqs") != "none"
    if checked:
        options.setdefault("ssl_check_hostname", "true")  # redis-py 5 would check no name
    if credentials and "@" in parts.netloc:
        raise AddressError("it has a user or password, and credentials= as well")
    # Without the name, a certificate of anybody will do that a public authority has signed. (Also
    # beside an authority of the app's, where the system has public ones: redis-py adds to them.)
    named = options.get("ssl_check_hostname", "true")[0].lower() in "ty1"
    verified = checked and (named or bool(ca or options.get("ssl_ca_path")))
    if credentials == "google" and not verified and not hosts <= _LOOPBACK:
        raise AddressError(
            f"credentials=google needs {secure} and the server's certificate: else whoever is "
            f"in between has an access token of Google Cloud"
        )


def client_of(named: Named) -> redis.Redis:
    """Return a client of the server, or of the primary that Sentinels name. Nothing is sent."""
    provider = _provider_of(named.credentials) if named.credentials else None
    client = redis.Redis.from_url(named.client_url, credential_provider=provider)
    if named.kind != "sentinel":
        return client
    given = client.connection_pool.connection_kwargs
    tls = {name: value for name, value in given.items() if name.startswith("ssl_")}
    if issubclass(client.connection_pool.connection_class, redis.SSLConnection):
        tls["ssl"] = True
    of_sentinels: dict[str, Any] = {**tls, **named.of_sentinels}
    pools = [
        redis.Redis(host, port, **of_sentinels).connection_pool for host, port in named.addresses
    ]
    sentinels = Sentinels(pools, named.options["connect_timeout"], named.options["timeout"])
    options = {name: given[name] for name in given if name not in ("host", "port", *tls)}
    primary: redis.Redis = sentinels.master_for(named.service, **options, **tls)  # type: ignore[no-untyped-call]
    return primary


def _provider_of(name: str) -> CredentialProvider:
    """Return the provider that the option `credentials` names: `google`, or `MODULE:NAME`."""
    if name == "google":
        # Google's client takes long to import.
        module = importlib.import_module("userlock.stores.redis.google_tokens")
        provider: CredentialProvider = module.GoogleTokens()
        return provider
    try:
        return find_object(name, CredentialProvider, "credential provider", "credentials")
    except ConfigurationError as error:
        raise AddressError(f"credentials= is google, or names a provider: {error}") from None
