"""URLs of engines: what they name, what is refused, and that no error shows a password."""

from __future__ import annotations

import traceback

import pytest

pytest.importorskip("google.cloud.tasks_v2")
pytest.importorskip("rq")

from userlock.contrib.outbox_endpoints import OutboxEndpoints
from userlock.outbox import Outbox
from userlock.outbox.authentication import AppEngineHeader, OidcToken
from userlock.outbox.engines import cloudtasks, open_engine, rq

ACCOUNT = "jobs@shop.iam.gserviceaccount.com"
TARGET = f"cloudtasks://shop/europe-west1/jobs?service_account={ACCOUNT}&target="


def test_an_endpoint_elsewhere_than_its_queue_calls(caplog: pytest.LogCaptureFixture) -> None:
    site = f"{TARGET}https://shop.example"
    for path, prefix in (("", ""), ("/shop/userlock/jobs", ""), ("/billing/jobs", "/billing")):
        OutboxEndpoints(Outbox(site + path), url_prefix=prefix or "/userlock")
    OutboxEndpoints(Outbox(site), callers=[AppEngineHeader()], url_prefix="/cron")
    assert not caplog.records
    for url in (site, "cloudtasks://shop/europe-west1/jobs"):
        OutboxEndpoints(Outbox(url), url_prefix="/billing")
        assert "calls /userlock/jobs, and its endpoint is /billing/jobs" in caplog.text
        caplog.clear()


# --- RQ -----------------------------------------------------------------------------------------


def test_the_parts_of_an_rq_s_url() -> None:
    plain = parts_of("rq://redis.example")
    assert plain == {"queue": "userlock", "host": "redis.example"}
    full = parts_of("rqs://ann:p%40ss%2F@10.0.0.1:6390/7?queue=slow")
    server = {"queue": "slow", "host": "10.0.0.1", "port": 6390, "db": 7}
    user = {"username": "ann", "password": "p@ss/"}
    assert full == server | user | {"ssl_check_hostname": True}, "redis-py 5 would check no name"
    assert parts_of("rq://:secret@[::1]:6390/")["password"] == "secret"


def parts_of(url: str) -> dict[str, object]:
    engine = rq.open_url(url)
    with engine.client as client:
        options = client.connection_pool.connection_kwargs
    names = ("host", "port", "db", "username", "password", "ssl_check_hostname")
    return {"queue": engine.queue} | {name: options[name] for name in names if options.get(name)}


SECRET = "sesame"


@pytest.mark.parametrize(
    "rest",
    [
        *("@", "@:6379/0", "@a,b/0", "@host:99999/0", "@host:0/0", "@host:port/0", "@host/zero"),
        *("@host/0/1", "@host/0?queue=", "@host/0?queue=a%20b", "@host/0?queue=a&queue=b"),
        *("@host/0#queue=a", "@x@host/0", "/x@host/0", "#x@host/0", " x@host/0", "℀@host/0"),
        *("@[host/0", "@host\n/0"),
    ],
)
def test_no_error_shows_a_part_of_the_url_that_may_be_secret(rest: str) -> None:
    refused(f"rq://ann:{SECRET}{rest}")


@pytest.mark.parametrize(
    "url",
    [f"rqs:{SECRET}", f"rq:/{SECRET}", f"redis://ann:{SECRET}@host/0", SECRET, f"://{SECRET}", ""],
)
def test_no_error_shows_a_url_of_another_kind(url: str) -> None:
    refused(url)


def refused(url: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        open_engine(url)
    shown = "".join(traceback.format_exception(raised.value, limit=0))
    assert SECRET not in shown
    assert "ann" not in shown


# --- Cloud Tasks --------------------------------------------------------------------------------


def test_the_parts_of_a_queue_s_url() -> None:
    plain = cloudtasks.parse("cloudtasks://shop/europe-west1/jobs")
    assert plain.parent == "projects/shop/locations/europe-west1/queues/jobs"
    assert (plain.target, plain.service) == ("", "")
    assert cloudtasks.parse("cloudtasks://example.com:shop/l/q/").project == "example.com:shop"
    assert cloudtasks.parse("cloudtasks://shop/l/q?service=worker").service == "worker"
    full = cloudtasks.parse(f"{TARGET}https://shop.example/in/jobs?a=b")
    assert full.target == "https://shop.example/in/jobs?a=b"
    assert full.service_account == ACCOUNT
    escaped = cloudtasks.parse(f"{TARGET}https%3A%2F%2Fshop.example%2Fx&audience=shop")
    assert (escaped.target, escaped.audience) == ("https://shop.example/x", "shop")
    for bare in ("https://shop.example", "https://shop.example/"):
        address = cloudtasks.parse(TARGET + bare)
        assert address.target == address.audience == "https://shop.example/userlock/jobs"


def test_who_may_call_is_named_by_the_queue() -> None:
    engine = open_engine(f"{TARGET}https://shop.example")
    assert isinstance(engine, cloudtasks.CloudTasksEngine)
    assert repr(engine.caller) == (
        f"OidcToken(audience=('https://shop.example/userlock/jobs',), "
        f"service_account=('{ACCOUNT}',))"
    )
    plain = open_engine("cloudtasks://shop/l/q")
    assert isinstance(plain, cloudtasks.CloudTasksEngine)
    assert isinstance(plain.caller, AppEngineHeader)
    assert not isinstance(plain.caller, OidcToken)


@pytest.mark.parametrize(
    "url",
    [
        *("cloudtasks://", "cloudtasks:shop/l/q", "cloudtasks://shop", "cloudtasks://shop/l"),
        *("cloudtasks://shop/l/q/x", "cloudtasks://sh op/l/q", "cloudtasks://shop/l/q_q"),
        *(
            f"cloudtasks://shop/l/q{rest}"
            for rest in (
                *("#x", "?service=A_b", "?service=", "?queue=x", "?service=a&service=b"),
                *(f"?service_account={ACCOUNT}", "?audience=a", "?target=https://shop.example"),
                "?target=https://shop.example&service_account=jobs",
            )
        ),
        *(
            TARGET + target
            for target in (
                *("https://shop.example&service=a", "http://shop.example", "ftp://shop.example"),
                *("shop.example", "https://", "https://ann:pass@shop.example"),
                *("https://shop.example:port/", "https://[shop.example/", "https://shöp.example"),
                *("https://shop.example/a%20b", "https://shop.example/a%0d%0ab"),
                "https://shop.example&audience=a#x",
            )
        ),
    ],
)
def test_a_malformed_queue(url: str) -> None:
    with pytest.raises(ValueError, match=r"cloudtasks:"):
        open_engine(url)


def test_a_token_goes_over_tls_or_not_beyond_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cloudtasks.EMULATOR_VARIABLE, raising=False)
    for host in ("127.0.0.1:8080", "localhost", "[::1]:80"):
        assert open_engine(f"{TARGET}http://{host}")
    with pytest.raises(ValueError, match="https"):
        open_engine(f"{TARGET}http://shop")
    monkeypatch.setenv(cloudtasks.EMULATOR_VARIABLE, "tasks:8123")
    assert open_engine(f"{TARGET}http://shop")


def test_no_engine() -> None:
    for url in ("", "kafka://host", "memory://", "cloudtask://a/b/c"):
        with pytest.raises(ValueError, match="names no engine"):
            open_engine(url)
    for url in (
        "inline://host",
        "inline://?threads=-1",
        "inline://?threads=1&threads=2",
        "inline://?x=1",
    ):
        with pytest.raises(ValueError, match="inline"):
            open_engine(url)
    for take in (open_engine, Outbox):
        with pytest.raises(TypeError, match="an engine is a URL"):
            take(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tiers must be a dict"):
        Outbox("inline://?threads=0", tiers=5)  # type: ignore[arg-type]
