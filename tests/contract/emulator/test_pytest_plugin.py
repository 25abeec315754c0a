"""The pytest plugin, in the tests of another project."""

from __future__ import annotations

import pytest

OPTIONS = """
import pytest

@pytest.fixture(scope="session")
def datastore_emulator_options():
    return {"project": "mine"}

@pytest.fixture(scope="session")
def tasks_emulator_options():
    return {"queues": ["projects/p/locations/l/queues/first"]}
"""
TESTS = """
import os
import threading

import pytest

def test_without(request):
    assert "DATASTORE_EMULATOR_HOST" not in os.environ
    assert "CLOUD_TASKS_EMULATOR_HOST" not in os.environ

def names(client):
    return [entity.key.name for entity in client.query(kind="K").fetch()]

def put(client, name):
    client.put(datastore.Entity(client.key("K", name)))

from google.cloud import datastore

@pytest.mark.parametrize("number", range(4))
def test_each_worker_has_an_empty_emulator(datastore_emulator, number, worker_id):
    client = datastore.Client()
    assert client.project == "mine"
    assert names(client) == []
    put(client, "the same")
    assert names(client) == ["the same"]
    with open(f"seen-{worker_id}", "a") as file:
        file.write(datastore_emulator.host + "\\n")

@pytest.fixture(scope="module")
def shared(datastore_emulator_session):
    # A module's own data: any name of a database will do.
    os.environ.update(datastore_emulator_session.env)
    client = datastore.Client(database="shared")
    put(client, "shared")
    yield client
    for name in datastore_emulator_session.env:
        os.environ.pop(name, None)

@pytest.mark.parametrize("name", "abc")
def test_its_own_data(datastore_database, shared, name):
    client = datastore.Client(database=datastore_database)
    put(client, name)
    assert names(client) == [name]
    assert names(shared) == ["shared"]

def test_what_an_earlier_test_left_running(datastore_database):
    # A thread that outlives its test writes into the database of its test.
    thread = threading.Thread(target=put, args=(datastore.Client(database="test-1"), "late"))
    thread.start()
    thread.join()
    assert names(datastore.Client(database=datastore_database)) == []

def test_tasks(tasks_emulator):
    import grpc
    from google.cloud.tasks_v2 import CloudTasksClient
    from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

    channel = grpc.insecure_channel(os.environ["CLOUD_TASKS_EMULATOR_HOST"])
    client = CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))
    queue = "projects/p/locations/l/queues/first"
    assert client.get_queue(name=queue)
    client.delete_queue(name=queue)

test_used_names_are_forgotten = test_tasks
"""


# With workers it starts three interpreters.
@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_the_fixtures(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    for name in ("DATASTORE_EMULATOR_HOST", "CLOUD_TASKS_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeconftest(OPTIONS)
    pytester.makepyfile(TESTS)
    run = pytester.runpytest_inprocess if workers == "0" else pytester.runpytest_subprocess
    result = run("-W", "error", "-n", workers, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=11)
    hosts = [set(file.read_text().split()) for file in pytester.path.glob("seen-*")]
    assert all(len(each) == 1 for each in hosts), "one for each session"
    assert len(set.union(*hosts)) == len(hosts)
