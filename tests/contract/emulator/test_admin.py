"""Datastore Admin v1 by its official client: exports, imports, indexes, operations."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import datastore
from google.cloud import datastore_admin_v1 as v1
from google.cloud.datastore_admin_v1.services.datastore_admin.transports import (
    DatastoreAdminGrpcTransport,
)
from google.longrunning import operations_pb2

import userlock_emulator
from tests.contract.emulator.conftest import ask
from tests.waiting import wait_until
from userlock_emulator.datastore import export_files
from userlock_emulator.datastore.log_files import LogWriter

PROJECT = "admin-project"
GOOGLES = Path(__file__).parent / "exports/google/google.overall_export_metadata"


@pytest.fixture
def buckets(tmp_path: Path) -> Path:
    return tmp_path / "buckets"


@pytest.fixture
def emulator(
    buckets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[userlock_emulator.Emulator]:
    index_file = tmp_path / "index.yaml"
    index_file.write_text("indexes:\n- kind: K\n  properties:\n  - name: a\n  - name: b\n")
    with userlock_emulator.start(
        exports=buckets, indexes="enforced", index_file=index_file
    ) as emulator:
        for name, text in emulator.env.items():
            monkeypatch.setenv(name, text)
        yield emulator


@pytest.fixture
def channel(emulator: userlock_emulator.Emulator) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(emulator.host) as channel:
        yield channel


@pytest.fixture
def admin(channel: grpc.Channel) -> v1.DatastoreAdminClient:
    return v1.DatastoreAdminClient(transport=DatastoreAdminGrpcTransport(channel=channel))


def client(namespace: str | None = None) -> datastore.Client:
    return datastore.Client(project=PROJECT, namespace=namespace)


def put(*paths: Any, namespace: str | None = None, **properties: Any) -> None:
    user = client(namespace)
    entity = datastore.Entity(user.key(*paths))
    entity.update(properties)
    user.put(entity)


def stored() -> set[tuple[str | None, str]]:
    found = set()
    for namespace in (None, "other"):
        for entity in client(namespace).query().fetch():
            if not entity.key.kind.startswith("__"):
                found.add((namespace, entity.key.kind))
    return found


ALL = {(None, "A"), (None, "../a/b"), ("other", "A")}


def fill() -> None:
    put("A", 1, n=1)
    put("../a/b", 1, n=2)  # a kind that is no file name
    put("A", 1, namespace="other", n=3)


def export(admin: v1.DatastoreAdminClient, **entity_filter: Any) -> str:
    operation = admin.export_entities(
        v1.ExportEntitiesRequest(
            project_id=PROJECT,
            output_url_prefix="gs://bucket/backup",
            entity_filter=v1.EntityFilter(**entity_filter),
        )
    )
    return str(operation.result(timeout=30).output_url)


def load(admin: v1.DatastoreAdminClient, url: str, **entity_filter: Any) -> Any:
    operation = admin.import_entities(
        v1.ImportEntitiesRequest(
            project_id=PROJECT, input_url=url, entity_filter=v1.EntityFilter(**entity_filter)
        )
    )
    operation.result(timeout=30)
    return operation.metadata


# --- exports and imports ------------------------------------------------------------------------


def test_an_export_is_loaded_again(
    emulator: userlock_emulator.Emulator, admin: v1.DatastoreAdminClient, buckets: Path
) -> None:
    fill()
    url = export(admin)
    assert url.startswith("gs://bucket/backup/")
    assert (buckets / url.removeprefix("gs://")).is_file()
    emulator.reset()
    assert stored() == set()
    metadata = load(admin, url)
    assert stored() == ALL
    assert metadata.progress_entities.work_completed == 3
    assert metadata.common.state == v1.CommonMetadata.State.SUCCESSFUL


FILTERS = [
    ({"kinds": ["A"]}, {(None, "A"), ("other", "A")}),
    ({"namespace_ids": [""]}, {(None, "A"), (None, "../a/b")}),
    ({"kinds": ["A", "B"], "namespace_ids": ["other"]}, {("other", "A")}),
    ({"kinds": ["Nothing"]}, set()),
]


@pytest.mark.parametrize(("entity_filter", "kept"), FILTERS)
def test_filters(
    emulator: userlock_emulator.Emulator,
    admin: v1.DatastoreAdminClient,
    entity_filter: dict[str, Any],
    kept: set[Any],
) -> None:
    for filter_, then in ((entity_filter, {}), ({}, entity_filter)):
        fill()
        url = export(admin, **filter_)
        emulator.reset()
        load(admin, url, **then)
        assert stored() == kept


def test_an_export_of_googles_emulator_is_loaded(
    admin: v1.DatastoreAdminClient, buckets: Path
) -> None:
    """Written by Google's Datastore emulator 2.3.1: see the values."""
    shutil.copytree(GOOGLES.parent, buckets / "google")
    load(admin, f"gs://google/{GOOGLES.name}")
    for namespace in (None, "other"):
        user = client(namespace)
        entity = user.get(user.key("Parent", "x", "K", 5))
        assert entity.exclude_from_indexes == {"raw", "rawn", "blobraw"}
        assert entity["t"].isoformat() == "2020-01-02T03:04:05.678901+00:00"
        assert entity["g"] == datastore.helpers.GeoPoint(1.5, -2.5)
        assert entity["k"] == user.key("Parent", "x")
        assert (entity["emb"].key, dict(entity["emb"])) == (user.key("I", 1), {"a": 1, "t": "in"})
        assert dict(entity["bare"]) == {"z": 2.5}
        plain = {
            "n": 7, "neg": -3, "s": "héllo", "b": True, "f": 2.5, "null": None,
            "blob": b"\x00\x01ab", "blobraw": b"\xff\x00", "raw": "long text", "rawn": 9,
            "arr": [1, "two", None], "empty": [], "one": [4],
        }  # fmt: skip
        assert {name: entity[name] for name in plain} == plain
        assert user.get(user.key("Other", 17))["v"] == 1


def test_nothing_is_stored_of_a_damaged_export(
    admin: v1.DatastoreAdminClient, buckets: Path
) -> None:
    shutil.copytree(GOOGLES.parent, buckets / "google")
    output = buckets / "google/all_namespaces/all_kinds/output-0"
    data = output.read_bytes()
    output.write_bytes(data[:-3])
    with pytest.raises(exceptions.InvalidArgument, match=r"output-0: at byte \d+: the file ends"):
        load(admin, f"gs://google/{GOOGLES.name}")
    assert stored() == set()
    with output.open("ab") as file:
        file.truncate(0)
        LogWriter(file).write(b"no entity")
    with pytest.raises(exceptions.InvalidArgument, match=r"output-0, record 1: a record is not"):
        load(admin, f"gs://google/{GOOGLES.name}")
    output.write_bytes(data)
    load(admin, f"gs://google/{GOOGLES.name}")
    assert stored(), "the control"


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("gs://nowhere/x.overall_export_metadata", exceptions.NotFound),
        ("gs://google", exceptions.InvalidArgument),
        ("gs://google/all_namespaces/all_kinds/output-0", exceptions.InvalidArgument),
    ],
)
def test_what_is_no_export(
    admin: v1.DatastoreAdminClient, buckets: Path, url: str, error: type[Exception]
) -> None:
    (buckets / "google").mkdir(parents=True)
    shutil.copytree(GOOGLES.parent / "all_namespaces", buckets / "google/all_namespaces")
    with pytest.raises(error):
        load(admin, url)


def test_metadata_that_points_elsewhere_is_refused(
    admin: v1.DatastoreAdminClient, buckets: Path
) -> None:
    (buckets / "bad").mkdir(parents=True)
    overall = export_files.MESSAGES["Overall"]()
    overall.part.add(path="../../secret.export_metadata")
    with (buckets / "bad/bad.overall_export_metadata").open("wb") as file:
        log = LogWriter(file)
        log.write(b"3")
        log.write(overall.SerializeToString())
    with pytest.raises(exceptions.InvalidArgument, match="outside of the export"):
        load(admin, "gs://bad/bad.overall_export_metadata")


def test_over_http_as_with_googles_emulator(
    emulator: userlock_emulator.Emulator, buckets: Path
) -> None:
    fill()

    def post(path: str, body: object) -> Any:
        kind = {"Content-Type": "application/json"}
        path = f"/v1/projects/{PROJECT}:{path}"
        return ask(emulator.host, "POST", path, json.dumps(body), kind).document

    done = post("export", {"output_url_prefix": "gs://bucket/x"})
    assert done["done"] is True
    emulator.reset()
    done = post("import", {"input_url": done["response"]["outputUrl"]})
    assert done["metadata"]["common"]["state"] == "SUCCESSFUL"
    assert stored() == ALL


def test_a_cancelled_export_leaves_nothing(
    emulator: userlock_emulator.Emulator,
    admin: v1.DatastoreAdminClient,
    channel: grpc.Channel,
    buckets: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill()
    begun, go_on = threading.Event(), threading.Event()
    write = LogWriter.write

    def slow(self: LogWriter, record: bytes) -> None:
        begun.set()
        assert go_on.wait(30)
        write(self, record)

    monkeypatch.setattr(LogWriter, "write", slow)
    operation = admin.export_entities(
        v1.ExportEntitiesRequest(project_id=PROJECT, output_url_prefix="gs://bucket/x")
    )
    assert begun.wait(30)
    assert not operation.operation.done
    assert call(channel, "GetOperation", name=operation.operation.name).done is False
    call(channel, "CancelOperation", name=operation.operation.name)
    go_on.set()
    wait_until(lambda: call(channel, "GetOperation", name=operation.operation.name).done)
    ended = call(channel, "GetOperation", name=operation.operation.name)
    assert ended.error.code == grpc.StatusCode.CANCELLED.value[0]
    assert [each for each in (buckets / "bucket/x").rglob("*") if each.is_file()] == []


# --- operations ---------------------------------------------------------------------------------


def call(channel: grpc.Channel, rpc: str, **fields: Any) -> Any:
    replies = {"ListOperations": operations_pb2.ListOperationsResponse}
    method: Any = channel.unary_unary(
        f"/google.longrunning.Operations/{rpc}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=replies.get(rpc, operations_pb2.Operation).FromString,
    )
    return method(getattr(operations_pb2, f"{rpc}Request")(**fields), timeout=20)


def test_operations(admin: v1.DatastoreAdminClient, channel: grpc.Channel) -> None:
    for _ in range(3):
        export(admin)
    where = f"projects/{PROJECT}/operations"
    page = call(channel, "ListOperations", name=where, page_size=2)
    for field in ({"page_size": -1}, {"page_token": "?"}):
        with pytest.raises(grpc.RpcError, match=r"page (size|token)"):
            call(channel, "ListOperations", name=where, **field)
    rest = call(channel, "ListOperations", name=where, page_token=page.next_page_token)
    names = [each.name for each in (*page.operations, *rest.operations)]
    assert len(set(names)) == 3
    assert rest.next_page_token == ""
    assert call(channel, "WaitOperation", name=names[0]).done
    call(channel, "CancelOperation", name=names[0])
    assert call(channel, "GetOperation", name=names[0]).HasField("response"), "it had ended"
    call(channel, "DeleteOperation", name=names[0])
    with pytest.raises(grpc.RpcError, match="There is no operation"):
        call(channel, "GetOperation", name=names[0])
    assert not call(channel, "ListOperations", name="projects/another/operations").operations


# --- indexes ------------------------------------------------------------------------------------


def index(*names: str, kind: str = "K", **fields: Any) -> v1.Index:
    return v1.Index(
        kind=kind,
        ancestor=fields.pop("ancestor", v1.Index.AncestorMode.NONE),
        properties=[
            {"name": name.lstrip("-"), "direction": 2 if name.startswith("-") else 1}
            for name in names
        ],
        **fields,
    )


def create(admin: v1.DatastoreAdminClient, wanted: v1.Index) -> v1.Index:
    created: v1.Index = admin.create_index(
        v1.CreateIndexRequest(project_id=PROJECT, index=wanted)
    ).result(timeout=20)
    return created


def listed(admin: v1.DatastoreAdminClient) -> list[v1.Index]:
    return list(admin.list_indexes(v1.ListIndexesRequest(project_id=PROJECT, page_size=1)))


def test_an_index_counts_while_it_is_there(admin: v1.DatastoreAdminClient) -> None:
    def ask() -> None:
        query = client().query(kind="K", order=["a", "-b"])
        list(query.fetch())

    with pytest.raises(exceptions.FailedPrecondition, match="no matching index"):
        ask()
    created = create(admin, index("a", "-b"))
    assert created.state == v1.Index.State.READY
    with pytest.raises(exceptions.AlreadyExists):
        create(admin, index("a", "-b"))
    ask()
    assert {each.index_id for each in listed(admin)} >= {created.index_id}
    assert len(listed(admin)) == 2, "with that of the file"
    request = v1.GetIndexRequest(project_id=PROJECT, index_id=created.index_id)
    assert admin.get_index(request) == created
    admin.delete_index(v1.DeleteIndexRequest(project_id=PROJECT, index_id=created.index_id)).result(
        timeout=20
    )
    with pytest.raises(exceptions.FailedPrecondition, match="no matching index"):
        ask()
    with pytest.raises(exceptions.NotFound):
        admin.get_index(request)


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (index("a", "b"), exceptions.AlreadyExists),  # in the file
        (index("a"), exceptions.InvalidArgument),
        (index("a", "a"), exceptions.InvalidArgument),
        (index("a", "b", ancestor=0), exceptions.InvalidArgument),
        (index("a", "c", index_id="mine"), exceptions.InvalidArgument),
    ],
)
def test_indexes_that_are_refused(
    admin: v1.DatastoreAdminClient, wanted: v1.Index, error: type[Exception]
) -> None:
    with pytest.raises(error):
        create(admin, wanted)
    (defined,) = listed(admin)
    with pytest.raises(exceptions.FailedPrecondition, match=r"index\.yaml: remove it there"):
        admin.delete_index(v1.DeleteIndexRequest(project_id=PROJECT, index_id=defined.index_id))
