"""A lock needs no ndb; ndb comes with its gate, and then a lock is kept until the commit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import userlock_emulator

#: Runs with `BEFORE` the lock or `UNDER` it: the import of ndb.
PROGRAM = """
import sys
import userlock

userlock.configure(service=userlock.LockService.from_url("memory://"))
BEFORE
with userlock.scope():
    userlock.acquire_lock("ann")
    assert ("google.cloud.ndb" in sys.modules) == bool('''BEFORE''')
    UNDER
    class Plain(ndb.Model):
        points = ndb.IntegerProperty()

    def change():
        Plain(id="ann", points=5).put()
        userlock.release_lock("ann")
        assert userlock.holder("ann"), "free before the commit"

    with ndb.Client().context():
        ndb.transaction(change, retries=0)
        assert not userlock.holder("ann"), "kept after the commit"
        assert Plain.get_by_id("ann").points == 5

    class User(userlock.UserModel):
        _lock_id_from_key = userlock.key_id
        points = ndb.IntegerProperty()

    with ndb.Client().context():
        try:
            User(id="ann", points=1).put()
        except userlock.CreatedWithoutLock:
            pass
        else:
            raise AssertionError("a write without the gate")
"""
NDB = "from google.cloud import ndb"
#: The negative control: the lock does not look for ndb.
BLIND = "userlock.scope; sys.modules['userlock.lock.scope'].find_participants = lambda: None\n"


def run(
    datastore: userlock_emulator.Emulator, *, before: str = "", under: str = "", program: str = ""
) -> subprocess.CompletedProcess[str]:
    code = (program + PROGRAM).replace("BEFORE", before).replace("UNDER", under)
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **datastore.env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "place",
    [
        pytest.param({"before": NDB}, id="before the lock"),
        pytest.param({"under": NDB}, id="under the lock"),
    ],
)
def test_a_lock_stays_until_the_commit(
    datastore: userlock_emulator.Emulator, place: dict[str, str]
) -> None:
    done = run(datastore, **place)
    assert done.returncode == 0, done.stderr


def test_the_control_is_free_before_the_commit(datastore: userlock_emulator.Emulator) -> None:
    program = "import sys, userlock; " + BLIND
    done = run(datastore, under=NDB, program=program)
    assert "AssertionError: free before the commit" in done.stderr


# --- what it loads ------------------------------------------------------------------------------

NO_NDB = "assert not [name for name in sys.modules if name.startswith('google.cloud')]"
NO_COMPANIONS = """
found = [name for name in sys.modules if name.startswith(("userlock.outbox", "userlock.idempotency",
    "userlock.contrib.inspector", "userlock.admin"))]
assert not found, found
"""
HOOKED = """
from google.cloud.ndb import _transaction
assert hasattr(_transaction.transaction_async_, "__wrapped__")
"""
LOCK = """
import userlock
userlock.configure(service=userlock.LockService.from_url("memory://"))
with userlock.global_lock("ann") as lock:
    assert lock.held
"""


@pytest.mark.parametrize(
    ("program", "afterwards"),
    [
        pytest.param("import userlock; userlock.__version__", NO_NDB, id="import"),
        pytest.param(LOCK, NO_NDB, id="lock"),
        pytest.param("from userlock import events, stores, testing", NO_NDB, id="modules"),
        pytest.param(
            "from userlock.cli import main; main(['--store', 'memory://', 'holder', 'ann'])",
            NO_NDB,
            id="command line",
        ),
        pytest.param("import userlock.testing.plugin", NO_NDB, id="plugin of pytest"),
        pytest.param(
            "import sys; sys.modules['pytest'] = None\n"
            "from userlock.testing import ManualClock, LockFaults, allow_unlocked, held_lock",
            "",
            id="tools for tests, without pytest",
        ),
        pytest.param("from google.cloud import ndb" + LOCK, HOOKED, id="lock beside ndb"),
        pytest.param("import userlock; userlock.UserModel", HOOKED, id="model"),
        pytest.param("from userlock import *; global_lock, UserModel", HOOKED, id="all names"),
        pytest.param("import userlock.ndb.wire", HOOKED, id="module of the model layer"),
        pytest.param("import userlock.contrib.flask", HOOKED, id="web integration"),
        pytest.param(
            "from userlock.contrib import asgi, django, flask, wsgi; flask.UserLock()",
            NO_COMPANIONS,
            id="web integrations, without jobs, requests and the inspector",
        ),
        pytest.param("import userlock.outbox", HOOKED, id="outbox"),
    ],
)
def test_what_is_loaded(program: str, afterwards: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys\n{afterwards}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
