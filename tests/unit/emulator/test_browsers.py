"""Requests that a web page can cause, recognised by their headers."""

from __future__ import annotations

from email.message import Message

import pytest

from userlock_emulator.port.browsers import Gate, local_refusal

HERE = "127.0.0.1:8081"


def refusal(
    *headers: tuple[str, str], host: str = "127.0.0.1", open_to_others: bool = False
) -> str:
    message = Message()
    for name, value in headers:
        message[name] = value
    return Gate(host, open_to_others=open_to_others).refusal(message) or ""


@pytest.mark.parametrize(
    "host",
    [
        HERE,
        "127.0.0.1",
        "127.1.2.3:80",
        "[::1]:8081",
        "localhost:8081",
        "LocalHost.:8081",
        "emulator.localhost:8081",
        "192.0.2.7:8081",  # forwarded by another program; an address cannot be rebound
    ],
)
def test_addresses_and_names_of_this_machine(host: str) -> None:
    assert not refusal(("Host", host))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:8081",
        "127.0.0.1.evil.example:8081",
        "localhost.evil.example",
        "notlocalhost:8081",
        "emulator:8081",
        "[::1",
        "",
    ],
)
def test_other_names_are_refused(host: str) -> None:
    assert "may be the name of a web site" in refusal(("Host", host))


def test_the_name_that_it_listens_on() -> None:
    named = "Box.Corp.example"
    assert not refusal(("Host", "box.corp.example:8081"), host=named)
    assert refusal(("Host", "other.corp.example:8081"), host=named)


def test_where_other_machines_reach_it_they_may_use_its_name_in_their_network() -> None:
    assert not refusal(("Host", "emulator:8081"), host="0.0.0.0", open_to_others=True)
    assert refusal(("Host", "evil.example:8081"), host="0.0.0.0", open_to_others=True)


@pytest.mark.parametrize(
    "header",
    [
        ("Origin", "http://evil.example"),
        ("Origin", "null"),
        ("Origin", "https://127.0.0.1:8081"),
        ("Origin", "http://127.0.0.1:3000"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ],
)
def test_pages_of_others_are_refused(header: tuple[str, str]) -> None:
    assert "a page of another site" in refusal(("Host", HERE), header)
    # A second header of the name does not hide the first, nor the other way round.
    good = (header[0], "http://" + HERE if header[0] == "Origin" else "same-origin")
    assert refusal(("Host", HERE), header, good)
    assert refusal(("Host", HERE), good, header)


def test_a_second_host_hides_nothing() -> None:
    assert refusal(("Host", HERE), ("Host", "evil.example"))
    assert refusal(("Host", "evil.example"), ("Host", HERE))


def test_typed_addresses_and_programs() -> None:
    assert not refusal(("Host", HERE), ("Sec-Fetch-Site", "none"))
    assert not refusal(
        ("Host", HERE), ("Sec-Fetch-Site", "same-origin"), ("Origin", f"http://{HERE}")
    )
    assert not refusal()  # HTTP/1.0
    assert refusal(("Origin", "http://evil.example"))


def local(
    *headers: tuple[str, str], method: str = "GET", peer: str = "127.0.0.1", host: str = HERE
) -> str:
    message = Message()
    for name, value in (("Host", host), *headers):
        message[name] = value
    return local_refusal(method, message, peer) or ""


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_a_local_page_is_for_clients_on_this_machine(peer: str) -> None:
    assert not local(peer=peer)


@pytest.mark.parametrize("peer", ["192.168.0.5", "::ffff:8.8.8.8", "fe80::1", "0.0.0.0", "", "x"])
def test_a_local_page_is_for_no_other_client(peer: str) -> None:
    assert "for this machine only" in local(peer=peer)


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost", "app.localhost:8081", "[::1]:8081"])
def test_a_local_page_is_asked_for_at_the_loopback_interface(host: str) -> None:
    assert not local(host=host)


@pytest.mark.parametrize("host", ["192.168.0.5:8081", "emulator", "localhost.evil.example", "[::1"])
def test_a_local_page_is_asked_for_at_no_other_host(host: str) -> None:
    assert "localhost or 127.0.0.1" in local(host=host)


def test_a_local_page_needs_one_host() -> None:
    assert local(("Host", HERE))
    assert local_refusal("GET", Message(), "127.0.0.1")


@pytest.mark.parametrize("name", ["Forwarded", "x-forwarded-for", "X-Forwarded-Host", "Via"])
def test_a_proxy_may_stand_before_another_machine(name: str) -> None:
    assert "a proxy" in local((name, "for=8.8.8.8"))


def test_a_form_names_the_page_it_was_on() -> None:
    assert "no page of the emulator" in local(method="POST")
    assert "no page of the emulator" in local(("Sec-Fetch-Site", "none"), method="POST")
    assert not local(("Origin", f"http://{HERE}"), method="POST")
    assert not local(("Sec-Fetch-Site", "same-origin"), method="POST")
