"""The checker of writes finds errors, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.chaos.findings import Finding, Kind
from tests.chaos.record import Outcome, Stored, Write
from tests.chaos.writes import check

ACCEPTED, REFUSED, UNKNOWN = Outcome.ACCEPTED, Outcome.REFUSED, Outcome.UNKNOWN


def put(
    name: str,
    before: str | None,
    outcome: Outcome = ACCEPTED,
    *,
    entity: str = "e",
    together: str | None = None,
    operation: str = "",
) -> Write:
    return Write(
        name,
        operation or f"of {name}",
        entity,
        before,
        together=together,
        outcome=outcome,
        reported=None if outcome is UNKNOWN else 1.0,
    )


def delete(name: str, before: str, outcome: Outcome = ACCEPTED) -> Write:
    return Write(name, f"of {name}", "e", before, deletes=True, outcome=outcome, made=2.0)


def entry(name: str, outcome: Outcome = ACCEPTED, together: str | None = None) -> Write:
    return Write(name, f"of {name}", None, None, together=together, outcome=outcome)


def found(
    writes: Sequence[Write], stored: Stored | None = None, single: Sequence[str] = ()
) -> dict[Kind, list[str]]:
    """Return the findings by kind; there is one entity `e`."""
    return by_kind(check(writes, {} if stored is None else {"e": stored}, single).findings)


def by_kind(findings: Sequence[Finding]) -> dict[Kind, list[str]]:
    return {
        kind: [each.about for each in findings if each.kind is kind]
        for kind in Kind
        if any(each.kind is kind for each in findings)
    }


THREE = (put("a", None), put("b", "a"), put("c", "b"))


@pytest.mark.parametrize(
    ("writes", "stored"),
    [
        ([], None),
        (THREE, Stored("c", 3)),
        # A refused write has not landed.
        ([*THREE, put("x", "b", REFUSED)], Stored("c", 3)),
        # An unknown write has landed, or not, and its successor builds on it.
        ([*THREE, put("d", "c", UNKNOWN)], Stored("d", 4)),
        ([*THREE, put("d", "c", UNKNOWN)], Stored("c", 3)),
        ([*THREE, put("d", "c", UNKNOWN), put("f", "d")], Stored("f", 5)),
        ([*THREE, put("d", "c", UNKNOWN), put("f", "c")], Stored("f", 4)),
        ([put("a", None, UNKNOWN)], None),
        # The entity is deleted, and created again.
        ([*THREE, delete("d", "c")], None),
        ([*THREE, delete("d", "c"), put("f", None)], Stored("f", 1)),
        ([*THREE, delete("d", "c", REFUSED)], Stored("c", 3)),
        ([*THREE, delete("d", "c"), delete("e", "c")], None),
        # The deletion is unknown. It has landed.
        ([*THREE, delete("d", "c", UNKNOWN)], None),
        ([*THREE, delete("d", "c", UNKNOWN), put("f", None)], Stored("f", 1)),
        ([*THREE, put("u", "c", UNKNOWN), delete("d", "u", UNKNOWN)], None),
        # It has not.
        ([*THREE, delete("d", "c", UNKNOWN)], Stored("c", 3)),
        ([*THREE, delete("d", "b", UNKNOWN)], Stored("c", 3)),
    ],
)
def test_consistent_histories(writes: Sequence[Write], stored: Stored | None) -> None:
    assert found(writes, stored) == {}


class TestLostUpdates:
    def test_the_last_one_overwritten(self) -> None:
        """Both have read a; c overwrote b."""
        writes = [put("a", None), put("b", "a"), put("c", "a")]
        assert found(writes, Stored("c", 2)) == {Kind.LOST: ["b"], Kind.FORKED: ["a"]}

    def test_with_all_that_was_built_on_it(self) -> None:
        writes = [*THREE, put("x", "a")]
        assert found(writes, Stored("x", 2)) == {Kind.LOST: ["b", "c"], Kind.FORKED: ["a"]}

    def test_overwritten_by_an_unknown_write(self) -> None:
        writes = [*THREE, put("x", "b", UNKNOWN)]
        assert found(writes, Stored("x", 3)) == {Kind.LOST: ["c"], Kind.FORKED: ["b"]}

    def test_an_old_state_came_back(self) -> None:
        """A retried request landed after other writes."""
        assert found(THREE, Stored("b", 2)) == {Kind.LOST: ["c"]}

    def test_a_missing_entity(self) -> None:
        assert found(THREE) == {Kind.LOST: ["a", "b", "c"]}

    def test_of_two_creations_one(self) -> None:
        writes = [put("a", None), put("x", None)]
        assert found(writes, Stored("x", 1)) == {Kind.LOST: ["a"]}

    def test_deleted_without_having_been_read(self) -> None:
        writes = [*THREE, delete("d", "b")]
        assert found(writes) == {Kind.LOST: ["c"], Kind.FORKED: ["b"]}

    def test_a_deletion(self) -> None:
        """A client that had read it before has put it back."""
        writes = [put("a", None), delete("d", "a"), put("b", "a")]
        assert found(writes, Stored("b", 2)) == {Kind.FORKED: ["a"]}

    @pytest.mark.parametrize(("reported", "wrong"), [(None, False), (3.0, False), (1.0, True)])
    def test_a_creation_that_was_deleted_during_its_retry(
        self, reported: float | None, wrong: bool
    ) -> None:
        created = put("a", None)
        created.reported = reported
        writes = [created, put("b", "a"), delete("d", "b"), put("x", "a")]
        assert (found(writes, Stored("x", 2)) != {}) == wrong

    @pytest.mark.parametrize(("reported", "wrong"), [(None, False), (3.0, False), (1.0, True)])
    def test_a_late_deletion_of_a_missing_entity(self, reported: float | None, wrong: bool) -> None:
        """It was to delete a, which was b by then, and deleted."""
        late = delete("late", "a")
        late.reported = reported
        writes = [put("a", None), put("b", "a"), delete("d", "b"), late]
        assert found(writes) == ({Kind.FORKED: ["a"]} if wrong else {})

    @pytest.mark.parametrize(("reported", "wrong"), [(None, False), (3.0, False), (1.0, True)])
    def test_a_late_transaction_that_ends_with_the_deletion_of_a_missing_entity(
        self, reported: float | None, wrong: bool
    ) -> None:
        """It put a as x and deleted it; but a was b by then, and deleted."""
        changed, late = put("x", "a", together="t"), delete("late", "x")
        changed.made, late.together, late.reported = 1.0, "t", reported
        writes = [put("a", None), put("b", "a"), delete("d", "b"), changed, late]
        assert found(writes) == ({Kind.FORKED: ["a"]} if wrong else {})
        same = [put("a", None), delete("d", "a"), changed, late]
        assert found(same) == {}
        # Not if it had put it last.
        late.deletes = False
        assert found(writes, Stored("late", 3)) == {Kind.FORKED: ["a"]}

    def test_a_late_deletion_in_a_transaction_in_doubt(self) -> None:
        """It had landed, although another deletion had removed the entity."""
        moved = put("x", None, UNKNOWN, entity="f", together="t")
        late = delete("late", "a", UNKNOWN)
        late.together = "t"
        writes = [put("a", None), delete("d", "a"), moved, late]
        stored = {"f": Stored("x", 1)}
        assert by_kind(check(writes, stored, ()).findings) == {}
        # Not if the entity was put instead of deleted.
        writes[1] = put("b", "a")
        stored["e"] = Stored("b", 2)
        assert by_kind(check(writes, stored, ()).findings) == {Kind.TORN: ["x"]}

    def test_deletions_in_doubt_do_not_excuse_each_other(self) -> None:
        """b was overwritten by c: no deletion of b has landed, and that of a has lost both."""
        in_doubt = [delete("d", "b", UNKNOWN), delete("d2", "b", UNKNOWN)]
        late = delete("late", "a")
        late.reported = 3.0
        writes = [put("a", None), put("b", "a"), *in_doubt, late, put("c", "b")]
        assert found(writes, Stored("c", 3)) == {Kind.FORKED: ["a"]}

    def test_a_deletion_in_doubt_makes_no_room_for_a_second_creation(self) -> None:
        created, in_doubt = put("a", None), delete("u", "a", UNKNOWN)
        created.reported = 5.0
        gone = delete("d", "b")
        gone.made = 7.0
        writes = [created, in_doubt, put("b", "a"), gone, put("c", "a")]
        assert found(writes, Stored("c", 2)) == {Kind.FORKED: ["a"]}
        late = delete("z", "a")
        late.made, created.reported = 3.0, 2.5
        assert found([created, in_doubt, late], Stored("a", 1)) == {Kind.LOST: ["z"]}

    def test_a_transaction_does_not_excuse_itself(self) -> None:
        """It deletes the entity twice, but another client's b is overwritten."""
        mine = [put("x", "a", together="t"), delete("d", "x")]
        mine += [put("y", None, together="t"), delete("d2", "y")]
        for number, each in enumerate(mine):
            each.together, each.made, each.operation = "t", 1.0 + number / 10, "o"
        writes = [put("a", None), *mine, put("b", "a")]
        assert Kind.FORKED in found(writes, Stored("b", 2))

    def test_an_unknown_deletion_of_a_missing_entity(self) -> None:
        """b was deleted, or not, by a deletion with a lost reply; a new one was created."""
        late = delete("late", "a")
        late.reported = 3.0
        gone = [put("a", None), put("b", "a"), delete("d", "b", UNKNOWN), late]
        assert found(gone) == {}
        assert found([*gone, put("x", None)], Stored("x", 1)) == {}
        # Not if the deletion is known to have failed.
        assert found([*gone, put("c", "b")], Stored("c", 3)) == {Kind.FORKED: ["a"]}

    def test_a_deletion_that_came_before_it_was_gone(self) -> None:
        writes = [put("a", None), put("b", "a"), delete("d", "a"), delete("late", "a")]
        assert found(writes) == {Kind.LOST: ["b"], Kind.FORKED: ["a"]}

    def test_a_deletion_without_a_later_put(self) -> None:
        writes = [*THREE, delete("d", "c")]
        assert found(writes, Stored("c", 3)) == {Kind.LOST: ["d"]}

    def test_a_deletion_after_its_own_refused_put(self) -> None:
        """It deletes the state that was read before that put; any other state must have stayed."""
        refused, deleted = put("x", "a", REFUSED, operation="o"), delete("d", "x")
        deleted.operation = "o"
        assert found([put("a", None), refused, deleted]) == {}
        writes = [put("a", None), put("b", "a"), refused, deleted]
        assert found(writes) == {Kind.LOST: ["b"], Kind.FORKED: ["a"]}

    def test_a_creation_with_two_changes_that_was_deleted_before_its_report(self) -> None:
        """Two puts of one new object at once: the creation is retried with both changes."""
        first, second = put("a", None, operation="o"), put("b", "a", operation="o")
        deleted = delete("d", "b")
        deleted.made, first.reported, second.made = 2.0, 3.0, 1.0
        writes = [first, second, deleted, put("x", "b")]
        assert found(writes, Stored("x", 3)) == {}
        second.made = 4.0  # after the creation had been reported
        assert found(writes, Stored("x", 3)) == {Kind.FORKED: ["b"]}
        second.made, second.operation = 1.0, "another"
        assert found(writes, Stored("x", 3)) == {Kind.FORKED: ["b"]}

    def test_a_deletion_after_its_own_put_in_doubt(self) -> None:
        """The put was refused, but unknown; then another client deleted the entity."""
        in_doubt, deleted = put("x", "a", UNKNOWN, operation="o"), delete("d", "x")
        deleted.operation = "o"
        writes = [put("a", None), put("b", "a"), delete("e", "b"), in_doubt, deleted]
        assert found(writes) == {}
        assert found([put("a", None), in_doubt, deleted]) == {}
        assert found([*writes[:2], in_doubt, deleted]) == {Kind.LOST: ["b"], Kind.FORKED: ["a"]}

    def test_a_deletion_of_a_refused_write(self) -> None:
        writes = [put("a", None), put("x", "a", REFUSED), delete("d", "x")]
        assert found(writes) == {Kind.PHANTOM: ["x"]}

    def test_a_refused_deletion_is_no_excuse(self) -> None:
        writes = [put("a", None), delete("d", "a", REFUSED)]
        assert found(writes) == {Kind.LOST: ["a"]}

    def test_a_deletion_in_doubt_of_an_earlier_state_is_none_either(self) -> None:
        writes = [*THREE, delete("d", "a", UNKNOWN)]
        assert found(writes) == {Kind.LOST: ["a", "b", "c"]}

    def test_an_entry(self) -> None:
        assert found([entry("a"), entry("b")], single=["b"]) == {Kind.LOST: ["a"]}


class TestPhantoms:
    def test_a_refused_write_has_landed(self) -> None:
        writes = [*THREE, put("x", "c", REFUSED)]
        assert found(writes, Stored("x", 4)) == {Kind.PHANTOM: ["x"]}

    def test_a_refused_write_has_a_successor(self) -> None:
        writes = [put("a", None, REFUSED), put("b", "a")]
        assert found(writes, Stored("b", 2)) == {Kind.PHANTOM: ["a"]}

    def test_a_stored_write_that_was_never_made(self) -> None:
        assert found(THREE, Stored("z", 1))[Kind.PHANTOM] == ["z"]
        assert found([], Stored("z", 1)) == {Kind.PHANTOM: ["z"]}

    def test_an_entry(self) -> None:
        writes = [entry("a", REFUSED), entry("b", UNKNOWN)]
        assert found(writes, single=["a", "b", "z"]) == {Kind.PHANTOM: ["z", "a"]}


class TestUnchecked:
    """Writes that must be refused."""

    @pytest.mark.parametrize("outcome", Outcome)
    def test_a_landed_unchecked_write(self, outcome: Outcome) -> None:
        write = put("x", "c", outcome)
        write.forbidden = True
        assert found([*THREE, write], Stored("x", 4))[Kind.UNCHECKED] == ["x"]

    @pytest.mark.parametrize("outcome", Outcome)
    def test_kept_resources_are_a_leak(self, outcome: Outcome) -> None:
        write = entry("x", outcome)
        write.forbidden = True
        assert (Kind.UNCHECKED in found([write])) == (outcome is ACCEPTED)


class TestTwice:
    def test_an_entry(self) -> None:
        assert found([entry("a"), entry("b")], single=["a", "b", "a"]) == {Kind.TWICE: ["a"]}
        assert found([entry("a", UNKNOWN)], single=["a", "a"]) == {Kind.TWICE: ["a"]}

    def test_a_transaction_that_was_retried_after_it_had_landed(self) -> None:
        writes = [
            put("a", None, REFUSED, together="1", operation="o"),
            put("b", "a", together="2", operation="o"),
        ]
        assert found(writes, Stored("b", 2)) == {Kind.PHANTOM: ["a"], Kind.TWICE: ["o"]}

    def test_duplicate_writes(self) -> None:
        assert found(THREE, Stored("c", 4)) == {Kind.MISCOUNTED: ["c"]}


class TestTransactions:
    """An unknown transaction has landed as a whole, or not at all."""

    WRITES = (
        put("a", None),
        put("b", None, entity="f"),
        put("a2", "a", UNKNOWN, together="1", operation="o"),
        put("b2", "b", UNKNOWN, entity="f", together="1", operation="o"),
        entry("c", UNKNOWN, together="1"),
    )

    def findings(self, stored: Mapping[str, Stored], *single: str) -> dict[Kind, list[str]]:
        return by_kind(check(self.WRITES, stored, single).findings)

    def test_as_a_whole(self) -> None:
        assert self.findings({"e": Stored("a2", 2), "f": Stored("b2", 2)}, "c") == {}

    def test_not_at_all(self) -> None:
        assert self.findings({"e": Stored("a", 1), "f": Stored("b", 1)}) == {}

    def test_a_part(self) -> None:
        half = {"e": Stored("a2", 2), "f": Stored("b", 1)}
        assert self.findings(half, "c") == {Kind.TORN: ["a2"]}

    def test_all_but_the_entry(self) -> None:
        whole = {"e": Stored("a2", 2), "f": Stored("b2", 2)}
        assert self.findings(whole) == {Kind.TORN: ["a2"]}


def test_a_finding_is_described() -> None:
    (finding,) = check([put("a", None)], {}, []).findings
    assert str(finding) == "accepted but lost: a (of e, by of a)"


def test_the_fate_of_unknown_writes() -> None:
    writes = [
        *THREE,
        put("landed", "c", UNKNOWN),
        put("not landed", "b", UNKNOWN),
        put("alone", None, UNKNOWN, entity="f"),
        entry("there", UNKNOWN),
    ]
    compared = check(writes, {"e": Stored("landed", 4)}, ["there"])
    assert compared.findings == []
    assert compared.in_doubt == {"had landed": 2, "had not": 1, "nothing tells": 1}
