"""`userlock unique check` finds planted faults, and `repair` mends them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import datastore as plain_datastore
from google.cloud import ndb

import userlock
from tests.contract.constraints.models import (
    Campaign,
    Owner,
    Seat,
    check_claims,
    claims,
    put,
)
from tests.unit.cli.terminal import Terminal, in_thread
from userlock.constraints import Unique, audit, caseless
from userlock.constraints import claims as claim_rows
from userlock.constraints.audit import Audit, Problem, constrained_models
from userlock.constraints.claims import ClaimRow
from userlock.lock.configuration import defaults
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, allow_unlocked
from userlock_emulator import Emulator

pytestmark = pytest.mark.usefixtures("context", "quick_retries")


@contextlib.contextmanager
def another_program(model: Any = Campaign) -> Iterator[None]:
    """Let puts in the block be those of a program without constraints."""
    with pytest.MonkeyPatch.context() as patch, allow_unlocked("another program"):
        patch.setattr(model, "_userlock_rows", None)
        yield


def raw(title: str) -> Any:
    """Store a campaign as another program does, without claims."""
    key = ndb.Key(Owner, "ann", Campaign, f"raw-{title}")
    with another_program():
        Campaign(key=key, title=title).put()
    return key


def changed(entity: Any, **values: Any) -> None:
    """Change a campaign as another program does, whose claims stay."""

    def change() -> None:
        found = entity.key.get()
        found.populate(**values)
        found.put()

    with another_program():
        ndb.transaction(change)


def remove_row(entity: Any) -> None:
    """Remove the rows of an entity, as a hand in the console might."""
    ndb.transaction(lambda: [key.delete() for key in entity.userlock_claims])


def plant_void_rows() -> None:
    one = put("Summer")
    with userlock.global_lock("ann"):
        one.key.delete()
    holders = [one.key, put("Winter").key, None]

    def plant() -> None:
        for number, holder in enumerate(holders):
            ClaimRow(id=f"void-{number}", holder=holder, constraint="TestedCampaign.old").put()

    ndb.transaction(plant)


class Voucher(userlock.Model):
    _write_policy = userlock.WritePolicy.WRITE_ONCE
    _unique = (Unique("code", per="all"),)
    code = ndb.StringProperty()


def audited(*, repair: bool, model: Any = Campaign) -> list[Problem]:
    return list(Audit(repair=repair).run(model))


def kinds(problems: list[Problem]) -> list[str]:
    return sorted(problem.what for problem in problems)


def test_what_is_in_order_has_no_problems() -> None:
    put("Summer")
    put("Winter", owner="bob")
    put("Summer", archived=True)
    work = Audit()
    assert list(work.run(Campaign)) == []
    assert (work.entities, work.rows) == (3, 2)


def test_one_that_is_stopped_says_so() -> None:
    put("Summer")
    work = Audit(stopped=lambda: True)
    assert list(work.run(Campaign)) == []
    assert (work.entities, work.interrupted) == (0, True)


def test_a_policy_that_allows_no_second_put_does_not_prevent_a_repair() -> None:
    voucher = Voucher(code="A")
    voucher.put()
    remove_row(voucher)
    assert [each.repaired for each in audited(repair=True, model=Voucher)] == [True]
    assert audited(repair=False, model=Voucher) == []


def test_unclaimed_entities() -> None:
    key = raw("Summer")
    (problem,) = audited(repair=False)
    assert problem == Problem("unclaimed", key, "TestedCampaign.title", "title 'Summer'")
    ndb.get_context().clear_cache()
    assert audited(repair=True)[0].repaired
    assert ndb.get_context().cache == {}, "entities stay in memory"
    with pytest.raises(userlock.NotUnique):
        put("summer")


#: What was planted, and the problems that are found.
FAULTS: dict[str, tuple[Callable[[], object], list[str]]] = {
    "unclaimed": (lambda: raw("Summer"), ["unclaimed"]),
    "a row that is gone": (lambda: remove_row(put("Summer")), ["unclaimed"]),
    "rows without an entity": (plant_void_rows, ["void"] * 3),
    "another value": (lambda: changed(put("Summer"), title="Winter"), ["unclaimed"]),
    "archived": (lambda: changed(put("Summer"), archived=True), ["outdated"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found_and_repaired(fault: str) -> None:
    plant, expected = FAULTS[fault]
    plant()
    before = claims()
    assert kinds(audited(repair=False)) == expected
    assert claims() == before, "a check changes nothing"
    problems = audited(repair=True)
    assert kinds(problems) == expected
    assert all(problem.repaired for problem in problems)
    assert audited(repair=False) == []
    check_claims(Campaign)


def test_duplicates_are_reported_and_never_renamed() -> None:
    first, second, third = put("Summer").key, raw("SUMMER"), raw("winter")
    raw("WINTER")
    for repair in (False, True):
        problems = audited(repair=repair)
        assert kinds(problems) == ["duplicate", "duplicate", "unclaimed"]
        (one,) = (each for each in problems if each.key == second)
        assert (one.what, one.holder, one.repaired) == ("duplicate", first, False)
    assert kinds(audited(repair=False)) == ["duplicate"] * 2
    assert second.get(use_cache=False).title == "SUMMER"
    assert third.get(use_cache=False).title == "winter"
    check_claims(Campaign)


def test_beside_a_duplicate_the_free_values_are_claimed() -> None:
    for code in "xy":  # of one place
        with another_program(Seat):
            Seat(id=code, row="A", number=1, code=code).put()
    assert kinds(audited(repair=False, model=Seat)) == ["duplicate"] + ["unclaimed"] * 3
    problems = audited(repair=True, model=Seat)
    assert [each.what for each in problems if not each.repaired] == ["duplicate"]
    assert kinds(audited(repair=False, model=Seat)) == ["duplicate"]
    with pytest.raises(userlock.NotUnique):
        Seat(id="z", row="A", number=2, code="y").put()
    check_claims(Seat)


def test_more_unclaimed_ones_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_MOST_REMEMBERED", 1)
    raw("a"), raw("b")
    work = Audit()
    list(work.run(Campaign))
    assert not work.all_remembered


def test_one_that_cannot_be_read_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    raw("bad"), raw("good")

    def fold(text: str) -> str:
        if text == "bad":
            raise ValueError("a \x1b[2J title")
        return caseless(text)

    monkeypatch.setattr(Campaign._unique[0], "_fold", fold)
    problems = audited(repair=True)
    assert kinds(problems) == ["failed", "unclaimed"]
    (failed,) = [problem for problem in problems if problem.what == "failed"]
    assert "title" in failed.error
    assert "\x1b" not in failed.error


def test_a_row_in_conflict_does_not_hide_the_others(datastore: Emulator) -> None:
    plant_void_rows()
    datastore.faults.abort(4, kind="UserLockClaim")  # each attempt at the first
    problems = audited(repair=True)
    assert [each.what for each in problems] == ["failed", "void", "void"]
    assert problems[0].error.startswith("contention")


def test_a_busy_owner_is_waited_for_once_and_reported(
    service: userlock.LockService, clock: ManualClock
) -> None:
    """Or one owner with many entities would hold up the audit of all others."""
    for name in ("Summer", "Autumn", "Winter"):
        raw(name)
    lease = service.acquire("ann", lock_timeout=60)
    before = clock.now()
    problems = list(Audit(repair=True, wait_timeout=10).run(Campaign))
    assert 9 < clock.now() - before < 12
    assert [(each.what, each.repaired) for each in problems] == [("failed", False)] * 3
    assert "was not free after" in problems[0].error
    service.release(lease)
    with userlock.global_lock("ann"):
        problems = audited(repair=True)
        assert [each.repaired for each in problems] == [True] * 3, "the lock is held here"


def test_it_goes_on_while_others_write(ndb_client: ndb.Client, datastore: Emulator) -> None:
    """A put between the first look and the second one is no problem."""
    put("Summer")
    work = Audit()
    look_again = work._look_again

    def renamed_meanwhile(entity: Any) -> Any:
        with userlock.global_lock("ann"):
            found = entity.key.get(use_cache=False)
            found.title = "Winter"
            found.put()
        return look_again(entity)

    work._look_again = renamed_meanwhile  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "_problems_of", _first_wrong(audit._problems_of))
        assert list(work.run(Campaign)) == []
    check_claims(Campaign)


def _first_wrong(problems_of: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
    first = iter([["a problem"]])
    return lambda entities: next(first, None) or problems_of(entities)


def test_the_models() -> None:
    assert constrained_models(["TestedSeat", "TestedCampaign"]) == [Campaign, Seat]
    with pytest.raises(userlock.ConfigurationError, match="TestedCampaign"):
        constrained_models(["Nothing"])


# --- the command line -------------------------------------------------------------------------


@pytest.fixture
def terminal(
    store: MemoryStore, clock: ManualClock, ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch
) -> Terminal:
    """Provide a command line that names the app's client."""
    app = SimpleNamespace(client=ndb_client, make=lambda: ndb_client, Model=Campaign)
    monkeypatch.setitem(sys.modules, "campaigns_app", app)
    terminal = Terminal(store, clock)
    terminal.environ["USERLOCK_CLIENT"] = "campaigns_app:client"
    return terminal


def test_check_and_repair(terminal: Terminal) -> None:
    put("Winter")
    raw("Summer"), raw("WINTER")
    outcome = terminal.run("unique", "check", "TestedCampaign")
    assert outcome.code == 1
    lines = outcome.out.splitlines()
    assert any(line.startswith("unclaimed: Key(") for line in lines)
    assert any(line.startswith("duplicate: Key(") and ", which Key(" in line for line in lines)
    assert lines[-1] == "3 entities, 1 claim, 2 problems"
    outcome = terminal.run("unique", "repair", "TestedCampaign")
    assert (outcome.code, outcome.out.splitlines()[-1]) == (
        1,
        "3 entities, 2 claims, 1 repaired, 1 problem",
    )
    with userlock.global_lock("ann"):
        ndb.Key(Owner, "ann", Campaign, "raw-WINTER").delete()
    outcome = terminal.run("unique", "check", "--app", "campaigns_app:make", "TestedCampaign")
    assert (outcome.code, outcome.out) == (0, "2 entities, 2 claims, no problems\n")


def test_a_repair_without_a_store_is_refused_at_once(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw("Summer")
    monkeypatch.setattr(defaults, "service", None)
    terminal.environ["USERLOCK_STORE"] = ""
    outcome = terminal.run("unique", "repair", "TestedCampaign")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.endswith("To fix it: pass --store, or set USERLOCK_STORE\n")


def test_outside_of_the_tests_own_context(terminal: Terminal) -> None:
    """As the command runs: keys can be shown in an ndb context only."""
    shown = repr(raw("Summer"))
    outcome = in_thread(lambda: terminal.run("unique", "check", "--json", "TestedCampaign"))
    problem = {
        "what": "unclaimed",
        "key": shown,
        "constraint": "TestedCampaign.title",
        "value": "title 'Summer'",
        "holder": "",
        "error": "",
        "repaired": False,
    }
    assert outcome.document == {
        "entities": 1,
        "rows": 0,
        "problems": [problem],
        "complete": True,
        "interrupted": False,
    }
    outcome = in_thread(lambda: terminal.run("unique", "repair", "--json", "TestedCampaign"))
    assert [each["repaired"] for each in outcome.document["problems"]] == [True]


def test_rows_of_another_program(terminal: Terminal, ndb_client: ndb.Client) -> None:
    """A malformed row stops nothing; rows of other namespaces are not looked at."""
    put("Summer")
    plain = plain_datastore.Client(project=ndb_client.project)
    row = plain_datastore.Entity(plain.key(claim_rows.KIND, "foreign"))
    row.update(holder="Summer", constraint="TestedCampaign.title")
    unreadable = plain_datastore.Entity(plain.key(claim_rows.KIND, "unreadable"))
    unreadable.update(constraint=["TestedCampaign.title", "TestedCampaign.old"])
    entities = [plain_datastore.Entity(plain.key("TestedCampaign", each)) for each in "ab"]
    entities[0].update(title=["Spring", "Autumn"])
    entities[1].update(title="Winter", userlock_claims="Winter")
    plain.put_multi([row, unreadable, *entities])
    outcome = terminal.run("unique", "check", "TestedCampaign")
    assert outcome.out.splitlines()[-1] == "3 entities, 3 claims, 4 problems"
    terminal.run("unique", "repair", "TestedCampaign")
    outcome = terminal.run("unique", "check", "TestedCampaign")
    assert [line.partition(":")[0] for line in outcome.out.splitlines()[:-1]] == ["failed"] * 2
    outcome = terminal.run("unique", "check", "TestedCampaign", "--namespace", "elsewhere")
    assert outcome.out == "0 entities, 0 claims, no problems\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--app", "campaigns_app:Model"], "is no"),
        (["TestedCampain"], "TestedCampaign"),
        ([], "USERLOCK_CLIENT"),
    ],
)
def test_arguments_of_no_use(terminal: Terminal, arguments: list[str], text: str) -> None:
    if not arguments:
        del terminal.environ["USERLOCK_CLIENT"]
    outcome = in_thread(lambda: terminal.run("unique", "check", "TestedCampaign", *arguments))
    assert outcome.code == 2
    assert text in outcome.err


def test_hidden_values(terminal: Terminal) -> None:
    raw("Summer")
    terminal.environ["USERLOCK_SHOW_IDS"] = "masked"
    outcome = terminal.run("unique", "check", "TestedCampaign")
    assert "Summer" not in outcome.out
