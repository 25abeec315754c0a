"""The viewer's page of transactions, in each concurrency mode: locks, waiters, a stuck one."""

from __future__ import annotations

import re
from collections.abc import Iterator

import grpc
import pytest

import userlock_emulator
from tests.contract.emulator.conftest import Stub
from tests.contract.emulator.viewing import Browser
from tests.unit.emulator.builders import PROJECT, entity, key
from tests.unit.emulator.waiting import Started
from tests.waiting import wait_until
from userlock_emulator.datastore.protos import (
    BeginTransactionRequest,
    CommitRequest,
    LookupRequest,
    Message,
    Mutation,
)

TASK = key("Task", "<stuck>")
OPTIMISTIC = ("optimistic", "optimistic-with-entity-groups")


class Stage:
    """An emulator with a transaction that has read an entity."""

    def __init__(self, mode: str) -> None:
        self.emulator = userlock_emulator.start(project=PROJECT, concurrency_mode=mode, edit=True)
        self.stub = Stub(self.emulator.host)
        self.browser = Browser(self.emulator.host)
        self.stub.call("Commit", self.commit())
        begun = self.stub.call("BeginTransaction", BeginTransactionRequest(project_id=PROJECT))
        self.transaction: bytes = begun.transaction
        read = LookupRequest(project_id=PROJECT, keys=[TASK])
        read.read_options.transaction = self.transaction
        self.stub.call("Lookup", read)

    def commit(self, n: int = 1) -> Message:
        return CommitRequest(
            project_id=PROJECT,
            mode=CommitRequest.NON_TRANSACTIONAL,
            mutations=[Mutation(upsert=entity(TASK, n=n))],
        )

    def stop(self) -> None:
        self.stub.close()
        self.emulator.stop()


@pytest.fixture
def pessimistic() -> Iterator[Stage]:
    stage = Stage("pessimistic")
    yield stage
    stage.stop()


def test_a_stuck_transaction_is_seen_with_its_waiters_and_rolled_back(pessimistic: Stage) -> None:
    stage = pessimistic
    writer = Started(lambda: stage.stub.call("Commit", stage.commit(2)))
    wait_until(lambda: stage.emulator.waiting)

    document = stage.browser.get("transactions.json").document
    (transaction,) = document["transactions"]
    assert document["mode"] == "pessimistic"
    assert transaction["locks"]["shared"][0]["path"] == [{"kind": "Task", "name": "<stuck>"}]
    assert transaction["locks"]["total"] == 1
    assert transaction["blocks"] == ["a commit outside transactions"]
    assert re.search(r"^grpc-python.* at port \d+$", transaction["client"])
    assert 0 <= transaction["ageSeconds"] < 60
    (waiting,) = document["waiting"]
    assert waiting["behind"] == [transaction["name"]]
    assert waiting["exclusive"]

    page = stage.browser.get("transactions").page
    for text in (
        transaction["name"], "Task, '<stuck>'", "shared", "1 request waits for this transaction",
        "Requests that wait", "grpc-python",
    ):  # fmt: skip
        assert text in page.text
    assert not writer.done
    answer = stage.browser.post("roll-back", **page.hidden())
    assert answer.status == 303
    writer.result()
    page = stage.browser.get(answer.headers["Location"]).page
    assert "Rolled back" in page.text
    assert "No transaction is active." in page.text


def test_the_error_of_the_one_that_waits_in_vain_leads_to_the_page(
    pessimistic: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("userlock_emulator.datastore.locks.LOCK_TIMEOUT_SECONDS", 0.05)
    with pytest.raises(grpc.RpcError) as caught:
        pessimistic.stub.call("Commit", pessimistic.commit(2))
    assert caught.value.code() is grpc.StatusCode.ABORTED
    (transaction,) = pessimistic.browser.get("transactions.json").document["transactions"]
    for text in (transaction["name"], "Task, '<stuck>'", "grpc-python", "/viewer/transactions"):
        assert text in caught.value.details()
    # So does the form of somebody who edits the entity.
    entity_page = pessimistic.browser.get("find", text="Task, '<stuck>'").headers["Location"]
    form = pessimistic.browser.get(entity_page.replace("entity", "delete")).page
    answer = pessimistic.browser.post("delete", **form.hidden())
    assert answer.status == 409
    assert transaction["name"] in answer.page.text


@pytest.mark.parametrize("mode", OPTIMISTIC)
def test_where_nobody_waits_it_shows_what_was_read(mode: str) -> None:
    stage = Stage(mode)
    try:
        stage.stub.call("Commit", stage.commit(2))
        document = stage.browser.get("transactions.json").document
        (transaction,) = document["transactions"]
        assert (document["mode"], document["waiting"]) == (mode, [])
        assert transaction["locks"]["total"] == 0
        assert transaction["read"]["entities"][0]["path"] == [{"kind": "Task", "name": "<stuck>"}]
        text = stage.browser.get("transactions").page.text
        assert "nobody waits" in text
        assert "Task, '<stuck>'" in text
        assert transaction["name"] in text
    finally:
        stage.stop()


def test_a_rollback_names_an_active_transaction(pessimistic: Stage) -> None:
    for transaction in ("", "zz", "00" * 20):
        answer = pessimistic.browser.post(
            "roll-back", transaction=transaction, project=PROJECT, database=""
        )
        assert answer.status == 400
    assert len(pessimistic.browser.get("transactions.json").document["transactions"]) == 1


def test_the_page_comes_again_if_that_is_wished(pessimistic: Stage) -> None:
    page = pessimistic.browser.get("transactions").page
    (again,) = page.links("transactions?")
    elements = pessimistic.browser.get(again).page.elements
    assert ("meta", {"http-equiv": "refresh", "content": "5"}) in elements
    assert not any(attributes.get("http-equiv") for _, attributes in page.elements)
