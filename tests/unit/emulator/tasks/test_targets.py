"""The requests that tasks describe, without sending them."""

from __future__ import annotations

import json
from email import message_from_string
from email.message import Message as Headers
from typing import Any
from unittest import mock

import pytest
from google.auth import jwt

from tests.unit.emulator.tasks.subject import QUEUE, Subject
from userlock_emulator.tasks.attempts import Answer
from userlock_emulator.tasks.targets import Outgoing, TargetError, Targets
from userlock_emulator.tasks.tokens import GOOGLE, Signer


class Bench:
    def __init__(self, **app_engine: str) -> None:
        self.subject = Subject(start=1_700_000_000.123456)
        self.subject.create_queue()
        self.signer = Signer(self.subject.storage, GOOGLE)
        self.targets = Targets(self.signer, app_engine)

    def outgoing(self, failures: int = 0, **task: Any) -> Outgoing:
        self.subject.create("t-1", **task)
        for _ in range(failures):
            self.subject.finish(self.subject.begin("t-1"), Answer(status=404))
        return self.targets.outgoing(self.subject.begin("t-1"))


def split(outgoing: Outgoing) -> tuple[str, Headers]:
    line, _, headers = outgoing.head.decode().partition("\r\n")
    assert outgoing.head.endswith(b"\r\n\r\n")
    assert outgoing.head.count(b"\r\n\r\n") == 1
    return line, message_from_string(headers)


def test_an_http_target() -> None:
    outgoing = Bench().outgoing(
        url="http://127.0.0.1:8080/do?x=1#part", http_request={"body": b"hello"}
    )
    line, headers = split(outgoing)
    assert line == "POST /do?x=1 HTTP/1.1"
    assert (outgoing.host, outgoing.port, outgoing.tls) == ("127.0.0.1", 8080, False)
    assert outgoing.body == b"hello"
    assert dict(headers) == {
        "Host": "127.0.0.1:8080",
        "Connection": "close",
        "User-Agent": "Google-Cloud-Tasks",
        "X-CloudTasks-QueueName": "q",
        "X-CloudTasks-TaskName": "t-1",
        "X-CloudTasks-TaskRetryCount": "0",
        "X-CloudTasks-TaskExecutionCount": "0",
        "X-CloudTasks-TaskETA": "1700000000.123456",
        "Content-Length": "5",
    }


def test_headers_that_the_task_cannot_set() -> None:
    given = {
        "Host": "evil.example", "Content-Length": "1", "Transfer-Encoding": "chunked",
        "X-CloudTasks-TaskRetryCount": "7", "x-appengine-queuename": "x", "X-Google-A": "x",
        "Connection": "keep-alive", "Expect": "100-continue", "X-Mine": "kept",
        "authorization": "mine",
    }  # fmt: skip
    request = {"headers": given, "oidc_token": {"service_account_email": "a@b"}, "body": b"hello"}
    outgoing = Bench().outgoing(http_request=request)
    _, headers = split(outgoing)
    assert headers.get_all("Host") == ["127.0.0.1"]
    assert headers.get_all("Content-Length") == ["5"]
    assert headers.get_all("X-CloudTasks-TaskRetryCount") == ["0"]
    assert headers["X-Mine"] == "kept"
    assert len(headers.get_all("Authorization", [])) == 1
    for name in ("Transfer-Encoding", "X-AppEngine-QueueName", "X-Google-A", "Expect"):
        assert name not in headers
    _, headers = split(Bench().outgoing(http_request={"headers": {"Authorization": "mine"}}))
    assert headers["Authorization"] == "mine"


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "path"),
    [
        ("HTTPS://h", "h", 443, True, "/"),
        ("http://h:99?a=b", "h", 99, False, "/?a=b"),
        ("http://user:pass@h/x", "h", 80, False, "/x"),
        ("http://[::1]:8/x", "::1", 8, False, "/x"),
        ("http://h/ü x%20\u2028", "h", 80, False, "/%C3%BC%20x%20%E2%80%A8"),
        ("http://h/\r\nX: y\r\n\r\n", "h", 80, False, "/%0D%0AX:%20y%0D%0A%0D%0A"),
    ],
)
def test_urls(url: str, host: str, port: int, tls: bool, path: str) -> None:
    outgoing = Bench().outgoing(url=url)
    line, headers = split(outgoing)
    assert (outgoing.host, outgoing.port, outgoing.tls) == (host, port, tls)
    assert line == f"POST {path} HTTP/1.1"
    assert "@" not in headers["Host"]


def test_targets_that_cannot_be_used() -> None:
    for url in ("http://h:x/", "http://h:99999/"):
        with pytest.raises(TargetError):
            Bench().outgoing(url=url)
    with pytest.raises(TargetError, match="--app-engine"):
        Bench().outgoing(app_engine_http_request={})


@pytest.mark.parametrize(
    ("method", "length"),
    [("GET", None), ("HEAD", None), ("DELETE", None), ("POST", "0"), ("PUT", "0"), ("PATCH", "0")],
)
def test_methods(method: str, length: str | None) -> None:
    line, headers = split(Bench().outgoing(http_request={"http_method": method}))
    assert line.startswith(f"{method} ")
    assert headers["Content-Length"] == length


class TestTokens:
    def claims(self, bench: Bench, **token: str) -> dict[str, Any]:
        request = {"oidc_token": {"service_account_email": "robot@p.example", **token}}
        outgoing = bench.outgoing(url="http://127.0.0.1/x?y", http_request=request)
        _, headers = split(outgoing)
        signed = headers["Authorization"].removeprefix("Bearer ")
        claims: dict[str, Any] = jwt.decode(signed, verify=False)
        return claims

    def test_claims(self) -> None:
        with mock.patch("time.time", return_value=4_000_000_000.5):
            claims = self.claims(Bench())
        assert (claims["iat"], claims["exp"]) == (4_000_000_000, 4_000_003_600)
        assert claims["iss"] == "https://accounts.google.com"
        assert (claims["email"], claims["email_verified"]) == ("robot@p.example", True)
        assert claims["sub"] == claims["azp"]
        assert claims["sub"].isdecimal()
        assert claims["aud"] == "http://127.0.0.1/x?y"
        assert self.claims(Bench(), audience="https://mine")["aud"] == "https://mine"

    def test_the_key_is_kept(self) -> None:
        bench = Bench()
        first = bench.signer.key_set()
        (key,) = first["keys"]
        assert [key["kid"]] == list(bench.signer.certificates())
        assert "d" not in json.loads(json.dumps(key)), "nothing private"
        assert Signer(bench.subject.storage, GOOGLE).key_set() == first


class TestAppEngine:
    def test_headers(self) -> None:
        request = {"relative_uri": "/do?x=1", "body": b"hello", "headers": {"X-Mine": "kept"}}
        outgoing = Bench(**{"": "127.0.0.1:8080"}).outgoing(app_engine_http_request=request)
        line, headers = split(outgoing)
        assert line == "POST /do?x=1 HTTP/1.1"
        assert (outgoing.host, outgoing.port) == ("127.0.0.1", 8080)
        assert headers["X-AppEngine-QueueName"] == "q"
        assert headers["X-AppEngine-TaskName"] == "t-1"
        assert headers["X-AppEngine-TaskETA"] == "1700000000.123456"
        assert headers["User-Agent"] == "AppEngine-Google; (+http://code.google.com/appengine)"
        assert headers["Content-Type"] == "application/octet-stream"
        assert headers["X-Mine"] == "kept"
        assert not [name for name in headers if name.startswith("X-CloudTasks")]

    def test_services(self) -> None:
        bench = Bench(**{"": "127.0.0.1:1", "worker": "127.0.0.1:2"})
        for service, port in (("", 1), ("other", 1), ("worker", 2)):
            bench.subject.clock.advance(25 * 3600)
            request = {"app_engine_routing": {"service": service}}
            assert bench.outgoing(app_engine_http_request=request).port == port
            bench.subject.finish(bench.subject.begin("t-1"), Answer(status=200))
            bench.subject.clock.advance(25 * 3600)

    def test_the_queue_overrides_the_service(self) -> None:
        bench = Bench(worker="127.0.0.1:2")
        override = {"name": QUEUE, "app_engine_routing_override": {"service": "worker"}}
        queue = bench.subject.call("UpdateQueue", queue=override)
        assert queue.app_engine_routing_override.host == "worker.p.appspot.com"
        request = {"app_engine_routing": {"service": "other"}}
        assert bench.outgoing(app_engine_http_request=request).port == 2
