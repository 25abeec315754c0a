"""The key of each row tells apart what is different: tenants, outboxes, names, media types.

A row of the table makes one thing in two ways that differ in one dimension. Each leaves a trace of
its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.outbox.conftest import Mailbox
from userlock.constraints import Quota, Unique
from userlock.contrib.idempotent_requests.views import parameters_of
from userlock.deletion import Tree, delete_tree, find_deletion, unfinished
from userlock.idempotency import Flows, complete_by_relay
from userlock.ndb import owners
from userlock.ndb.owners import in_namespace
from userlock.outbox import Outbox
from userlock.testing import ManualClock

KEY = "payment-1234-of-november"
TENANTS = ("", "blue")


class Project(userlock.UserModel):
    _lock_id_from_key = userlock.root_id
    _unique = (Unique("title", per="owner"),)
    title = ndb.StringProperty()
    over_quota = ndb.BooleanProperty(default=False)


class Shop(userlock.Model):
    """A value that is unique in the kind."""

    _write_policy = userlock.WritePolicy.IN_TRANSACTION
    _unique = (Unique("title", per="all"),)
    title = ndb.StringProperty()


class House:
    """An app of several tenants, with all companions."""

    def __init__(self, client: ndb.Client, clock: ManualClock) -> None:
        self.client, self.clock = client, clock
        self.mailbox, self.other_mailbox = Mailbox(), Mailbox()
        self.outbox = Outbox(self.mailbox, client=client, clock=clock)
        self.other = Outbox(self.other_mailbox, name="other", client=client, clock=clock)
        self.flows = Flows(client=client, clock=clock)
        self.ran: list[Any] = []
        self.jobs: dict[str, Any] = {}
        for name in ("mail", "mail:weekly"):
            self.jobs[name] = self.outbox.job(name=name)(self._note(name))
        self.others_job = self.other.job(name="mail")(self._note("other's mail"))
        self.buy = self.flows.function(self._buy, name="buy")
        self.quota = Quota(
            "projects", self.outbox, limit=lambda owner: 1, select=self._projects, clock=clock
        )
        self.tree = Tree(Project, self.outbox, clock=clock)

    def _note(self, name: str) -> Callable[..., None]:
        def note(user_id: str, fact: str = "") -> None:
            self.ran.append((owners.current_namespace(), name, user_id, fact))

        return note

    def _buy(self, flow: Any, cents: int) -> int:
        self.ran.append((owners.current_namespace(), "bought", flow.user_id, cents))
        return cents

    def _projects(self, owner: str) -> list[Any]:
        query = Project.query(ancestor=ndb.Key("User", owner)).order(Project.key)
        found: list[Any] = query.fetch()
        return found

    def project(self, number: int, title: str) -> Any:
        return Project(parent=ndb.Key("User", "ann"), id=number, title=title)

    def run_all(self) -> None:
        self.mailbox.deliver_all()
        self.other_mailbox.deliver_all()


@pytest.fixture
def house(
    ndb_client: ndb.Client, service: userlock.LockService, clock: ManualClock
) -> Iterator[House]:
    userlock.configure(service=service)
    house = House(ndb_client, clock)
    with ndb_client.context():
        yield house
    house.outbox.close()
    house.other.close()


def staged(house: House, job: Any, namespace: str = "", **options: Any) -> Any:
    with in_namespace(namespace):
        return ndb.transaction(lambda: job.stage("ann", **options))


def jobs_of_two_tenants(house: House) -> None:
    for tenant in TENANTS:
        assert not staged(house, house.jobs["mail"], tenant, dedupe="once").duplicate
    house.run_all()
    assert sorted(house.ran) == [(tenant, "mail", "ann", "") for tenant in TENANTS]


def jobs_of_two_outboxes(house: House) -> None:
    for job in (house.jobs["mail"], house.others_job):
        assert not staged(house, job, dedupe="once").duplicate
    house.mailbox.messages.clear()
    house.other_mailbox.messages.clear()
    house.clock.advance(120)
    house.outbox.relay()
    house.mailbox.deliver_all()
    assert house.ran == [("", "mail", "ann", "")], "each relay wakes for its own"
    house.other.relay()
    house.other_mailbox.deliver_all()
    assert house.ran[1:] == [("", "other's mail", "ann", "")]


def job_of_another_outbox(house: House) -> None:
    key = staged(house, house.others_job).key
    house.outbox.run(key)
    assert not house.ran, "its function is the other's"
    house.other.run(key)
    assert len(house.ran) == 1


def jobs_whose_names_join_alike(house: House) -> None:
    assert not staged(house, house.jobs["mail"], dedupe="weekly:digest").duplicate
    assert not staged(house, house.jobs["mail:weekly"], dedupe="digest").duplicate


def requests_of_two_tenants(house: House) -> None:
    for tenant in TENANTS:
        with in_namespace(tenant):
            assert house.buy("ann", KEY, cents=5) == 5
    assert [each[0] for each in house.ran] == list(TENANTS)


def completion_for_two_tenants(house: House) -> None:
    complete_by_relay(house.flows, house.outbox)
    failing = True

    @house.flows.function(name="sell")
    def sell(flow: Any) -> int:
        if failing:
            raise OSError
        return flow.phase("sold", lambda: len(house._projects("ann")))  # type: ignore[no-any-return]

    for tenant in TENANTS:
        with in_namespace(tenant):
            with userlock.global_lock("ann"):
                house.project(1, tenant).put()
            with contextlib.suppress(OSError):
                sell("ann", KEY)
    failing = False
    house.clock.advance(301)
    house.outbox.relay()
    house.run_all()
    for tenant in TENANTS:
        with in_namespace(tenant):
            assert sell("ann", KEY) == 1, "completed where it was begun"


def quotas_of_two_tenants(house: House) -> None:
    for tenant in TENANTS:
        with in_namespace(tenant), userlock.global_lock("ann"):

            def create() -> None:
                house.project(1, "a").put()
                house.project(2, "b").put()
                house.quota.stamp("ann")

            ndb.transaction(create)
    house.mailbox.messages.clear()
    house.clock.advance(400)
    assert house.quota.check_recent().stamped == 2
    house.run_all()
    for tenant in TENANTS:
        with in_namespace(tenant):
            flags = [each.over_quota for each in house._projects("ann")]
            assert flags == [False, True], tenant


def deletions_of_two_tenants(house: House) -> None:
    deletions = {}
    for tenant in TENANTS:
        with in_namespace(tenant), userlock.global_lock("ann"):
            project = house.project(1, "a")
            project.put()
            deletions[tenant] = (delete_tree(project).id, project.key)
    assert len(list(unfinished())) == 2
    house.run_all()
    for tenant, (id_, key) in deletions.items():
        with in_namespace(tenant):
            found = find_deletion("ann", id_)
            assert found is not None
            assert found.ended_at
            assert key.get() is None
    assert not list(unfinished())


def deletion_from_another_namespace(house: House) -> None:
    with in_namespace("blue"), userlock.global_lock("ann"):
        project = house.project(1, "a")
        project.put()
    with userlock.global_lock("ann"):
        id_ = delete_tree(project).id
    house.run_all()
    assert find_deletion("ann", id_) is None
    with in_namespace("blue"):
        found = find_deletion("ann", id_)
        assert found is not None
        assert found.ended_at


def names_of_two_tenants(house: House) -> None:
    for tenant in TENANTS:
        with in_namespace(tenant), userlock.global_lock("ann"):
            house.project(1, "Winter").put()
            ndb.transaction(lambda: Shop(id=1, title="Winter").put())
    with in_namespace("blue"), userlock.global_lock("ann"), pytest.raises(userlock.NotUnique):
        house.project(2, "Winter").put()
    with in_namespace("blue"), pytest.raises(userlock.NotUnique):
        ndb.transaction(lambda: Shop(id=2, title="Winter").put())


def bodies_that_read_alike(house: House) -> None:
    json = parameters_of(b"", "application/json", b'"6162"')
    text = parameters_of(b"", "text/plain", b"ab")
    other = parameters_of(b"", "text/csv", b"ab")
    assert len({json.digest, text.digest, other.digest}) == 3


TABLE = [
    jobs_of_two_tenants,
    jobs_of_two_outboxes,
    job_of_another_outbox,
    jobs_whose_names_join_alike,
    requests_of_two_tenants,
    completion_for_two_tenants,
    quotas_of_two_tenants,
    deletions_of_two_tenants,
    deletion_from_another_namespace,
    names_of_two_tenants,
    bodies_that_read_alike,
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.__name__)
def test_each_has_a_row_of_its_own(house: House, row: Callable[[House], None]) -> None:
    row(house)


@pytest.mark.parametrize(
    "row",
    [jobs_of_two_tenants, requests_of_two_tenants, quotas_of_two_tenants],
    ids=lambda row: row.__name__,
)
def test_the_control_owners_without_their_namespace(
    house: House, row: Callable[[House], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "current_namespace", lambda: "")
    with pytest.raises((AssertionError, userlock.UserLockError)):
        row(house)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b:c"), ("a:b", "c")),
        (("a", ""), ("", "a")),
        (("a",), ("a", None)),
        (("1",), (1,)),
        (('a","b',), ("a", "b")),
        (("x" * 2_000, "a"), ("x" * 2_000 + "a",)),
    ],
)
def test_parts_that_join_alike(one: tuple[object, ...], other: tuple[object, ...]) -> None:
    assert owners.joined(*one) != owners.joined(*other)
