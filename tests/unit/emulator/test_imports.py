"""Imports: of packages below alone, without cycles; clients when they are asked for."""

import subprocess
import sys

import pytest

from tools import structure

SOURCES = structure.sources("emulator")
# The servers do not know each other, nor does the port know them.
BELOW = {
    "port": set(),
    "memcache": set(),
    "datastore": {"port"},
    "tasks": {"port"},
}


def package_of(name: str) -> str:
    _, _, inside = name.partition("userlock_emulator.")
    return inside.partition(".")[0] if inside.partition(".")[0] in BELOW else ""


def test_packages_know_only_those_below() -> None:
    for module, path in SOURCES.items():
        package = package_of(module)
        for name in structure.imported(path):
            assert not (name.startswith("grpc") and package in ("datastore", "tasks")), module
            if package and package_of(name):
                assert package_of(name) in {package, *BELOW[package]}, f"{module} imports {name}"


def test_no_imports_form_a_cycle() -> None:
    assert structure.cycles(structure.arrows(SOURCES)) == []


POSTPONED = """
import sys
from userlock_emulator.messages_only import postpone_clients
postpone_clients()
import userlock_emulator.datastore.server
assert "requests" not in sys.modules
from google.cloud import datastore
from google.cloud.datastore_v1 import DatastoreClient, Entity
import google.cloud.datastore_v1
import google.cloud.datastore_admin_v1 as admin
from google.cloud.datastore_v1.types import entity
assert Entity is entity.Entity
assert (DatastoreClient.__name__, admin.DatastoreAdminClient.__name__) == (
    "DatastoreClient", "DatastoreAdminClient")
try:
    google.cloud.datastore_v1.Nothing
except AttributeError as error:
    assert "has no attribute 'Nothing'" in str(error)
else:
    assert False
"""
IMPORTED_BEFORE = """
import sys, google.cloud.datastore_v1 as v1
assert "requests" in sys.modules, "the control: the packages import clients"
from userlock_emulator.messages_only import postpone_clients
postpone_clients()
assert v1.DatastoreClient.__name__ == "DatastoreClient"
"""


@pytest.mark.parametrize("code", [POSTPONED, IMPORTED_BEFORE], ids=["postponed", "before"])
def test_clients_are_imported_when_they_are_asked_for(code: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
