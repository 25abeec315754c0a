"""A client of the app, or a function that makes one."""

from __future__ import annotations

import os

import pytest

from tests.forks import in_child
from userlock.ndb.client import ClientOfProcess


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_function_makes_one_in_each_process() -> None:
    made: list[int] = []

    def make() -> object:
        made.append(os.getpid())
        return object()

    client = ClientOfProcess(make)
    assert client.get() is client.get()
    assert made == [os.getpid()]
    assert in_child(lambda: (client.get() is client.get(), len(made))) == [True, 2]
