"""No untested code in the documentation: README.md, docs/ and the other pages."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import tomllib

import pytest

from tests.documents import ROOT, Block, Page, pages
from tools.site_pages import FROM_ELSEWHERE

#: The test modules, each of which names the page and takes some of its blocks.
RUN_BY = {
    "README.md": "tests.contract.test_readme",
    "docs/adoption.md": "tests.contract.pytest_plugin.test_adoption",
    "docs/async.md": "tests.contract.web.test_async_page",
    "docs/benchmarks.md": "tests.contract.test_readme",
    "docs/cli.md": "tests.unit.cli.test_docs",
    "docs/cookbook.md": (
        "tests.contract.cookbook.test_put tests.contract.cookbook.test_upload "
        "tests.contract.cookbook.test_jobs tests.contract.cookbook.test_apology "
        "tests.contract.cookbook.test_long_work tests.contract.cookbook.test_leader"
    ),
    "docs/deletions.md": "tests.contract.deletion.test_deletions_page",
    "docs/deploy.md": "tests.contract.test_deploy_page",
    "docs/operate.md": "tests.contract.test_deploy_page",
    "docs/migrate.md": "tests.contract.test_deploy_page",
    "emulator/README.md": "tests.contract.emulator.test_docs",
    "docs/fencing.md": "tests.unit.lock.test_fencing_page tests.contract.ndb.test_fencing_page",
    "docs/jobs.md": "tests.system.test_jobs_tutorial",
    "docs/models.md": "tests.unit.ndb.test_models_page",
    "docs/names.md": (
        "tests.contract.constraints.test_names_page tests.contract.cookbook.test_names_and_copies"
    ),
    "docs/outbox.md": "tests.contract.outbox.engines.test_engines_page",
    "docs/payment.md": "tests.system.test_payment_page",
    "docs/reference/errors.md": "tests.unit.docs.test_reference",
    "docs/requests.md": "tests.contract.idempotency.test_requests_page",
    "docs/testing.md": "tests.contract.pytest_plugin.test_adoption",
    "docs/transactions.md": "tests.contract.test_readme",
    "docs/tutorial.md": "tests.system.test_tutorial",
    "docs/web.md": "tests.contract.web.test_docs",
}

#: Untested blocks, by page and first line, with the reason.
NOT_RUN: dict[tuple[str, str], str] = {}

#: Pictures and program output: nothing to run.
NO_CODE = {"text"}


@pytest.fixture(autouse=True)
def _kinds_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset ndb's kinds: the inspected modules have models of kinds that other tests have, too.

    Those of the library and of the sample app stay: modules are imported once.
    """
    importlib.import_module("sample_app.app")


def first_line(block: Block) -> str:
    return block.text.split("\n", 1)[0]


def only_make(block: Block) -> bool:
    """Return whether the block only lists make targets."""
    return block.language == "sh" and all(
        line.startswith("make ") for line in block.text.splitlines()
    )


def left_over(page: str) -> list[Block]:
    """Return the blocks of a page that no test runs."""
    left = Page(page).blocks
    for module in RUN_BY.get(page, "").split():
        names = vars(importlib.import_module(module)).values()
        (found,) = (each for each in names if isinstance(each, Page) and each.path == page)
        left = [block for block in left if block in found.left()]
    return [
        block
        for block in left
        if block.language not in NO_CODE
        and not only_make(block)
        and (page, first_line(block)) not in NOT_RUN
    ]


def test_each_block_is_run() -> None:
    left = [f"{page}: {block}" for page in pages() for block in left_over(page)]
    assert not left, (
        "blocks that no test runs. Take them in the page's module of tests (see RUN_BY and "
        "tests/documents.py), or say in NOT_RUN why they cannot be run"
    )


def test_each_page_is_in_the_site() -> None:
    elsewhere = {source: name for name, source in FROM_ELSEWHERE.items()}
    listed = (ROOT / "mkdocs.yml").read_text()
    names = [elsewhere.get(page) or page.removeprefix("docs/") for page in pages()]
    missing = [name for name in names if f": {name}\n" not in listed]
    assert missing == [], "add it to `nav` in mkdocs.yml (and to tools/site_pages.py)"


BLOCKS = [block for page in pages() for block in Page(page).blocks]


def test_each_block_says_its_language() -> None:
    assert [str(block) for block in BLOCKS if not block.language] == []


def test_a_command_is_not_taken_for_a_picture() -> None:
    pictures = [block for block in BLOCKS if block.language in NO_CODE]
    commands = r"^(\$|make|python|import|curl) "
    assert [str(block) for block in pictures if re.search(commands, block.text, re.M)] == []


def test_data_can_be_read() -> None:
    readers = {"json": json.loads, "toml": tomllib.loads}
    for block in BLOCKS:
        if block.language in readers:
            readers[block.language](block.text)


def test_make_knows_the_targets() -> None:
    lines = {line for block in BLOCKS if block.language == "sh" for line in block.text.splitlines()}
    targets = sorted(line.split("#")[0].strip() for line in lines if line.startswith("make "))
    script = "\n".join(each.replace("make ", "make --dry-run ", 1) for each in targets)
    done = subprocess.run(
        ["sh", "-e", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_lists_are_of_what_there_is() -> None:
    assert set(RUN_BY) <= set(pages())
    there = {(page, first_line(block)) for page in pages() for block in Page(page).blocks}
    assert set(NOT_RUN) <= there


def test_an_untested_block_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.delitem(RUN_BY, "docs/web.md")
    assert [block.language for block in left_over("docs/web.md")].count("python") >= 1
