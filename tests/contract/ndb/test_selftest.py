"""The self-test: stale writes through ndb, and the gate at its wire."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from google.cloud import ndb

from tests.contract.ndb.servers import Wire, WithoutBaseVersion, WithoutVersions, connect
from tests.contract.ndb.test_capabilities import FINE, verdicts
from tests.contract.ndb.test_gate import Change, other_deletes, other_messages
from tests.interpreters import run_python
from userlock.admin import ndb as admin
from userlock.admin.health import Finding, Verdict
from userlock.admin.ndb import KIND, THROUGH_NDB, examine
from userlock.ndb import capabilities, commits
from userlock.ndb.capabilities import REACHABLE, installed_release
from userlock_emulator import Emulator
from userlock_emulator.datastore.errors import Code
from userlock_emulator.datastore.faults import Rule


def through_ndb(client: ndb.Client) -> Finding:
    return Finding("datastore", *admin.through_ndb(client))


def left_over(client: ndb.Client) -> int:
    """Return how many entities of the trial's are still there."""
    with client.context():
        found: int = sum(ndb.Query(kind=kind).count() for kind in (KIND, capabilities.KIND))
    return found


def test_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATASTORE_EMULATOR_HOST", "127.0.0.1:1")
    findings = examine("nobody")
    assert verdicts(findings) == {REACHABLE: "wrong"}


def test_there_is_no_project(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_project(**kwargs: Any) -> None:
        raise OSError("Project was not passed and could not be determined from the environment.")

    monkeypatch.setattr(ndb, "Client", without_project)
    (finding,) = examine()
    assert (finding.subject, finding.verdict) == (REACHABLE, Verdict.WRONG)
    assert "could not be determined" in finding.says


def test_all_findings(datastore: Emulator, ndb_client: ndb.Client) -> None:
    findings = examine()
    assert verdicts(findings) == {**FINE, THROUGH_NDB: "ok"}
    assert list(verdicts(findings))[-2:] == [THROUGH_NDB, "emulator"]
    assert left_over(ndb_client) == 0


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Wire, ""),
        (WithoutVersions, "it was read without its version"),
        (WithoutBaseVersion, "takes no notice of base_version"),
    ],
)
def test_each_kind_of_server(
    ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch, kind: type[Wire], wrong: str
) -> None:
    """A write that Datastore could not refuse is not sent, outdated or not."""
    connect(ndb_client, kind)
    monkeypatch.setattr(capabilities, "_honoured", {})
    finding = through_ndb(ndb_client)
    assert finding.verdict is (Verdict.WRONG if wrong else Verdict.OK)
    assert installed_release() in finding.says
    assert wrong in finding.says
    assert left_over(ndb_client) == 0


@pytest.mark.parametrize("rpc", ["Commit", "Lookup"])
def test_an_rpc_that_fails(ndb_client: ndb.Client, datastore: Emulator, rpc: str) -> None:
    for skip in itertools.count(0, 3):
        wrong = Rule(name="wrong", code=Code.FAILED_PRECONDITION, rpc=rpc, skip=skip, count=None)
        fault = datastore.faults.plant(wrong)
        finding = through_ndb(ndb_client)
        datastore.faults.clear()
        assert finding.subject == THROUGH_NDB
        if not fault.hits:
            break
        assert finding.verdict is Verdict.WRONG
        assert "FailedPrecondition: 400" in finding.says
    assert skip > 0
    assert finding.verdict is Verdict.OK


def without_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an entity that was read count as new."""
    monkeypatch.setattr("userlock.ndb.hooks.Stamped", str)


def without_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ndb.Key, "get", lambda self, **options: None)


class TestAnotherNdb:
    """An ndb with all points that userlock needs, which works in another way."""

    def wrong(self, client: ndb.Client, *, left: int = 0) -> str:
        finding = through_ndb(client)
        assert (finding.subject, finding.verdict) == (THROUGH_NDB, Verdict.WRONG)
        assert "install an older google-cloud-ndb" in finding.advice
        assert left_over(client) == left
        return finding.says

    @pytest.mark.parametrize(
        ("change", "says", "left"),
        [
            (
                other_messages,
                "a put did not pass the gate: .*past `put` and `delete` of its mod",
                0,
            ),
            # The entity of the self-test cannot be deleted by it either.
            (other_deletes, "was not deleted: it came to the commit past `put` and `delete`", 1),
            (without_versions, "an entity that had just been read was refused", 0),
            (without_answers, "was not found", 0),
        ],
    )
    def test_it_says_what_is_wrong(
        self,
        ndb_client: ndb.Client,
        monkeypatch: pytest.MonkeyPatch,
        change: Change,
        says: str,
        left: int,
    ) -> None:
        change(monkeypatch)
        assert re.search(says, self.wrong(ndb_client, left=left), re.DOTALL)

    @pytest.mark.parametrize("what", ["put", "delete"])
    def test_an_outdated_write_is_carried_out(
        self, ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        build_on = commits.build_on

        def fence_others(mutation: Any, write: Any) -> None:
            if commits.deletes(mutation) is (what == "put"):
                build_on(mutation, write)

        monkeypatch.setattr(commits, "build_on", fence_others)
        says = self.wrong(ndb_client)
        assert f"a {what} of an outdated object was carried out" in says


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("_process_commit", "_datastore_api:_process_commit is gone"),
        ("_NonTransactionalCommitBatch", "ended with NameError"),  # which userlock does not touch
    ],
)
def test_an_ndb_that_lacks_something(datastore: Emulator, name: str, says: str) -> None:
    """In a process of its own, as this one has another ndb."""
    code = (
        f"from google.cloud.ndb import _datastore_api; del _datastore_api.{name};"
        "from userlock.cli import main; raise SystemExit(main(['doctor', '--datastore']))"
    )
    process = run_python("-c", code, env=datastore.env)
    assert process.returncode == 1, process.stderr
    assert says in " ".join(process.stdout.split())
