"""Composite indexes: requirements, refusals, and additions to index.yaml."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.emulator.builders import PROJECT, key
from tests.unit.emulator.subject import Subject, query, where
from userlock_emulator.datastore import index_file
from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.composite import CompositeIndex, requirements
from userlock_emulator.datastore.engine import Engine
from userlock_emulator.datastore.errors import Code, DatastoreError, StorageError
from userlock_emulator.datastore.index_policy import IndexPolicy
from userlock_emulator.datastore.protos import QueryPb, RunAggregationQueryRequest, RunQueryRequest
from userlock_emulator.datastore.query import Order
from userlock_emulator.datastore.query_parser import parse_query
from userlock_emulator.datastore.storage import Storage

BELOW = ("__key__", "ancestor", key("P", 1))
Conditions = tuple[tuple[str, str, Any], ...]


def asked(filters: Conditions = (), orders: tuple[str, ...] = (), **fields: Any) -> QueryPb:
    return query("K", where(*filters) if filters else None, orders, **fields)


def index(*names: str, ancestor: bool = False) -> CompositeIndex:
    """Return an index on K; a descending property starts with "-"."""
    orders = tuple(Order(name.removeprefix("-"), name.startswith("-")) for name in names)
    return CompositeIndex("K", ancestor, orders)


def needed(message: QueryPb, *aggregated: str) -> list[CompositeIndex]:
    parsed = parse_query(message, Partition(PROJECT, "", ""), None)
    found = [each.composite for each in requirements(parsed, aggregated)]
    return [each for each in found if each is not None]


@pytest.mark.parametrize(
    "message",
    [
        asked(),
        asked((BELOW,)),
        asked((("a", "=", 1), ("b", "=", 2), BELOW)),
        asked((("a", ">", 1), ("a", "<", 5))),
        asked((("a", ">", 1),), ("a",)),
        asked((("a", "!=", 1),)),
        asked((("a", "in", [1, 2]), ("b", "=", 2))),
        asked(orders=("a",)),
        asked(orders=("-a",)),
        asked(orders=("a", "__key__")),
        asked((("a", "=", 1),), ("a",)),
        asked((("a", "=", 1), ("__key__", ">", key("K", 1)))),
        asked(projection=("a",)),
        asked(projection=("__key__",)),
        query(None, where(BELOW)),
    ],
)
def test_the_built_in_indexes_do(message: QueryPb) -> None:
    assert needed(message) == []


@pytest.mark.parametrize(
    ("message", "indexes"),
    [
        (asked((("b", "=", 1), ("a", ">", 1))), [index("b", "a")]),
        (asked((("b", "=", 1), ("a", "=", 1)), ("-c",)), [index("a", "b", "-c")]),
        (asked(orders=("a", "-b")), [index("a", "-b")]),
        (asked(orders=("-__key__",)), [index("-__key__")]),
        (asked(orders=("a", "-__key__")), [index("a", "-__key__")]),
        (asked((("a", "=", 1),), ("-__key__",)), [index("a", "-__key__")]),
        (asked((("a", ">", 1), BELOW)), [index("a", ancestor=True)]),
        (asked((BELOW,), ("a",)), [index("a", ancestor=True)]),
        (asked(projection=("b", "a")), [index("b", "a")]),
        (asked((("c", "=", 1),), projection=("a",)), [index("c", "a")]),
        (asked((("a", ">", 1), ("b", ">", 1))), [index("a", "b")]),
        (asked((("a", "in", [1, 2]),), ("b",)), [index("a", "b")]),
    ],
)
def test_a_composite_index_is_needed(message: QueryPb, indexes: list[CompositeIndex]) -> None:
    assert needed(message) == indexes


def test_sums_are_read_from_an_index() -> None:
    assert needed(asked(), "n") == []
    assert needed(asked((("a", "=", 1),)), "n") == [index("a", "n")]


@pytest.mark.parametrize(
    ("message", "defined", "met"),
    [
        (asked((("a", "=", 1), ("b", "=", 1)), ("c",)), [index("b", "-a", "c")], True),
        (asked((("a", "=", 1), ("b", "=", 1)), ("c",)), [index("a", "b", "-c")], False),
        (asked((("a", "=", 1), ("b", "=", 1)), ("c",)), [index("a", "c")], False),
        (
            asked((("a", "=", 1), ("b", "=", 1)), ("c",)),
            [index("a", "c"), index("b", "c")],
            True,
        ),
        (asked((("a", "=", 1),), ("c",)), [index("a", "b", "c")], False),
        (asked(orders=("a", "b")), [index("b", "a")], False),
        (asked(projection=("a", "b")), [index("b", "-a")], True),
        (asked((("a", ">", 1), BELOW)), [index("a")], False),
        (asked((("a", ">", 1), BELOW)), [index("a", ancestor=True)], True),
        (asked(orders=("a", "b")), [index("a", "b", ancestor=True)], False),
    ],
)
def test_which_indexes_do(message: QueryPb, defined: list[CompositeIndex], met: bool) -> None:
    parsed = parse_query(message, Partition(PROJECT, "", ""), None)
    (requirement,) = requirements(parsed)
    assert requirement.met_by(defined) == met


class TestFile:
    def test_the_documented_example(self, tmp_path: Path) -> None:
        path = tmp_path / "index.yaml"
        path.write_text(
            "indexes:\n\n- kind: Task  # a comment\n  ancestor: no\n  properties:\n"
            "  - name: done\n  - name: priority\n    direction: desc\n\n"
            "- kind: 'My ''kind'''\n  ancestor: yes\n  properties:\n"
            '    - direction: asc\n      name: "a b"\n'
        )
        assert index_file.read(path) == [
            CompositeIndex("Task", False, (Order("done"), Order("priority", True))),
            CompositeIndex("My 'kind'", True, (Order("a b"),)),
        ]

    def test_written_indexes_are_read(self, tmp_path: Path) -> None:
        path = tmp_path / "index.yaml"
        odd = CompositeIndex(
            "yes", False, (Order("a b"), Order("it's", True), Order("x.y"), Order("n\n"))
        )
        index_file.add(path, [odd])
        index_file.add(path, [index("a", "-b"), odd])
        assert sorted(index_file.read(path)) == sorted([odd, index("a", "-b")])

    def test_the_part_above_the_marker_is_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "index.yaml"
        mine = "# mine\nindexes:\n\n- kind: K\n  properties:\n  - name: z\n  - name: y"
        path.write_text(mine + "\n")
        index_file.add(path, [index("a", "b")])
        index_file.add(path, [index("a", "c")])
        assert path.read_text().startswith(mine + "\n\n# AUTOGENERATED")
        assert index_file.read(path) == [index("z", "y"), index("a", "b"), index("a", "c")]

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("indexes:\n- kind: K\n  colour: red\n", "line 3: not understood: colour"),
            ("indexes:\n- kind: K\n  properties:\n  - name: a\n    direction: up\n", "line 5"),
            ("indexes:\n- kind: K\n  ancestor: 1\n  properties: [{name: a}]\n", "line 3"),
            ("indexes:\n  kind: K\n", "line 2: not understood"),
            ("nonsense", "line 1: not understood"),
            ("indexes:\n- K\n", "line 2: not understood"),
            ("indexes:\n- kind: K\n", "line 2: an index needs a kind and properties"),
            ("indexes:\n- kind: K\n  properties: []\n", "line 3: an index needs properties"),
            ("indexes:\n- kind: K\n  properties:\n  - direction: asc\n", "line 4: .*a name"),
            ("indexes:\n- kind: [K]\n  properties:\n  - name: a\n", "line 2: .*text of kind"),
            ("indexes:\n- kind: 'K\n", "line 3: found unexpected end of stream"),
            ("indexes:\n- kind: K\n properties:\n", "line 3: "),
            ("a: 1\n---\nb: 2\n", "line 2: "),
            ("indexes:\n- kind: \x00\n", "not allowed"),
        ],
    )
    def test_unknown_content(self, tmp_path: Path, text: str, complaint: str) -> None:
        path = tmp_path / "index.yaml"
        path.write_text(text)
        with pytest.raises(StorageError, match=complaint) as caught:
            index_file.read(path)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("text", ["", "indexes:\n", "indexes: []\n", "---\nindexes:\n# none\n"])
    def test_no_indexes(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "index.yaml"
        path.write_text(text)
        assert index_file.read(path) == []

    def test_all_of_yaml(self, tmp_path: Path) -> None:
        path = tmp_path / "index.yaml"
        path.write_text(
            "indexes: [{kind: K, properties: &both [{name: a}, {name: b, direction: DESC}]},"
            ' {kind: "x\\ny", ancestor: True, properties: *both}]\n'
        )
        assert index_file.read(path) == [
            index("a", "-b"),
            CompositeIndex("x\ny", True, (Order("a"), Order("b", True))),
        ]

    def test_additions_have_the_column_of_the_others(self, tmp_path: Path) -> None:
        path = tmp_path / "index.yaml"
        path.write_text("indexes:\n    -   kind: K\n        properties:\n        - name: a\n")
        index_file.add(path, [index("b", "c")])
        index_file.add(path, [index("b", "d")])
        assert index_file.read(path) == [index("a"), index("b", "c"), index("b", "d")]

    def test_where_nothing_can_be_added_the_file_stays(self, tmp_path: Path) -> None:
        path = tmp_path / "index.yaml"
        path.write_text("indexes: []\n")
        with pytest.raises(StorageError, match=r"an index cannot be added \(line 5: "):
            index_file.add(path, [index("b", "c")])
        assert path.read_text() == "indexes: []\n"

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match=r"cannot use .*index\.yaml"):
            index_file.read(tmp_path / "index.yaml")


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


COMPOSITE = asked((("done", "=", True), BELOW), ("-priority",))
DEFINITION = """- kind: K
  ancestor: yes
  properties:
  - name: done
  - name: priority
    direction: desc
"""


class TestEnforced:
    def test_a_query_without_its_index_is_refused(self, storage: Storage, path: Path) -> None:
        engine = Engine(storage, indexes=IndexPolicy("enforced", path))
        with pytest.raises(DatastoreError) as caught:
            run(engine, COMPOSITE)
        assert caught.value.code is Code.FAILED_PRECONDITION
        assert caught.value.message == (
            f"no matching index found. recommended index is:\n{DEFINITION}"
        )
        with pytest.raises(DatastoreError, match="no matching index"):
            run(engine, COMPOSITE, explain_options={"analyze": False})
        run(engine, asked((("done", "=", True),)))
        run(engine, query("__kind__", orders=("-__key__",)))

    def test_the_recommended_index_does(self, storage: Storage, path: Path) -> None:
        engine = Engine(storage, indexes=IndexPolicy("enforced", path))
        with pytest.raises(DatastoreError):
            run(engine, COMPOSITE)
        path.write_text("indexes:\n" + DEFINITION)
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        run(engine, COMPOSITE)

    def test_aggregations_are_refused_too(self, storage: Storage, path: Path) -> None:
        engine = Engine(storage, indexes=IndexPolicy("enforced", path))
        request = RunAggregationQueryRequest(project_id=PROJECT)
        request.aggregation_query.nested_query.CopyFrom(asked((("done", "=", True),)))
        request.aggregation_query.aggregations.add().count.SetInParent()
        engine.run_aggregation_query(request)
        request.aggregation_query.aggregations.add().sum.property.name = "total"
        with pytest.raises(DatastoreError, match="name: done\n  - name: total\n"):
            engine.run_aggregation_query(request)


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
        with pytest.raises(DatastoreError, match=complaint) as caught:
            run(engine, COMPOSITE)
        assert caught.value.code is Code.FAILED_PRECONDITION
    path.unlink()
    path.write_text("indexes:\n" + DEFINITION)
    run(engine, COMPOSITE)


def test_auto_writes_down_what_is_needed(storage: Storage, tmp_path: Path) -> None:
    path = tmp_path / "index.yaml"
    engine = Engine(storage, indexes=IndexPolicy("auto", path))
    run(engine, asked((("done", "=", True),)))
    assert not path.exists()
    run(engine, COMPOSITE)
    run(engine, COMPOSITE)
    run(engine, asked(orders=("a", "b")))
    assert DEFINITION in path.read_text()
    assert len(index_file.read(path)) == 2
    enforced = Engine(storage, indexes=IndexPolicy("enforced", path))
    run(enforced, COMPOSITE)
    run(enforced, asked(orders=("a", "b")))


def test_by_default_no_index_is_needed(engine: Subject) -> None:
    engine.run(COMPOSITE)


@pytest.mark.parametrize("mode", ["enforced", "auto"])
def test_a_file_is_needed(mode: str) -> None:
    with pytest.raises(StorageError, match="needs an index file"):
        IndexPolicy(mode)


def test_an_unknown_mode() -> None:
    with pytest.raises(ValueError, match="off, enforced, auto"):
        IndexPolicy("on")


def test_auto_stops_when_the_file_is_full(storage: Storage, tmp_path: Path) -> None:
    path = tmp_path / "index.yaml"
    by_hand = "indexes:\n- kind: K\n  properties:\n  - name: mine\n"
    path.write_text(by_hand)
    index_file.add(path, [index("a", str(n)) for n in range(index_file.MOST_INDEXES - 2)])
    engine = Engine(storage, indexes=IndexPolicy("auto", path))

    def run(orders: tuple[str, ...]) -> None:
        engine.run_query(RunQueryRequest(project_id=PROJECT, query=asked(orders=orders)))

    run(("b", "c"))
    full = path.read_text()
    assert len(index_file.read(path)) == index_file.MOST_INDEXES
    for _ in range(3):
        with pytest.raises(DatastoreError, match="it is full: 200 indexes") as caught:
            run(("b", "d"))
        assert caught.value.code is Code.FAILED_PRECONDITION
    assert path.read_text() == full
    assert full.startswith(by_hand)
    # Those that are defined still answer, and a developer may add more by hand.
    run(("b", "c"))
    path.write_text(by_hand + "- kind: K\n  properties:\n  - name: b\n  - name: d\n")
    run(("b", "d"))


def test_auto_stops_at_large_indexes_too(tmp_path: Path) -> None:
    path = tmp_path / "index.yaml"
    with pytest.raises(StorageError, match="it is full"):
        index_file.add(path, [index(*("n" * 1400 + str(n) for n in range(100)))])
    assert not list(tmp_path.iterdir())


def test_a_new_file_is_for_its_owner_and_an_existing_one_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "index.yaml"
    index_file.add(path, [index("a", "b")])
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    index_file.add(path, [index("a", "c")])
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]
