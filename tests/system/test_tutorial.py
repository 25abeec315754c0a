"""The page docs/tutorial.md, from the first step to the last, in a folder of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import userlock
from tests.documents import Page
from tests.system.desk import Desk
from tests.waiting import wait_until

PAGE = Page("docs/tutorial.md")
#: Run by `tests/system/test_installed.py`.
INSTALL = PAGE.take("sh", "pip install")
SERVERS = PAGE.take("sh", "emulator start")
WHERE = PAGE.take("sh", "export")
LOSE = PAGE.take("python", "# lose.py")
LOST = PAGE.take("console", "lose.py")
POINTS = PAGE.take("python", "# points.py")
SERVE = PAGE.take("sh", "flask")
EXERCISES = PAGE.take("console", "/exercise")
FORGOTTEN = PAGE.take("console", "/bonus")
VIOLATION = PAGE.take("text", "PutWithoutLock")
FIXED = PAGE.take("python", "def bonus")
BONUS = PAGE.take("console", "/bonus")
ESSAY = PAGE.take("console", "/essay")
BROKEN = PAGE.take("console", "userlock break")
REFUSED = PAGE.take("console", "essay.txt")

pytestmark = pytest.mark.slow


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Provide terminals, and the two servers of the page."""
    desk = Desk(tmp_path)
    desk.export(WHERE)
    *_, start = SERVERS.text.splitlines()
    with desk.goes_on(start, "11211", tmp_path / "servers.txt"):
        yield desk


def same(text: str) -> str:
    """Remove the parts that vary: processes and times, and curl's missing line ends."""
    text = re.sub(r"[\w.-]+/\d+", "PROCESS", text.strip())
    return re.sub(r"(since|lease) .*", r"\1", text)


def test_lose_an_update(desk: Desk) -> None:
    desk.write(LOSE)
    desk.follow(LOST, same)


def test_the_handler(desk: Desk) -> None:
    points = desk.write(POINTS)
    log = desk.folder / "flask.txt"
    with desk.goes_on(SERVE.text, "5001", log):
        desk.follow(EXERCISES, same)
        desk.follow(FORGOTTEN, same)
    output = log.read_text().replace(str(points), "/home/ann/points/points.py")
    assert VIOLATION.text in output

    one_handler = r'@app\.post\("/users/<user_id>/bonus"\)\n(?:.+\n)+'
    points.write_text(re.sub(one_handler, lambda _: FIXED.text, points.read_text()))
    fixed = points.read_text()
    assert fixed.count("userlock.global_lock") == 3
    # Read for as long as this test determines.
    waits = "while not os.path.exists('essay-read'): time.sleep(0.01)"
    assert "time.sleep(30)" in fixed
    points.write_text("import os\n" + fixed.replace("time.sleep(30)", waits))
    with desk.goes_on(SERVE.text, "5001", log):
        desk.follow(BONUS, same)
        (essay, _), (holder, shown) = ESSAY.commands()
        desk.run(essay)
        service = userlock.LockService.from_url(desk.env["USERLOCK_STORE"])
        wait_until(lambda: service.holder("ann"), seconds=60)
        assert same(desk.run(holder)) == same(shown)
        desk.follow(BROKEN, same)
        (desk.folder / "essay-read").touch()
        answer = desk.folder / "essay.txt"
        wait_until(lambda: answer.read_text().endswith("}"), seconds=60)
        desk.follow(REFUSED, same)
