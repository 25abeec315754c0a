"""Each way in and each way out in each situation: cells raise the right error, or are silent.

Ways in and out do not meet except in the read stamp. So each way in meets two ways out, and each
way out meets one way in of each kind.
"""

from __future__ import annotations

import pytest

from tests.contract.ndb.ways import copies, lookups, queries, writes
from tests.contract.ndb.ways.cells import differences
from tests.contract.ndb.ways.complete import WAYS_IN, WAYS_OUT
from tests.contract.ndb.ways.document import DOCUMENT, filled
from tests.contract.ndb.ways.situations import BASIC, OTHERS
from tests.contract.ndb.ways.tables import WayIn, WayOut

pytestmark = pytest.mark.usefixtures("context")

PUT, DELETE = [way for way in WAYS_OUT if way.write in (writes.put, writes.delete)]
OF_EACH_KIND = [
    way
    for way in WAYS_IN
    if way.read
    in (lookups.get_or_insert_created, queries.projection, copies.pickled, copies.constructed)
]
(GET,) = [way for way in WAYS_IN if way.read is lookups.get]


@pytest.mark.parametrize("way_in", WAYS_IN, ids=lambda way: way.name)
def test_each_way_in(way_in: WayIn) -> None:
    assert differences(way_in, [PUT], (*BASIC, *OTHERS)) == []
    assert differences(way_in, [DELETE], BASIC) == []


@pytest.mark.parametrize("way_out", WAYS_OUT, ids=lambda way: way.name)
def test_each_way_out(way_out: WayOut) -> None:
    assert differences(GET, [way_out], (*BASIC, *OTHERS)) == []
    for way_in in OF_EACH_KIND:
        assert differences(way_in, [way_out], BASIC) == []


def test_the_table_of_the_page_is_that_of_the_tests() -> None:
    text = DOCUMENT.read_text()
    assert text == filled(text), "run: python -m tests.contract.ndb.ways.document"
