"""The checker of trees finds each error, and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.findings import Kind
from tests.chaos.history import Felling, History, read
from tests.chaos.record import Outcome, Recorder, StoredTrees, Write
from tests.chaos.trees import Trees
from tests.chaos.writes import check

#: A tree that stays, with a leaf; one that was deleted, with its leaf.
STORED = StoredTrees(
    roots=frozenset({"stays"}), leaves={"leaf": "stays"}, files=frozenset({"leaf"})
)


def history(
    *,
    felled: Outcome | None = Outcome.ACCEPTED,
    forbidden: bool = False,
    gone: Outcome = Outcome.ACCEPTED,
) -> History:
    """Return the records of the two trees.

    Args:
        felled: the outcome of the second one's deletion; None: there was none.
        forbidden: whether it was.
        gone: the outcome of the writes of the second one.
    """
    outcomes = {
        "stays": Outcome.ACCEPTED,
        "leaf": Outcome.ACCEPTED,
        "goes": gone,
        "its leaf": gone,
    }
    return History(
        writes={id_: Write(id_, id_, None, None, outcome=each) for id_, each in outcomes.items()},
        planted={"stays": "stays", "leaf": "stays", "goes": "goes", "its leaf": "goes"},
        fellings={} if felled is None else {"f": Felling("goes", forbidden, felled)},
    )


def found(history: History, **stored: Any) -> list[tuple[Kind, str]]:
    """Return the findings of both checkers."""
    now = dataclasses.replace(STORED, **stored)
    trees = Trees(history, now)
    compared = check(list(history.writes.values()), {}, trees.landed)
    return [(each.kind, each.about) for each in (*trees.findings(), *compared.findings)]


@pytest.mark.parametrize("felled", [Outcome.ACCEPTED, Outcome.UNKNOWN])
def test_a_deleted_tree_is_gone(felled: Outcome) -> None:
    assert found(history(felled=felled)) == []


@pytest.mark.parametrize("felled", [None, Outcome.REFUSED, Outcome.UNKNOWN])
def test_a_tree_that_stays(felled: Outcome | None) -> None:
    leaves = {"leaf": "stays", "its leaf": "goes"}
    everything = {
        "roots": frozenset({"stays", "goes"}),
        "leaves": leaves,
        "files": frozenset(leaves),
    }
    assert found(history(felled=felled), **everything) == []


@pytest.mark.parametrize("felled", [None, Outcome.REFUSED])
def test_a_tree_that_was_not_to_be_deleted(felled: Outcome | None) -> None:
    assert found(history(felled=felled)) == [(Kind.LOST, "goes"), (Kind.LOST, "its leaf")]


def test_a_refused_tree_is_not_missed() -> None:
    assert found(history(felled=None, gone=Outcome.REFUSED)) == []
    assert found(history(felled=None, gone=Outcome.UNKNOWN)) == []


def test_a_refused_tree_that_is_there() -> None:
    stored = {"roots": frozenset({"stays", "goes"})}
    assert found(history(felled=None, gone=Outcome.REFUSED), **stored) == [(Kind.PHANTOM, "goes")]


def test_a_deletion_that_was_lost() -> None:
    leaves = {"leaf": "stays", "its leaf": "goes"}
    assert found(
        history(), roots=frozenset({"stays", "goes"}), leaves=leaves, files=frozenset(leaves)
    ) == [(Kind.LOST, "f")]


def test_an_orphan() -> None:
    leaves = {"leaf": "stays", "its leaf": "goes"}
    assert found(history(), leaves=leaves, files=frozenset(leaves)) == [(Kind.ORPHAN, "its leaf")]


def test_a_leaf_of_a_tree_that_stays_is_missed() -> None:
    assert found(history(), leaves={}, files=frozenset()) == [(Kind.LOST, "leaf")]


def test_files() -> None:
    assert found(history(), files=frozenset()) == [(Kind.LOST, "leaf")]
    assert found(history(), files=frozenset({"leaf", "its leaf"})) == [(Kind.LEFT, "its leaf")]
    unknown = history(gone=Outcome.UNKNOWN)
    assert found(unknown, files=frozenset({"leaf", "its leaf"})) == [], "its put may have failed"


def test_a_deletion_without_the_lock() -> None:
    assert found(history(forbidden=True)) == [(Kind.UNCHECKED, "f")]
    assert found(history(forbidden=True, felled=Outcome.UNKNOWN)) == []


def test_what_is_left() -> None:
    assert found(history(), unfinished=["a deletion"]) == [(Kind.LEFT, "a deletion")]
    assert found(history(), problems=["void x"]) == [(Kind.CLAIM, "void x")]
    titles = [("ann", "x"), ("bob", "x"), ("ann", "y")]
    assert found(history(), titles=titles) == []
    assert found(history(), titles=[*titles, ("ann", "x")]) == [(Kind.TWICE, "x")]


def test_records_are_read(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.jsonl")
    recorder.note("planted", id="leaf", tree="root")
    recorder.note("felling", id="f", tree="root", forbidden=False)
    recorder.note("felling", id="g", tree="root", forbidden=True)
    recorder.note("felled", id="f", outcome="accepted")
    recorder.close()
    history = read([tmp_path / "a.jsonl"])
    assert history.planted == {"leaf": "root"}
    assert history.fellings == {
        "f": Felling("root", forbidden=False, outcome=Outcome.ACCEPTED),
        "g": Felling("root", forbidden=True, outcome=Outcome.UNKNOWN),
    }
