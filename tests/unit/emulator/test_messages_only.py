"""Messages without clients, in processes of their own: imports are for a whole process."""

from __future__ import annotations

import subprocess
import sys

POSTPONED = """
import sys
from userlock_emulator.messages_only import postpone_clients
postpone_clients()
import userlock_emulator.datastore.server
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_no_client_is_imported() -> None:
    assert run(f"{POSTPONED}print('requests' in sys.modules)") == "False"


def test_the_control_the_packages_import_clients() -> None:
    assert run("import sys, google.cloud.datastore_v1; print('requests' in sys.modules)") == "True"


def test_who_asks_for_a_client_gets_it() -> None:
    asked = """
from google.cloud import datastore
from google.cloud.datastore_v1 import DatastoreClient, Entity
import google.cloud.datastore_admin_v1 as admin
from google.cloud.datastore_v1.types import entity
assert Entity is entity.Entity
print(DatastoreClient.__name__, admin.DatastoreAdminClient.__name__)
"""
    assert run(POSTPONED + asked) == "DatastoreClient DatastoreAdminClient"


def test_an_unknown_name_is_unknown() -> None:
    asked = """
import google.cloud.datastore_v1
try:
    google.cloud.datastore_v1.Nothing
except AttributeError as error:
    print(error)
"""
    assert "has no attribute 'Nothing'" in run(POSTPONED + asked)


def test_a_package_that_was_imported_stays() -> None:
    first = "import google.cloud.datastore_v1 as v1\n"
    assert run(f"{first}{POSTPONED}print(v1.DatastoreClient.__name__)") == "DatastoreClient"
