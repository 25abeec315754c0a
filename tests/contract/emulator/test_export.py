"""The commands `export` and `import`: a folder of JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import userlock_emulator
from tests.contract.emulator.conftest import Stub
from tests.contract.emulator.process import refused, run_to_end
from tests.unit.emulator.builders import PROJECT, GeoPoint, Timestamp, entity, key, value
from userlock_emulator.datastore.protos import Message, Mutation

ALL_TYPES = {
    "none": None,
    "yes": True,
    "large": 2**63 - 1,
    "small": -(2**63),
    "real": 0.1,
    "infinite": float("inf"),
    "negative_zero": -0.0,
    "text": 'ü\n"\u2028\x00',
    "blob": bytes(range(256)),
    "at": Timestamp(1_700_000_000_123_456),
    "where": GeoPoint((1.5, -2.5)),
    "other": key("Other", "x", namespace="space"),
    "many": [1, "a", None],
    "empty": [],
    "inner": {"a": 1, "b": {"c": [True]}},
    "hidden": value("h", indexed=False),
    "meant": value("m", indexed=False),
}
ALL_TYPES["meant"].meaning = 15


def elsewhere(of: Message, database: str = "", namespace: str = "") -> Message:
    of.partition_id.database_id = database
    of.partition_id.namespace_id = namespace
    return of


# They differ in each part; some of the kinds make bad file names.
KEYS = [
    key("K", 1),
    key("K", 1, "Child", "a"),
    key("K", 2),
    key("K", 1, project="example.com:other"),
    elsewhere(key("K", 1), database="db"),
    elsewhere(key("K", 1), namespace=".."),
    elsewhere(key("K", 1), database="db", namespace="n"),
    *(key(kind, 1) for kind in ("..", ".", "a/b", "../../up", "k" * 1500, "K" * 1500, "ü" * 99)),
]


def test_everything_comes_back(
    server: userlock_emulator.Emulator, stub: Stub, tmp_path: Path
) -> None:
    for of in KEYS:
        stub.put(entity(of, **ALL_TYPES))
    before = [stub.get(of) for of in KEYS]
    folder = tmp_path / "new" / "folder"
    completed = run_to_end("export", str(folder), "--host", server.host)
    assert (completed.returncode, completed.stderr) == (0, "")
    written = json.loads((folder / "export.json").read_text())
    assert written == {"format": 1, "entities": len(KEYS)}
    files = list(folder.rglob("*.jsonl"))
    assert folder / PROJECT / "(default)" / "(default)" / "K.jsonl" in files
    assert len(files) == len(KEYS) - 1  # two are of one kind in one place

    server.reset()
    stub.put(entity(key("K", 2), was="there"))
    completed = run_to_end("import", str(folder), "--host", server.host)
    assert completed.stdout == f"{len(KEYS)} entities read from {folder}\n"
    assert [stub.get(of) for of in KEYS] == before


def test_more_than_is_read_at_once_is_as_of_one_time(
    server: userlock_emulator.Emulator, stub: Stub, tmp_path: Path
) -> None:
    stub.commit(*(Mutation(upsert=entity(key("K", i), n=i)) for i in range(1, 1002)))
    lines = server._control._transfer.lines()
    first = next(lines)
    stub.put(entity(key("K", 1001), n=-1))
    stub.put(entity(key("K", 1002), n=-1))
    written = (first + b"".join(lines)).splitlines()
    assert len(written) == 1001
    assert not [line for line in written if b'"-1"' in line]
    completed = run_to_end("export", str(tmp_path / "x"), "--host", server.host)
    assert completed.stdout.startswith("1002 entities")


def test_lines_written_by_hand(
    server: userlock_emulator.Emulator, stub: Stub, tmp_path: Path
) -> None:
    path = [{"kind": "Task", "name": "a"}]
    line = json.dumps(
        {
            "key": {"partitionId": {"projectId": PROJECT}, "path": path},
            "properties": {"n": {"integerValue": "1"}},
        }
    )
    # No line end after the last line, and an empty line.
    (tmp_path / "tasks.jsonl").write_text("\n" + line)
    (tmp_path / "users.jsonl").write_text(line.replace("Task", "User"))
    assert run_to_end("import", str(tmp_path), "--host", server.host).returncode == 0
    assert stub.get(key("Task", "a")) == entity(key("Task", "a"), n=1)
    assert stub.get(key("User", "a")) is not None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{", "line 1 is not an entity"),
        ('{"kye": {}}', "kye"),
        ('{"key": {"path": [{"kind": "K"}]}}', "no partitionId.projectId"),
        ('{"key": {"partitionId": {"projectId": "p"}}}', "Key path is empty"),
    ],
)
def test_lines_that_are_no_entities(
    server: userlock_emulator.Emulator, tmp_path: Path, line: str, text: str
) -> None:
    (tmp_path / "k.jsonl").write_text(line)
    refused(run_to_end("import", str(tmp_path), "--host", server.host), text)


def test_folders_that_cannot_be_used(server: userlock_emulator.Emulator, tmp_path: Path) -> None:
    (tmp_path / "export.json").write_text('{"format": 2}')
    for verb, folder, *texts in (
        ("import", tmp_path / "none", str(tmp_path / "none")),
        ("import", tmp_path, "newer version", "format 2"),
        ("export", tmp_path, str(tmp_path), "not empty"),
        ("export", "/proc/none", "/proc/none"),
    ):
        refused(run_to_end(str(verb), str(folder), "--host", server.host), *map(str, texts))
