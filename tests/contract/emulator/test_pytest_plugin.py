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
