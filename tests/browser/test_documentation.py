"""The documentation as a site: it is built without a warning, and has what the pages have."""

from __future__ import annotations

import collections
import functools
import http.server
import os
import re
import subprocess
import sys
import threading
import tomllib
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

import userlock
from tests.browser.access import serious
from tests.browser.conftest import DEVICES, SCHEMES, OpenWindow
from tests.documents import ROOT, pages
from tools.site_pages import FROM_ELSEWHERE


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site as `make docs` does, into another folder."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "mkdocs", "build", "--strict"),
            *("--config-file", str(config), "--site-dir", str(site)),
        ],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that it was built into."""
    folder = tmp_path_factory.mktemp("built")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


#: What a reader would miss.
_PARTS = {"h2", "h3", "li", "pre", "tr", "img", "p", "a"}
#: A drawn timeline counts as the text that it was.
_TIMELINE = "timeline"


class _Parts(HTMLParser):
    """Counts the parts of an article, and gathers what else a page has the browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False
        self.counts: collections.Counter[str] = collections.Counter()
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "article":
            self.inside = True
        if tag != "a":
            self.fetched += [given.get("src") or "", given.get("href") or ""]
        made_by_the_theme = {"headerlink"} & set((given.get("class") or "").split())
        if given.get("class") == _TIMELINE:
            tag = "pre"
        if self.inside and tag in _PARTS and not made_by_the_theme:
            self.counts[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self.inside = False


def parts(html: str) -> _Parts:
    found = _Parts()
    found.feed(html)
    return found


def page_of(source: str) -> str:
    """Return the place of a repository's page in the site."""
    names = {source: page.replace(".md", ".html") for page, source in FROM_ELSEWHERE.items()}
    return names.get(source) or source.removeprefix("docs/").replace(".md", ".html")


def test_each_page_shows_the_same_as_the_code_host(built: Path) -> None:
    """MkDocs reads Markdown in its own way: a list or a table can get lost without a warning."""
    sources = [page for page in pages() if "/reference/" not in page]
    shown = {page: parts((built / page_of(page)).read_text()).counts for page in sources}
    render = MarkdownIt("commonmark").enable("table").render
    written = {
        page: parts(f"<article>{render((ROOT / page).read_text())}</article>").counts
        for page in sources
    }
    assert shown == written


def test_each_public_name_has_its_place(built: Path) -> None:
    inventory = (built / "objects.inv").read_bytes()
    listed = zlib.decompress(inventory.split(b"\n", 4)[4]).decode()
    places = {line.split(" ")[0] for line in listed.splitlines()}
    assert {f"userlock.{name}" for name in userlock.__all__} <= places


def test_each_page_names_version_licence_and_repository(built: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for page in built.rglob("*.html"):
        foot = page.read_text().rpartition("<footer")[2]
        for each in (userlock.__version__, project["license"], project["urls"]["Repository"]):
            assert each in foot, page


def test_nothing_is_fetched_from_elsewhere(built: Path) -> None:
    for page in built.rglob("*.html"):
        assert not [
            url for url in parts(page.read_text()).fetched if re.match(r"(https?:)?//", url)
        ]
    for sheet in built.rglob("*.css"):
        assert not re.search(r"url\(.?(https?:)?//|@import", sheet.read_text())


@pytest.fixture(scope="module")
def address(built: Path) -> Iterator[str]:
    """Serve the site for a browser."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(built))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_no_page_is_wider_than_a_phone(open_window: OpenWindow, address: str, built: Path) -> None:
    page = open_window(address, "phone")
    for file in sorted(built.rglob("*.html")):
        page.goto(f"/{file.relative_to(built)}")
        root = "document.documentElement"
        assert page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth"), file.name


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("device", DEVICES)
def test_a_page_keeps_nobody_out(
    open_window: OpenWindow, address: str, device: str, scheme: Any
) -> None:
    page = open_window(address, device, scheme)
    for name in ("index", "models", "fencing", "reference/locks"):
        page.goto(f"/{name}.html")
        assert serious(page) == [], name


@pytest.mark.parametrize("name", ["index", "fencing"])
def test_drawings_can_be_read_on_a_phone(open_window: OpenWindow, address: str, name: str) -> None:
    """They scroll within the page."""
    page = open_window(address, "phone")
    page.goto(f"/{name}.html")
    drawing = page.locator(".timeline").first
    assert drawing.evaluate("each => each.scrollWidth > each.clientWidth")
    assert drawing.get_attribute("tabindex") == "0"


def test_mistakes_are_errors(tmp_path: Path) -> None:
    """The negative control: a small site with the settings of the real one, which is built."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "home.md").write_text("# Home\n\n[gone](gone.md)\n[gone](#no-such-anchor)\n")
    (docs / "forgotten.md").write_text("# Forgotten\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(
        f"INHERIT: {ROOT}/mkdocs.yml\ndocs_dir: {docs}\nnav:\n  - Home: home.md\n"
        "hooks: []\nextra_css: []\nextra_javascript: []\n"
    )
    done = build(config, tmp_path / "site")
    assert done.returncode != 0
    for complaint in ("gone.md", "#no-such-anchor", "forgotten.md"):
        assert complaint in done.stdout + done.stderr
