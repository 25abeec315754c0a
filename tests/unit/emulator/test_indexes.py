"""Composite indexes: requirements, refusals, and additions to index.yaml."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.emulator.builders import PROJECT, key
from tests.unit.emulator.subject import aggregation, query, refused
from userlock_emulator.datastore import index_file
from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.composite import CompositeIndex, requirements
from userlock_emulator.datastore.engine import Engine
from userlock_emulator.datastore.errors import Code, StorageError
from userlock_emulator.datastore.index_policy import IndexPolicy
from userlock_emulator.datastore.protos import QueryPb, RunQueryRequest
from userlock_emulator.datastore.query import Order
from userlock_emulator.datastore.query_parser import parse_query
from userlock_emulator.datastore.storage import Storage

BELOW = ("__key__", "ancestor", key("P", 1))


def index(*names: str, ancestor: bool = False) -> CompositeIndex:
    """Return an index on K; a descending property starts with "-"."""
    orders = tuple(Order(name.removeprefix("-"), name.startswith("-")) for name in names)
    return CompositeIndex("K", ancestor, orders)


def needed(message: QueryPb) -> list[CompositeIndex]:
    parsed = parse_query(message, Partition(PROJECT, "", ""), None)
    found = [each.composite for each in requirements(parsed)]
    return [each for each in found if each is not None]


@pytest.mark.parametrize(
    ("message", "indexes"),
    [
        (query(), []),
        (query("K", (("a", "=", 1), ("b", "=", 2), BELOW)), []),
        (query("K", (("a", ">", 1),), ("a",)), []),
        (query("K", (("a", "in", [1, 2]), ("b", "=", 2))), []),
        (query(orders=("a", "__key__")), []),
        (query("K", (("a", "=", 1), ("__key__", ">", key("K", 1)))), []),
        (query(projection=("a",)), []),
        (query(None, (BELOW,)), []),
        (query("K", (("b", "=", 1), ("a", ">", 1))), [index("b", "a")]),
        (query("K", (("b", "=", 1), ("a", "=", 1)), ("-c",)), [index("a", "b", "-c")]),
        (query(orders=("a", "-b")), [index("a", "-b")]),
        (query(orders=("-__key__",)), [index("-__key__")]),
        (query(orders=("a", "-__key__")), [index("a", "-__key__")]),
        (query("K", (("a", ">", 1), BELOW)), [index("a", ancestor=True)]),
        (query("K", (BELOW,), ("a",)), [index("a", ancestor=True)]),
        (query(projection=("b", "a")), [index("b", "a")]),
        (query("K", (("c", "=", 1),), projection=("a",)), [index("c", "a")]),
        (query("K", (("a", ">", 1), ("b", ">", 1))), [index("a", "b")]),
        (query("K", (("a", "in", [1, 2]),), ("b",)), [index("a", "b")]),
    ],
)
def test_the_composite_indexes_that_are_needed(
    message: QueryPb, indexes: list[CompositeIndex]
) -> None:
    assert needed(message) == indexes


@pytest.mark.parametrize(
    ("message", "defined", "met"),
    [
        (query("K", (("a", "=", 1), ("b", "=", 1)), ("c",)), [index("b", "-a", "c")], True),
        (query("K", (("a", "=", 1), ("b", "=", 1)), ("c",)), [index("a", "b", "-c")], False),
        (
            query("K", (("a", "=", 1), ("b", "=", 1)), ("c",)),
            [index("a", "c"), index("b", "c")],
            True,
        ),
        (query("K", (("a", "=", 1),), ("c",)), [index("a", "b", "c")], False),
        (query(projection=("a", "b")), [index("b", "-a")], True),
        (query("K", (("a", ">", 1), BELOW)), [index("a")], False),
        (query("K", (("a", ">", 1), BELOW)), [index("a", ancestor=True)], True),
        (query(orders=("a", "b")), [index("a", "b", ancestor=True)], False),
    ],
)
def test_which_indexes_do(message: QueryPb, defined: list[CompositeIndex], met: bool) -> None:
    parsed = parse_query(message, Partition(PROJECT, "", ""), None)
    (requirement,) = requirements(parsed)
    assert requirement.met_by(defined) == met


class TestFile:
    @pytest.mark.parametrize(
        ("text", "indexes"),
        [
            (
                "indexes:\n\n- kind: Task  # a comment\n  ancestor: no\n  properties:\n"
                "  - name: done\n  - name: priority\n    direction: desc\n\n"
                "- kind: 'My ''kind'''\n  ancestor: yes\n  properties:\n"
                '    - direction: asc\n      name: "a b"\n',
                [
                    CompositeIndex("Task", False, (Order("done"), Order("priority", True))),
                    CompositeIndex("My 'kind'", True, (Order("a b"),)),
                ],
            ),
            (
                "indexes: [{kind: K, properties: &both [{name: a}, {name: b, direction: DESC}]},"
                ' {kind: "x\\ny", ancestor: True, properties: *both}]\n',
                [
                    index("a", "-b"),
                    CompositeIndex("x\ny", True, (Order("a"), Order("b", True))),
                ],
            ),
            *((text, []) for text in ("", "indexes:\n", "indexes: []\n", "---\nindexes:\n# no\n")),
        ],
    )
    def test_it_is_read(self, tmp_path: Path, text: str, indexes: list[CompositeIndex]) -> None:
        path = tmp_path / "index.yaml"
        path.write_text(text)
        assert index_file.read(path) == indexes

    def test_indexes_are_added(self, tmp_path: Path) -> None:
        path = tmp_path / "index.yaml"
        odd = CompositeIndex(
            "yes", False, (Order("a b"), Order("it's", True), Order("x.y"), Order("n\n"))
        )
        index_file.add(path, [odd])
        index_file.add(path, [index("a", "-b"), odd])
        assert sorted(index_file.read(path)) == sorted([odd, index("a", "-b")])
        assert path.stat().st_mode & 0o777 == 0o600
        # What a developer has written stays, with its column and mode.
        path.chmod(0o644)
        mine = "# mine\nindexes:\n    -   kind: K\n        properties:\n        - name: a\n"
        path.write_text(mine)
        index_file.add(path, [index("b", "c")])
        index_file.add(path, [index("b", "d")])
        assert path.read_text().startswith(mine + "\n# AUTOGENERATED")
        assert index_file.read(path) == [index("a"), index("b", "c"), index("b", "d")]
        assert path.stat().st_mode & 0o777 == 0o644
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize(
        ("text", "added", "complaint"),
        [
            ("indexes: []\n", index("b", "c"), r"an index cannot be added \(line 5: "),
            ("", index(*("n" * 1400 + str(n) for n in range(100))), "it is full"),
        ],
    )
    def test_where_nothing_can_be_added_the_file_stays(
        self, tmp_path: Path, text: str, added: CompositeIndex, complaint: str
    ) -> None:
        path = tmp_path / "index.yaml"
        path.write_text(text)
        with pytest.raises(StorageError, match=complaint):
            index_file.add(path, [added])
        assert path.read_text() == text
        with pytest.raises(StorageError, match=r"cannot use .*missing\.yaml"):
            index_file.read(tmp_path / "missing.yaml")

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("indexes:\n- kind: K\n  colour: red\n", "line 3: not understood: colour"),
            ("indexes:\n- kind: K\n  properties:\n  - name: a\n    direction: up\n", "line 5"),
            ("indexes:\n- kind: K\n  ancestor: 1\n  properties: [{name: a}]\n", "line 3"),
            ("indexes:\n  kind: K\n", "line 2: not understood"),
            ("nonsense", "line 1: not understood"),
            ("indexes:\n- kind: K\n", "line 2: an index needs a kind and properties"),
            ("indexes:\n- kind: K\n  properties:\n  - direction: asc\n", "line 4: .*a name"),
            ("indexes:\n- kind: [K]\n  properties:\n  - name: a\n", "line 2: .*text of kind"),
            ("indexes:\n- kind: 'K\n", "line 3: found unexpected end of stream"),
            ("indexes:\n- kind: \x00\n", "not allowed"),
        ],
    )
    def test_unknown_content(self, tmp_path: Path, text: str, complaint: str) -> None:
        path = tmp_path / "index.yaml"
        path.write_text(text)
        with pytest.raises(StorageError, match=complaint) as caught:
            index_file.read(path)
        assert "\n" not in str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "index.yaml"
    path.write_text("indexes:\n")
    return path


@pytest.fixture
def storage() -> Iterator[Storage]:
    storage = Storage()
    yield storage
    storage.close()


def run(engine: Engine, message: QueryPb, **fields: Any) -> None:
    engine.run_query(RunQueryRequest(project_id=PROJECT, query=message, **fields))


COMPOSITE = query("K", (("done", "=", True), BELOW), ("-priority",))
DEFINITION = """- kind: K
  ancestor: yes
  properties:
  - name: done
  - name: priority
    direction: desc
"""


def not_served(complaint: str) -> AbstractContextManager[None]:
    return refused(complaint, Code.FAILED_PRECONDITION)


def test_enforced(storage: Storage, path: Path) -> None:
    engine = Engine(storage, indexes=IndexPolicy("enforced", path))
    with not_served(f"^no matching index found. recommended index is:\n{DEFINITION}$"):
        run(engine, COMPOSITE)
    with not_served("no matching index"):
        run(engine, COMPOSITE, explain_options={"analyze": False})
    run(engine, query("K", (("done", "=", True),)))
    run(engine, query("__kind__", orders=("-__key__",)))
    done = query("K", (("done", "=", True),))
    engine.run_aggregation_query(aggregation(done, ("count", None, "")))
    with not_served("name: done\n  - name: total\n"):
        engine.run_aggregation_query(aggregation(done, ("sum", "total", "")))
    # The file is read again after a change.
    path.write_text("indexes:\n" + DEFINITION)
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    run(engine, COMPOSITE)


@pytest.mark.parametrize(
    ("mode", "text", "complaint"),
    [
        ("enforced", "nonsense", "line 1: not understood"),
        ("auto", "nonsense", "line 1: not understood"),
        ("auto", "indexes: []", "cannot be added"),
    ],
)
def test_a_file_that_is_spoilt_later(
    storage: Storage, path: Path, mode: str, text: str, complaint: str
) -> None:
    """The client learns the error, and it can be fixed."""
    engine = Engine(storage, indexes=IndexPolicy(mode, path))
    path.unlink()  # a file with another inode
    path.write_text(text)
    for _ in range(2):
        with not_served(complaint):
            run(engine, COMPOSITE)
    path.unlink()
    path.write_text("indexes:\n" + DEFINITION)
    run(engine, COMPOSITE)


def test_modes() -> None:
    for mode in ("enforced", "auto"):
        with pytest.raises(StorageError, match="needs an index file"):
            IndexPolicy(mode)
    with pytest.raises(ValueError, match="off, enforced, auto"):
        IndexPolicy("on")


def test_auto_writes_down_what_is_needed(storage: Storage, tmp_path: Path) -> None:
    path = tmp_path / "index.yaml"
    engine = Engine(storage, indexes=IndexPolicy("auto", path))
    run(engine, query("K", (("done", "=", True),)))
    assert not path.exists()
    run(engine, COMPOSITE)
    run(engine, COMPOSITE)
    run(engine, query(orders=("a", "b")))
    assert DEFINITION in path.read_text()
    assert len(index_file.read(path)) == 2
    enforced = Engine(storage, indexes=IndexPolicy("enforced", path))
    run(enforced, COMPOSITE)
    run(enforced, query(orders=("a", "b")))
