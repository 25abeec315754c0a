"""The page docs/jobs.md, from the first step to the last, in a folder of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import Block, Page
from tests.system.desk import Desk
from tests.waiting import wait_until

PAGE = Page("docs/jobs.md")
SERVERS = PAGE.take("sh", "emulator start")
WHERE = PAGE.take("sh", "export")
SHOP = PAGE.take("python", "# shop.py")
SERVE = PAGE.take("sh", "flask")
BUY = PAGE.take("console", "ann/buy")
RECEIPT = PAGE.take("text", "to ann")
AWAY = PAGE.take("console", "outage")
BACK = PAGE.take("console", "relay --once")
LATE = PAGE.take("text", "to bob")
FAIL = PAGE.take("console", "cem/buy")
DEAD = PAGE.take("console", "list --dead")
REDRIVE = PAGE.take("console", "redrive --all")
AT_LAST = PAGE.take("text", "to cem")

pytestmark = pytest.mark.slow


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Provide terminals, and the servers of the page."""
    desk = Desk(tmp_path)
    desk.export(WHERE)
    start = SERVERS.text.replace("\\\n", " ").splitlines()[-1]
    with desk.goes_on(start, "8123", tmp_path / "servers.txt"):
        yield desk


def same(text: str) -> str:
    """Replace the parts that vary: keys and times, and the columns that they widen."""
    text = re.sub(r"\bag[A-Za-z0-9_-]{40,}", "KEY", text.strip())
    text = re.sub(r"\b\d[\d.]*m?s\b", "TIME", text)
    return re.sub(r" +", " ", text)


def test_the_page(desk: Desk) -> None:
    shop = desk.write(SHOP)
    log = desk.folder / "flask.txt"

    def printed(block: Block) -> None:
        wait_until(lambda: block.text in log.read_text(), seconds=20)

    with desk.goes_on(SERVE.text, "5001", log):
        desk.follow(BUY, same)
        printed(RECEIPT)
        desk.follow(AWAY, same)
        desk.follow(BACK, same)
        printed(LATE)
        desk.follow(FAIL, same)
        wait_until(lambda: "nobody pays less" in log.read_text(), seconds=20)
        desk.follow(DEAD, same)
    mended = re.sub(r"    if cents < 0:\n.*\n", "", shop.read_text())
    shop.write_text(mended.replace("@outbox.job(never_retry=[ValueError])", "@outbox.job"))
    with desk.goes_on(SERVE.text, "5001", log):
        desk.follow(REDRIVE, same)
        printed(AT_LAST)
