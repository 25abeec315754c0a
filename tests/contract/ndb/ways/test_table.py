"""Each way in against each way out: the right cells raise the right error, others are silent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.contract.ndb.ways import lookups, writes
from tests.contract.ndb.ways.cells import differences
from tests.contract.ndb.ways.complete import WAYS_IN, WAYS_OUT
from tests.contract.ndb.ways.situations import BASIC, OTHERS, Situation
from tests.contract.ndb.ways.tables import WayIn, WayOut

pytestmark = pytest.mark.usefixtures("context")

each_way_in = pytest.mark.parametrize("way_in", WAYS_IN, ids=lambda way: way.name)
each_way_out = pytest.mark.parametrize("way_out", WAYS_OUT, ids=lambda way: way.name)


def check(way_in: WayIn, ways_out: Sequence[WayOut], situations: Sequence[Situation]) -> None:
    found = differences(way_in, ways_out, situations)
    assert not found, "\n".join(found)


@each_way_in
def test_each_way_in_against_each_way_out(way_in: WayIn) -> None:
    check(way_in, WAYS_OUT, BASIC)


@each_way_in
def test_each_way_in_in_other_situations(way_in: WayIn) -> None:
    check(way_in, [way for way in WAYS_OUT if way.write is writes.put], OTHERS)


@each_way_out
def test_each_way_out_in_other_situations(way_out: WayOut) -> None:
    (get,) = [way for way in WAYS_IN if way.read is lookups.get]
    check(get, [way_out], OTHERS)
