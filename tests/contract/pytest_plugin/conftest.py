"""Run the tests of an example application by a pytest within pytest.

It runs in this process, and uses the Datastore emulator of the other tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import dedent

import pytest
from google.cloud import ndb

import userlock._models  # noqa: F401  (or each inner pytest would import it again, and hook into ndb)
import userlock_emulator
from userlock.reports import REPORTS

LEARNERS = """
    from google.cloud import ndb

    import userlock


    class Learner(userlock.UserModel):
        _lock_id_from_key = userlock.key_id
        points = ndb.IntegerProperty(default=0)


    def load(learner_id):
        return Learner.get_by_id(learner_id)


    def create(learner_id):
        Learner(id=learner_id).put()
"""

POINTS = """
    import userlock
    from app import mail
    from app.learners import load


    def finish(learner_id):
        learner = load(learner_id)
        learner.points += 5
        learner.put()


    def finish_locked(learner_id):
        with userlock.global_lock(learner_id) as lock:
            learner = load(learner_id)
            mail.send(learner)
            learner.points += 5
            learner.put()
            return lock


    def finish_carelessly(learner_id):
        try:
            finish(learner_id)
        except Exception:
            pass


    def award(learner):
        learner.points += 100
        learner.put()
"""

CONFTEST = """
    import os

    import pytest
    from google.cloud import ndb


    @pytest.fixture(autouse=True)
    def datastore(userlock_service):
        # Each of xdist's workers has data of its own.
        namespace = os.environ.get("PYTEST_XDIST_WORKER", "")
        with ndb.Client().context(namespace=namespace):
            yield
"""

#: The put site of the application that forgets the lock.
FINISH = "app/points.py::finish PutWithoutLock Learner"


class Project:
    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester
        self.path = pytester.path

    def tests(self, source: str, name: str = "test_app.py") -> None:
        """Write its tests, with their imports."""
        head = (
            "import pytest, userlock\n"
            "from google.cloud import ndb\n"
            "from app import learners, points\n"
            "from app.learners import Learner\n\n"
        )
        self.file(f"tests/{name}", head + dedent(source))

    def file(self, name: str, source: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)

    def run(self, *arguments: str) -> pytest.RunResult:
        return self._pytester.runpytest_inprocess(*arguments)

    def baseline(self, *lines: str) -> None:
        self.file("userlock-baseline.txt", "".join(f"{line}\n" for line in lines))

    def known(self) -> list[str]:
        lines = (self.path / "userlock-baseline.txt").read_text().splitlines()
        return [line for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="session")
def datastore() -> Iterator[userlock_emulator.Emulator]:
    """Start an emulator in one concurrency mode: no test here uses transactions."""
    with userlock_emulator.start() as server:
        yield server


@pytest.fixture
def project(
    pytester: pytest.Pytester, ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Project]:
    # ndb knows one class per kind in a process; this application's are its own.
    monkeypatch.setattr(ndb.Model, "_kind_map", {})
    # The application must not see the xdist worker of the outer run.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    project = Project(pytester)
    pytester.makeini("[pytest]\npythonpath = .\nfilterwarnings = error")
    for name, source in {
        "app/__init__.py": "",
        "app/learners.py": LEARNERS,
        "app/points.py": POINTS,
        "app/mail.py": "\n    def send(learner):\n        pass\n",
        "tests/conftest.py": CONFTEST,
    }.items():
        project.file(name, dedent(source))
    before = REPORTS.is_test_code, REPORTS.tolerates
    yield project
    assert (REPORTS.is_test_code, REPORTS.tolerates) == before, "the run left its marks"
