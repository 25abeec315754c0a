"""The pytest plugin, in the tests of another project."""

from __future__ import annotations

import pytest

TESTS = """
import os
from google.cloud import datastore

def names(client):
    return [entity.key.name for entity in client.query(kind="K").fetch()]

def test_put(datastore_emulator):
    client = datastore.Client()
    client.put(datastore.Entity(client.key("K", "a")))
    assert names(client) == ["a"]
    assert client.project == "mine"

def test_it_is_empty_again(datastore_emulator):
    assert names(datastore.Client()) == []

def test_without(request):
    assert "DATASTORE_EMULATOR_HOST" not in os.environ
"""
OPTIONS = """
import pytest

@pytest.fixture(scope="session")
def datastore_emulator_options():
    return {"project": "mine"}
"""


def test_an_empty_emulator_for_each_test_that_asks(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATASTORE_EMULATOR_HOST", raising=False)
    pytester.makeconftest(OPTIONS)
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-W", "error")
    result.assert_outcomes(passed=3)


def test_other_tests_do_not_pay_for_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_imports():\n    import sys\n    assert 'grpc' not in sys.modules")
    pytester.runpytest_subprocess("-p", "no:userlock").assert_outcomes(passed=1)


DATABASES = """
import os
import threading

import pytest
from google.cloud import datastore, ndb

class Note(ndb.Model):
    text = ndb.StringProperty()

@pytest.fixture(scope="module")
def shared(datastore_emulator_session):
    # A module's own data: any name of a database will do.
    os.environ.update(datastore_emulator_session.env)
    client = datastore.Client(database="shared")
    client.put(datastore.Entity(client.key("K", "shared")))
    yield client
    for name in datastore_emulator_session.env:
        os.environ.pop(name, None)

def names(client):
    return [entity.key.name for entity in client.query(kind="K").fetch()]

@pytest.mark.parametrize("name", "abcdef")
def test_its_own_data(datastore_database, shared, name):
    for grpc in (True, False):
        client = datastore.Client(database=datastore_database, _use_grpc=grpc)
        client.put(datastore.Entity(client.key("K", name)))
        assert names(client) == [name]
    assert names(shared) == ["shared"]

@pytest.mark.parametrize("name", "ab")
def test_ndb(datastore_database, name):
    with ndb.Client(database=datastore_database).context():
        Note(id=name, text=name).put()
        assert [note.text for note in Note.query()] == [name]

def test_what_an_earlier_test_left_running(datastore_database, request):
    # A thread that outlives its test writes into the database of its test.
    client = datastore.Client(database="test-1")
    thread = threading.Thread(
        target=lambda: client.put(datastore.Entity(client.key("K", "late")))
    )
    thread.start()
    thread.join()
    assert names(datastore.Client(database=datastore_database)) == []
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_database_for_each_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    monkeypatch.delenv("DATASTORE_EMULATOR_HOST", raising=False)
    pytester.makepyfile(DATABASES)
    result = pytester.runpytest_subprocess("-W", "error", "-n", workers, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=9)


WORKERS = """
import os
import pytest
from google.cloud import datastore

@pytest.mark.parametrize("number", range(12))
def test_each_worker_has_an_emulator(datastore_emulator, number, worker_id):
    client = datastore.Client()
    assert not list(client.query(kind="K").fetch())
    client.put(datastore.Entity(client.key("K", "the same")))
    (found,) = client.query(kind="K").fetch()
    with open(f"seen-{worker_id}", "a") as file:
        file.write(datastore_emulator.host + "\\n")
"""


def test_workers_share_no_data(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATASTORE_EMULATOR_HOST", raising=False)
    pytester.makepyfile(WORKERS)
    pytester.runpytest_subprocess("-W", "error", "-n", "2").assert_outcomes(passed=12)
    hosts = [set(file.read_text().split()) for file in pytester.path.glob("seen-*")]
    assert len(hosts) == 2
    assert all(len(each) == 1 for each in hosts)  # one for each session
    assert not hosts[0] & hosts[1]


TASKS = """
import os
import grpc
from google.cloud.tasks_v2 import CloudTasksClient
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

LOCATION = "projects/p/locations/l"

def client():
    channel = grpc.insecure_channel(os.environ["CLOUD_TASKS_EMULATOR_HOST"])
    return CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))

def create(name):
    queue = f"{LOCATION}/queues/{name}"
    client().create_queue(parent=LOCATION, queue={"name": queue})
    client().delete_queue(name=queue)

def test_create(tasks_emulator):
    assert client().get_queue(name=f"{LOCATION}/queues/first")
    create("q")

def test_used_names_are_forgotten(tasks_emulator):
    create("q")

def test_without(request):
    assert "CLOUD_TASKS_EMULATOR_HOST" not in os.environ
"""
TASKS_OPTIONS = """
import pytest

@pytest.fixture(scope="session")
def tasks_emulator_options():
    return {"queues": ["projects/p/locations/l/queues/first"]}
"""


def test_an_empty_cloud_tasks_for_each_test_that_asks(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLOUD_TASKS_EMULATOR_HOST", raising=False)
    pytester.makeconftest(TASKS_OPTIONS)
    pytester.makepyfile(TASKS)
    pytester.runpytest_subprocess("-W", "error").assert_outcomes(passed=3)
