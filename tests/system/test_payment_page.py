"""The page docs/payment.md, from the first step to the last, in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.documents import ROOT, Page
from tests.system.desk import Desk
from tests.system.test_tutorial import SERVERS, WHERE

PAGE = Page("docs/payment.md")
PROVIDER = PAGE.take("sh", "provider.py")
BAKERY = PAGE.take("python", "# bakery.py")
SERVE = PAGE.take("sh", "flask")
BUY = PAGE.take("sh", "# buy.sh")
TWICE = PAGE.take("console", "ann-monday")
OTHER = PAGE.take("console", "cake")
LOST = PAGE.take("console", "loses its reply")
DECLINED = PAGE.take("console", "declines")
DOWN = PAGE.take("console", "echo down")
KILLED = PAGE.take("console", "echo charged")
AGAIN = PAGE.take("console", "charge-4")

pytestmark = pytest.mark.slow


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Provide terminals, the servers and the files of the page."""
    desk = Desk(tmp_path)
    desk.export(WHERE)
    desk.run(f"CLONE='{ROOT}'; {PROVIDER.text}")
    desk.write(BAKERY)
    desk.write(BUY)
    with desk.goes_on(SERVERS.text.splitlines()[-1], "8081", tmp_path / "servers.txt"):
        yield desk


@contextmanager
def serves(desk: Desk) -> Iterator[None]:
    with desk.goes_on(SERVE.text, "5001", desk.folder / "flask.txt"):
        yield


def count(desk: Desk, what: str) -> int:
    return int(desk.run(what))


def test_the_page(desk: Desk) -> None:
    with serves(desk):
        for block in (TWICE, OTHER, LOST, DECLINED, DOWN, KILLED):
            desk.follow(block)
    with serves(desk):
        desk.follow(AGAIN)


@pytest.mark.parametrize(("point", "charges", "asked"), [("ordered", 0, 1), ("stored", 1, 1)])
def test_the_other_rows_of_the_table(desk: Desk, point: str, charges: int, asked: int) -> None:
    send = "sh buy.sh ann-saturday-17c5d09e84 bread"
    with serves(desk):
        desk.run(f"echo {point} >die; mkdir charges; touch asked.txt")
        assert desk.run(send) == " 000\n"
        assert count(desk, "ls charges | wc -l") == charges
    with serves(desk):
        for _ in range(2):
            assert desk.run(send) == '{"item":"bread","charge":"charge-1"} 201\n'
    assert count(desk, "ls charges | wc -l") == 1
    assert count(desk, "cat asked.txt | wc -l") == asked


def test_a_provider_without_keys_charges_twice(desk: Desk) -> None:
    """The negative control: the same crash, and each call has a key of its own."""
    bakery = desk.folder / "bakery.py"
    code = bakery.read_text().replace("charge_card(key),", "charge_card(os.urandom(9).hex()),")
    bakery.write_text(f"import os\n{code}")
    send = "sh buy.sh ann-sunday-6ef2b8310d bread"
    with serves(desk):
        desk.run("echo charged >die")
        assert desk.run(send) == " 000\n"
    with serves(desk):
        assert '"charge-2"' in desk.run(send)
    assert count(desk, "ls charges | wc -l") == 2
