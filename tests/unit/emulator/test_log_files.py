"""LevelDB's log format, and the entities of exports."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.emulator.builders import PROJECT, GeoPoint, Timestamp, entity, key, value
from userlock_emulator.datastore import legacy_entities
from userlock_emulator.datastore.errors import DatastoreError
from userlock_emulator.datastore.export_urls import ExportPlaces
from userlock_emulator.datastore.log_files import LogFileError, LogWriter, masked_crc, records
from userlock_emulator.datastore.protos import EntityPb

BLOCK = 32 * 1024
HEADER = 7


def written(*items: bytes) -> bytes:
    file = io.BytesIO()
    writer = LogWriter(file)
    for item in items:
        writer.write(item)
    assert writer.size == len(file.getvalue())
    return file.getvalue()


def test_the_format_is_the_published_one() -> None:
    """The checksum is that of the first record of an export by Google's emulator."""
    assert masked_crc(b"\x01" + b"3") == int.from_bytes(bytes.fromhex("b86d444e"), "little")
    data = written(b"a" * (BLOCK - HEADER - 3), b"x")
    assert data[BLOCK - 4 : BLOCK] == b"a" + bytes(3), "a header never crosses a block"


SIZES = [0, 1, BLOCK - 2 * HEADER - 1, BLOCK - HEADER, BLOCK - HEADER + 1, 2 * BLOCK, 5 * BLOCK + 3]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(SIZES) | st.integers(0, 100), max_size=6))
def test_records_survive(sizes: list[int]) -> None:
    items = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    assert list(records(io.BytesIO(written(*items)))) == items


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda data: data[:-1], "ends within a record"),
        (lambda data: data[:BLOCK], "ends within a record"),
        (lambda data: data[:20] + b"\xff" + data[21:], "at byte 0: the checksum is wrong"),
        (lambda data: data[:6] + b"\x09" + data[7:], "at byte 0: the checksum is wrong"),
        (lambda data: data[BLOCK:], "at byte 0: a record begins or goes on at the wrong place"),
    ],
)
def test_damage_is_found(damage: Any, text: str) -> None:
    data = damage(written(b"a" * BLOCK + b"b"))
    with pytest.raises(LogFileError, match=text):
        list(records(io.BytesIO(data)))


# --- entities -----------------------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {
    "null": None,
    "yes": True,
    "number": -(2**63),
    "float": 2.5,
    "text": "héllo",
    "blob": b"\x00\xff",
    "key": key("A", 1, "B", "b"),
    "array": [1, "two", None, b"3", key("A", 1)],
    "empty": [],
    "point": GeoPoint((1.5, -2.5)),
}


def stored() -> EntityPb:
    return entity(
        key("Parent", "x", "K", 5),
        **EVERYTHING,
        **{
            f"raw_{name}": value(item, indexed=False)
            for name, item in EVERYTHING.items()
            if item != []
        },
    )


def test_all_values_survive() -> None:
    wanted = stored()
    inner = wanted.properties["inner"].entity_value
    inner.properties["a"].CopyFrom(value(1))
    inner.key.CopyFrom(key("I", 7))
    wanted.properties["bare"].entity_value.properties["deep"].CopyFrom(value([1]))
    wanted.properties["time"].CopyFrom(value(Timestamp(1_577_934_245_678_901)))
    assert legacy_entities.decode(legacy_entities.encode(wanted), PROJECT, "") == wanted
    # Keys move to the project of the import.
    found = legacy_entities.decode(legacy_entities.encode(wanted), "another", "")
    assert found.key.partition_id.project_id == "another"
    assert found.properties["key"].key_value.partition_id.project_id == "another"


@pytest.mark.parametrize("record", [b"", b"\xff", b"\x72\x00", b"j\x02j\x00"])
def test_other_records_are_refused(record: bytes) -> None:
    with pytest.raises(DatastoreError, match="a record is not an entity"):
        legacy_entities.decode(record, PROJECT, "")


# --- places -------------------------------------------------------------------------------------


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    (tmp_path / "exports/bucket").mkdir(parents=True)
    (tmp_path / "exports/bucket/out").symlink_to("/etc")
    return tmp_path / "exports"


def test_buckets_are_folders(exports: Path) -> None:
    places = ExportPlaces(exports, anywhere=True)
    assert places.find("gs://bucket/a/b") == exports / "bucket/a/b"
    assert places.find(str(exports / "bucket")) == exports / "bucket"
    assert places.find(f"file://{exports}/a%20b") == exports / "a b"
    assert ExportPlaces(None, anywhere=True).find(str(exports)) == exports


def test_other_places_are_refused(exports: Path) -> None:
    for url in (
        "gs://bucket/../../etc", "gs:///x", "gs://UPPER/x", "gs://../x", "gs://b/x?y", "relative",
        "https://example.com/x", "file://host/x", "/etc", "file:///etc", "", "/a\x00b",
        "gs://bucket/out/x",
    ):  # fmt: skip
        with pytest.raises(DatastoreError):
            ExportPlaces(exports, anywhere=True).find(url)
    for anywhere, place in ((True, "gs://bucket/x"), (False, str(exports))):
        with pytest.raises(DatastoreError, match="--exports FOLDER"):
            ExportPlaces(None, anywhere=anywhere).find(place)
