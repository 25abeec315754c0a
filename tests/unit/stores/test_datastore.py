"""Names, addresses and times of Datastore rows."""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.cloud.datastore_v1.types import query
from google.cloud.datastore_v1.types.datastore import CommitResponse
from google.protobuf.timestamp_pb2 import Timestamp

from userlock.datastore_rpc import Endpoint, Key, Mutation
from userlock.lock.store import GRACE_SECONDS, StoreUnavailable
from userlock.stores.datastore import DEFAULT_KIND, TIMEOUT, DatastoreStore, rows
from userlock.stores.datastore.rows import check_kind, row_name
from userlock.stores.urls import open_url

EntityResult: Any = query.EntityResult.pb()


class TestNames:
    @pytest.mark.parametrize("lock_id", ["ann", "ü 漢字 🔒", " ", "a=b#c", "__ann__", "x" * 1491])
    def test_a_lock_id_that_fits_is_readable_in_the_console(self, lock_id: str) -> None:
        assert row_name("userlock", lock_id) == f"userlock={lock_id}"

    @pytest.mark.parametrize(
        "lock_id",
        ["a/b", "a\nb", "\x7f", "\x85", "\ud800", "\ud83d\ude00", "x" * 1492, "漢" * 500],
    )
    def test_other_lock_ids_are_hashed(self, lock_id: str) -> None:
        name = row_name("userlock", lock_id)
        assert name.startswith("userlock#")
        assert len(name) == len("userlock#") + 64

    @pytest.mark.parametrize("kind", ["", "__Lease__", "a/b", "a\n", "x" * 1501, "\ud800"])
    def test_impossible_kinds_are_refused(self, kind: str) -> None:
        with pytest.raises(ValueError, match="a kind must"):
            check_kind(kind)
        assert check_kind("Lease ü") == "Lease ü"

    def test_the_store_checks_kind_and_prefix(self) -> None:
        with pytest.raises(ValueError, match="prefix"):
            DatastoreStore(prefix="a=b")
        with pytest.raises(ValueError, match="kind"):
            DatastoreStore(kind="a/b")
        with pytest.raises(ValueError, match="time-outs"):
            DatastoreStore(timeout=0)


class Named(DatastoreStore):
    def __init__(self, client_factory: Any, **options: Any) -> None:
        self.facts = (*client_factory.keywords.values(), *options.values())


DEFAULT = (None, None, None, "userlock", DEFAULT_KIND, TIMEOUT)


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "address"),
        [
            ("datastore://", DEFAULT),
            ("datastore://p1", ("p1", *DEFAULT[1:])),
            ("datastore://example.com:p1", ("example.com:p1", *DEFAULT[1:])),
            (
                "datastore://p1?database=db&namespace=ns&prefix=p&kind=K&timeout=2",
                ("p1", "db", "ns", "p", "K", 2.0),
            ),
            ("datastore://?namespace=&database=", DEFAULT),
            (
                "datastore://?database=(default)&namespace=_a.B-1",
                (None, "(default)", "_a.B-1", *DEFAULT[3:]),
            ),
        ],
    )
    def test_addresses(self, url: str, address: tuple[object, ...]) -> None:
        named = open_url(url, Named.of_parts)
        assert isinstance(named, Named)
        assert named.facts == address


SECOND = 1_000_000


def written(entity: Any, at: int, version: int = 7) -> Any:
    """Return the row as Datastore has it, written at that time in microseconds."""
    result = EntityResult(entity=entity, version=version)
    result.update_time.FromMicroseconds(at)
    return result


def at(microseconds: int) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromMicroseconds(microseconds)
    return timestamp


@pytest.mark.parametrize("fails", [False, True], ids=["a reply", "an error"])
def test_a_cancelled_task_waits_for_its_reply(fails: bool) -> None:
    """So that nothing it does afterwards overtakes its command."""
    reply: concurrent.futures.Future[Any] = concurrent.futures.Future()
    stub = SimpleNamespace(commit=SimpleNamespace(future=lambda request, **options: reply))
    client = SimpleNamespace(project="p", namespace="", stub=stub)

    async def main() -> bool:
        commit = Endpoint(client).commit(Mutation(delete=Key()), 30)
        task = asyncio.create_task(commit)
        for _ in range(5):
            await asyncio.sleep(0)
            task.cancel()
        waits = not task.done()
        if fails:
            reply.set_exception(grpc.RpcError())
        else:
            reply.set_result(CommitResponse(mutation_results=[{}]))
        with pytest.raises(asyncio.CancelledError):
            await task
        return waits

    assert asyncio.run(main())


class TestTimes:
    def fresh(self, ttl_seconds: float = 10, wall: float = 5000) -> Any:
        return rows.fresh(b"first", ttl_seconds, wall).entity(Key())

    @pytest.mark.parametrize("ttl", [0.001, 1, 10, 60, 86_400])
    def test_never_early_and_not_much_later(self, ttl: float) -> None:
        entity, began = self.fresh(ttl), 1000 * SECOND
        slack = 0.05 + ttl / 1000
        for after, lapsed, gone in (
            (0, False, False),
            (ttl, False, False),
            (ttl + slack - 0.001, False, False),
            (ttl + slack + 0.001, True, False),
            (ttl + GRACE_SECONDS, ttl / 1000 < GRACE_SECONDS - 0.06, False),
            (ttl + slack + GRACE_SECONDS + 0.001, True, True),
        ):
            row = rows.read_row(written(entity, began), at(began + int(after * SECOND)))
            assert (row.stored.lapsed, row.gone) == (lapsed, gone), after

    def test_a_rewritten_row_keeps_its_beginning(self) -> None:
        row = rows.read_row(written(self.fresh(), 1000 * SECOND), at(1003 * SECOND))
        entity = row._replace(record=b"first\nline", write_id=b"another").entity(Key())
        again = rows.read_row(written(entity, 1009 * SECOND, version=8), at(1009 * SECOND))
        assert (again.record, again.version, again.began) == (b"first\nline", 8, 1000 * SECOND)
        assert (again.ttl, again.expire_at, again.write_id) == (row.ttl, row.expire_at, b"another")
        twice = again._replace(record=b"first\nline\nmore", write_id=b"third").entity(Key())
        later = rows.read_row(written(twice, 1009 * SECOND), at(1011 * SECOND))
        assert (later.began, later.stored.lapsed) == (1000 * SECOND, True)

    def test_a_time_to_live_is_rounded_up(self) -> None:
        assert self.fresh(0.0000001).properties[rows.TTL].integer_value == 1
        assert self.fresh(2 / 3).properties[rows.TTL].integer_value == 666_667

    def test_a_time_to_live_of_centuries(self) -> None:
        entity = self.fresh(ttl_seconds=1e12)
        sweep = entity.properties[rows.EXPIRE_AT].timestamp_value
        assert sweep.ToDatetime().year == datetime.MAXYEAR

    def test_a_server_that_reports_no_times_is_not_trusted(self) -> None:
        result = written(self.fresh(), 1000 * SECOND)
        with pytest.raises(StoreUnavailable, match="does not say when"):
            rows.read_row(result, Timestamp())
        result.ClearField("update_time")
        with pytest.raises(StoreUnavailable, match="does not say when"):
            rows.read_row(result, at(1000 * SECOND))
