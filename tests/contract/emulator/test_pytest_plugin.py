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
