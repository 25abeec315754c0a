"""Random programs of unique values against a model: claims and entities agree at the end.

Creations, renames, archiving, activation, copies, deletes; in transactions and outside, by
`put_multi`, with lost replies, aborted commits and clients that give up.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import ndb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import userlock
import userlock_emulator
from userlock.constraints import Unique, caseless, put_as_copy
from userlock.constraints import claims as claim_rows
from userlock.constraints.audit import Audit
from userlock.constraints.claims import ClaimRow
from userlock.ndb import capabilities, commits
from userlock.stores import MemoryStore

OWNERS = ("ann", "bob")
TITLES = ("Summer", "SUMMER", "Winter", "Winter (Copy 1)")
NAMES = tuple(range(1, 5))


class Poster(userlock.UserModel):
    _lock_id_from_key = userlock.root_id
    _unique = (Unique("title", fold=caseless, unless="archived"),)
    title = ndb.StringProperty()
    archived = ndb.BooleanProperty(default=False)

    @classmethod
    def _get_kind(cls) -> str:
        return "PropertyPoster"


@dataclasses.dataclass(frozen=True)
class Step:
    """One operation. `fault`: of its commits; `lasting`: so that the client gives up."""

    what: str
    owner: str
    name: int
    title: str
    in_transaction: bool
    fault: str
    lasting: bool


STEPS = st.lists(
    st.builds(
        Step,
        what=st.sampled_from(["create", "rename", "archive", "activate", "delete", "copy", "swap"]),
        owner=st.sampled_from(OWNERS),
        name=st.sampled_from(NAMES),
        title=st.sampled_from(TITLES),
        in_transaction=st.booleans(),
        fault=st.sampled_from(["", "", "", "drop_reply", "abort", "unavailable"]),
        lasting=st.booleans(),
    ),
    min_size=5,
    max_size=25,
)

#: The stored state: title and whether it is archived, by key.
State = dict[Any, tuple[str, bool]]


@pytest.fixture(scope="module", params=["pessimistic", "optimistic"])
def server(request: pytest.FixtureRequest) -> Iterator[userlock_emulator.Emulator]:
    with userlock_emulator.start(concurrency_mode=request.param) as server:
        yield server


@pytest.fixture
def client(server: userlock_emulator.Emulator, monkeypatch: pytest.MonkeyPatch) -> ndb.Client:
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ndb._retry, "_DEFAULT_INITIAL_DELAY", 0.0001)
    monkeypatch.setattr(ndb._retry, "_DEFAULT_MAXIMUM_DELAY", 0.0001)
    monkeypatch.setattr(commits, "RESEND_DELAYS", (0.0,) * 3)
    monkeypatch.setattr(commits, "_CLAIM_PAUSES", (0.0,) * 5)
    client = ndb.Client()
    with client.context():
        capabilities.honours_base_version(client)
    return client


def key_of(step: Step) -> Any:
    return ndb.Key("PropertyOwner", step.owner, Poster, step.name)


def stored() -> State:
    found = Poster.query().fetch(use_cache=False, use_global_cache=False)
    return {each.key: (each.title, each.archived) for each in found}


def act(step: Step) -> None:
    """Carry a step out; one that has nothing to do does nothing."""
    key = key_of(step)
    entity = key.get(use_cache=False)
    if step.what == "create":
        if entity is None:
            Poster(key=key, title=step.title).put()
    elif step.what == "copy":
        if entity is None:
            put_as_copy(Poster(key=key, title=step.title), "title")
    elif entity is None:
        return
    elif step.what == "delete":
        key.delete()
    elif step.what == "swap":
        other = ndb.Key("PropertyOwner", step.owner, Poster, step.name % len(NAMES) + 1)
        two = other.get(use_cache=False)
        if two is not None:
            entity.title, two.title = two.title, entity.title
            ndb.put_multi([entity, two])
    else:
        if step.what == "rename":
            entity.title = step.title
        else:
            entity.archived = step.what == "archive"
        entity.put()


def after(state: State, step: Step) -> State | None:
    """Return the state after a step by the rules; None if it is refused."""
    key = key_of(step)
    new = dict(state)
    if step.what in ("create", "copy"):
        if key in state:
            return new
        new[key] = (step.title, False)
        for number in range(1, 10):
            if step.what == "create" or is_valid(new):
                break
            new[key] = (f"{step.title.removesuffix(' (Copy 1)')} (Copy {number})", False)
    elif key not in state:
        return new
    elif step.what == "delete":
        del new[key]
    elif step.what == "swap":
        other = ndb.Key("PropertyOwner", step.owner, Poster, step.name % len(NAMES) + 1)
        if other in state:
            new[key] = (state[other][0], state[key][1])
            new[other] = (state[key][0], state[other][1])
    elif step.what == "rename":
        new[key] = (step.title, state[key][1])
    else:
        new[key] = (state[key][0], step.what == "archive")
    return new if is_valid(new) else None


def is_valid(state: State) -> bool:
    taken = [(key.root(), caseless(title)) for key, (title, off) in state.items() if not off]
    return len(set(taken)) == len(taken)


def run(server: userlock_emulator.Emulator, step: Step, state: State) -> State:
    """Carry a step out, as a request of its own. Returns the stored state, which is checked."""
    expected = after(state, step)
    if step.fault:
        getattr(server.faults, step.fault)(None if step.lasting else 1, rpc="Commit")
    error: BaseException | None = None
    try:
        with userlock.global_lock(step.owner):
            if step.in_transaction:
                ndb.transaction(lambda: act(step))
            else:
                act(step)
    except Exception as raised:
        error = raised
    finally:
        server.faults.clear()
    now = stored()
    assert is_valid(now)
    if not step.fault:
        assert isinstance(error, userlock.NotUnique) is (expected is None), error
        assert error is None or expected is None, error
    if error is None:
        assert now == expected
    elif step.what != "swap" or step.in_transaction:  # each put of a `put_multi` counts for itself
        assert now in (state, expected)
    if isinstance(error, userlock.NotUnique) and step.what != "swap":
        assert now == state
    return now


@given(steps=STEPS)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_claims_and_entities_agree(
    server: userlock_emulator.Emulator, client: ndb.Client, steps: list[Step]
) -> None:
    server.reset()
    userlock.configure(service=userlock.LockService(MemoryStore()))
    state: State = {}
    for step in steps:
        with client.context():
            state = run(server, step, state)
            check_rows()
    with client.context():
        assert list(Audit().run(Poster)) == []


def check_rows() -> None:
    listed = {
        key: entity.key
        for entity in Poster.query().fetch(use_cache=False, use_global_cache=False)
        for key in entity.userlock_claims
    }
    rows = ClaimRow.query(namespace="").fetch(use_cache=False, use_global_cache=False)
    assert {row.key: row.holder for row in rows} == listed


@pytest.mark.parametrize("off", ["find_taken", "changes"])
def test_with_claims_off_they_do_not(
    server: userlock_emulator.Emulator,
    client: ndb.Client,
    monkeypatch: pytest.MonkeyPatch,
    off: str,
) -> None:
    """The negative control."""
    monkeypatch.setattr(claim_rows, off, lambda *_: {})
    steps = [Step("create", "ann", name, "Summer", False, "", False) for name in (1, 2)]
    server.reset()
    userlock.configure(service=userlock.LockService(MemoryStore()))
    with client.context(), contextlib.suppress(userlock.NotUnique):
        for step in steps:
            with userlock.global_lock("ann"):
                act(step)
    with client.context():
        assert not is_valid(stored())
