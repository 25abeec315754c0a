"""The parts of a Redis URL."""

from __future__ import annotations

import contextlib
import os
import re
from typing import NamedTuple
from urllib.parse import SplitResult, urlencode, urlunsplit

from userlock.stores.pool import CONNECT_TIMEOUT, REPLY_TIMEOUT
from userlock.stores.urls import AddressError, options_of

#: The schemes, and those that redis-py knows for them. Valkey speaks the protocol of Redis.
_CLIENTS = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}
#: Options besides the store's own, as redis-py names them. It would take any.
_TIMES = ("socket_connect_timeout", "socket_timeout")
_OPTIONS = (*_TIMES, "credentials", "client_name", "db", "username", "password", "socket_keepalive")
_OF_TLS = (
    *("ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname"),
    *("ssl_ciphers", "ssl_keyfile", "ssl_password"),
)
#: The form and description of values. redis-py takes some malformed ones, or fails later.
_WHOLE = ("[0-9]{1,9}", "a whole number")
_NUMBER = (r"[0-9]{1,9}(\.[0-9]{1,9})?", "a number")
_TRUTH = ("(?i:true|false|yes|no|[tfyn10])", "true or false")
_FORMS = {
    "db": _WHOLE,
    "health_check_interval": _NUMBER,
    "max_connections": _WHOLE,
    "protocol": ("[23]", "2 or 3"),
    "retry_on_timeout": _TRUTH,
    "socket_keepalive": _TRUTH,
    "ssl_cert_reqs": ("none|optional|required", "none, optional or required"),
    "ssl_check_hostname": _TRUTH,
    "timeout": _NUMBER,
}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: For pools and retries of redis-py's, which the store does not use.
_IGNORED = (
    *("health_check_interval", "max_connections", "protocol", "retry_on_error"),
    *("retry_on_timeout", "timeout"),
)


class Named(NamedTuple):
    """The parts of a URL. The first is for redis-py, with user and password."""

    client_url: str
    prefix: str
    connect_timeout: float
    timeout: float
    wakes: bool
    credentials: str


def parse(parts: SplitResult) -> Named:
    """Return the parts of `redis://[USER:PASSWORD@]HOST:PORT/DB?prefix=NAME`, or of `valkey://…`."""
    if parts.scheme not in _CLIENTS:
        raise AddressError(
            f"a Redis URL begins with {', '.join(f'{each}://' for each in _CLIENTS)}"
        )
    if not parts.hostname:
        raise AddressError("it names no host")
    if "," in parts.hostname:
        raise AddressError("it names several servers: leases are kept in one Redis")
    if _port(parts) == 0:
        raise AddressError("port 0 does not exist")
    if not re.fullmatch(r"/?[0-9]*", parts.path):
        raise AddressError("the database must be a number")
    known = (*_OPTIONS, *_OF_TLS, *_IGNORED)
    options = options_of(parts, prefix="userlock", wake_ups="yes", without_default=known)
    for name, (form, words) in _FORMS.items():
        if name in options and not re.fullmatch(form, options[name]):
            raise AddressError(f"{name} must be {words}")
    options = {name: value for name, value in options.items() if name not in _IGNORED}
    over_tls = _CLIENTS[parts.scheme] == "rediss"
    for name in () if over_tls else _OF_TLS:
        if name in options:
            raise AddressError(f"{name} needs {parts.scheme}s://")
    prefix = options.pop("prefix")
    if not prefix:
        raise AddressError("the prefix must not be empty")
    credentials = options.pop("credentials", "")
    if "credentials=" in parts.query and not credentials:
        raise AddressError("credentials= is google, or names a provider")
    ca = options.get("ssl_ca_certs", "")
    if ca and not os.access(ca, os.R_OK):
        raise AddressError("ssl_ca_certs= must be a readable file")
    if over_tls and options.get("ssl_cert_reqs") != "none":
        options.setdefault("ssl_check_hostname", "true")  # redis-py 5 would check no name
    if credentials and "@" in parts.netloc:
        raise AddressError("it has a user or password, and credentials= as well")
    verified = over_tls and options.get("ssl_cert_reqs") != "none"
    if credentials == "google" and not verified and parts.hostname not in _LOOPBACK:
        scheme = parts.scheme if over_tls else f"{parts.scheme}s"
        raise AddressError(
            f"credentials=google needs {scheme}:// and the server's certificate: else whoever is "
            f"in between has an access token of Google Cloud"
        )
    wakes = options.pop("wake_ups")
    if wakes not in ("yes", "no"):
        raise AddressError("wake_ups is yes or no")
    times = dict(zip(_TIMES, (CONNECT_TIMEOUT, REPLY_TIMEOUT), strict=True))
    for name in times.keys() & options.keys():
        text = options.pop(name)
        if not _is_time(text):
            raise AddressError(f"{name} must be a number of seconds above 0")
        times[name] = float(text)
    scheme = _CLIENTS[parts.scheme]
    client_url = urlunsplit(parts._replace(scheme=scheme, query=urlencode(options)))
    connect_timeout, timeout = times.values()
    return Named(client_url, prefix, connect_timeout, timeout, wakes == "yes", credentials)


def _port(parts: SplitResult) -> int | None:
    with contextlib.suppress(ValueError):  # which quotes it
        return parts.port
    raise AddressError("its port must be a number from 1 to 65535")


def _is_time(text: str) -> bool:
    try:
        return 0 < float(text) <= 86400
    except ValueError:
        return False
