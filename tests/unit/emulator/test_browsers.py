"""Requests that a web page can cause, recognised by their headers."""

from __future__ import annotations

from email.message import Message

import pytest

from userlock_emulator.port.browsers import Gate, local_refusal

HERE = ("Host", "127.0.0.1:8081")
Header = tuple[str, str]


def message(*headers: Header) -> Message:
    made = Message()
    for name, value in headers:
        made[name] = value
    return made


def refusal(*headers: Header, host: str = "127.0.0.1", open_to_others: bool = False) -> str:
    return Gate(host, open_to_others=open_to_others).refusal(message(*headers)) or ""


def local(*headers: Header, method: str = "GET", peer: str = "127.0.0.1") -> str:
    return local_refusal(method, message(*headers), peer) or ""


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.1.2.3:80", "[::1]:8081",
        "LocalHost.:8081", "emulator.localhost:8081",
        "192.0.2.7:8081",  # forwarded by another program; an address cannot be rebound
    ],
)  # fmt: skip
def test_hosts_of_this_machine(host: str) -> None:
    assert not refusal(("Host", host))
    if not host.startswith("192"):
        assert not local(("Host", host))


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1.evil.example:8081", "notlocalhost:8081", "emulator:8081", "[::1", "",
    ],
)  # fmt: skip
def test_other_hosts(host: str) -> None:
    assert "may be the name of a web site" in refusal(("Host", host))
    assert "localhost or 127.0.0.1" in local(("Host", host))


def test_names_that_it_listens_on() -> None:
    assert not refusal(("Host", "box.corp.example:8081"), host="Box.Corp.example")
    assert refusal(("Host", "other.corp.example:8081"), host="Box.Corp.example")
    # Where other machines reach it, they may use its name in their network.
    assert not refusal(("Host", "emulator:8081"), host="0.0.0.0", open_to_others=True)
    assert refusal(("Host", "evil.example:8081"), host="0.0.0.0", open_to_others=True)


@pytest.mark.parametrize(
    "header",
    [
        ("Origin", "null"),
        ("Origin", "https://127.0.0.1:8081"),
        ("Origin", "http://127.0.0.1:3000"),
        ("Sec-Fetch-Site", "same-site"),
    ],
)
def test_pages_of_others_are_refused(header: Header) -> None:
    assert "a page of another site" in refusal(HERE, header)
    # A second header of the name does not hide the first, nor the other way round.
    good = (header[0], "http://127.0.0.1:8081" if header[0] == "Origin" else "same-origin")
    assert refusal(HERE, header, good)
    assert refusal(HERE, good, header)
    assert not refusal(HERE, good), "the control"


def test_programs_and_several_hosts() -> None:
    assert not refusal(HERE, ("Sec-Fetch-Site", "none"))
    assert not refusal()  # HTTP/1.0
    assert refusal(("Origin", "http://evil.example"))
    for headers in ((HERE, ("Host", "evil.example")), (("Host", "evil.example"), HERE)):
        assert refusal(*headers)
        assert local(*headers)
    assert local(), "a local page needs a host"


def test_a_local_page_is_for_clients_on_this_machine() -> None:
    for peer in ("127.8.8.8", "::1", "::ffff:127.0.0.1"):
        assert not local(HERE, peer=peer)
    for peer in ("192.168.0.5", "::ffff:8.8.8.8", "fe80::1", "0.0.0.0", ""):
        assert "for this machine only" in local(HERE, peer=peer), peer
    for name in ("Forwarded", "x-forwarded-for", "X-Forwarded-Host", "Via"):
        assert "a proxy" in local(HERE, (name, "for=8.8.8.8"))


def test_a_form_names_the_page_it_was_on() -> None:
    for headers in ((), (("Sec-Fetch-Site", "none"),)):
        assert "no page of the emulator" in local(HERE, *headers, method="POST")
    assert not local(HERE, ("Origin", "http://127.0.0.1:8081"), method="POST")
    assert not local(HERE, ("Sec-Fetch-Site", "same-origin"), method="POST")
