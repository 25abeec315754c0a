"""The ways in and out on servers that cannot refuse: writes are compared in a short transaction.

Each way in with a put, and each way out with a get, in all situations. Only what comes as far as
the server: what is refused before is so wherever it would go.
"""

from __future__ import annotations

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.servers import Wire, WithoutBaseVersion, WithoutVersions
from tests.contract.ndb.ways import lookups, writes
from tests.contract.ndb.ways.cells import differences
from tests.contract.ndb.ways.complete import WAYS_IN, WAYS_OUT
from tests.contract.ndb.ways.situations import BASIC, OTHERS, expected
from tests.contract.ndb.ways.tables import WayIn, WayOut
from userlock.ndb import server
from userlock.ndb.hooks import comparing
from userlock.ndb.watch import Write

pytestmark = pytest.mark.usefixtures("context")

(GET,) = [way for way in WAYS_IN if way.read is lookups.get]
(PUT,) = [way for way in WAYS_OUT if way.write is writes.put]

#: What each has answered to being tried out: each is asked once.
_HONOURED: dict[type[Wire], dict[tuple[str, str, str | None], bool]] = {
    WithoutVersions: {},
    WithoutBaseVersion: {},
}


@pytest.fixture(params=_HONOURED)
def ndb_client(
    ndb_client: ndb.Client, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> ndb.Client:
    monkeypatch.setattr(server, "_honoured", _HONOURED[request.param])
    request.param(ndb_client)
    return ndb_client


def wrong(way_in: WayIn, way_out: WayOut) -> str:
    """Of the situations in which something is sent to be written."""
    sent = [
        situation
        for situation in (*BASIC, *OTHERS)
        if expected(way_in, way_out, situation)
        in (None, userlock.StaleWriteError, userlock.EntityExistsError)
    ]
    return "\n".join(differences(way_in, [way_out], sent))


@pytest.mark.parametrize("way_in", WAYS_IN, ids=lambda way: way.name)
def test_each_way_in(way_in: WayIn) -> None:
    assert not wrong(way_in, PUT)


@pytest.mark.parametrize("way_out", WAYS_OUT, ids=lambda way: way.name)
def test_each_way_out(way_out: WayOut) -> None:
    assert not wrong(GET, way_out)


def test_without_comparing_it_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: what was changed meanwhile is overwritten."""

    def as_it_was(write: Write, *_: object) -> int:
        return write.base_version

    monkeypatch.setattr(comparing, "found_version", as_it_was)
    assert "StaleWriteError expected" in wrong(GET, PUT)
