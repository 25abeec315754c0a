"""Mutations: versions, conflicts, errors, atomicity, ids."""

import itertools

import pytest

from tests.unit.emulator.builders import Timestamp, entity, key, value
from tests.unit.emulator.subject import Subject, query, refused, where
from userlock_emulator.datastore.clock import VersionClock
from userlock_emulator.datastore.errors import Code, DatastoreError
from userlock_emulator.datastore.ids import scatter
from userlock_emulator.datastore.protos import Entity, Message, Mutation

KEY = key("K", 1)


def upsert(n: int, **detection: object) -> Message:
    return Mutation(upsert=entity(KEY, n=n), **detection)


class TestVersions:
    def test_a_missing_entity_reports_the_snapshot(self, engine: Subject) -> None:
        before = engine.put(entity(key("K", 2), n=1)).mutation_results[0].version
        missing = engine.lookup(KEY).missing[0]
        after = engine.put(entity(KEY, n=1)).mutation_results[0].version
        assert before <= missing.version < after
        assert missing.entity == Entity(key=KEY)
        assert not missing.HasField("update_time")

    def test_versions_and_times_grow_with_each_change(self, engine: Subject) -> None:
        first = engine.put(entity(KEY, n=1, s="a")).mutation_results[0]
        assert engine.put(entity(KEY, s="a", n=1)).mutation_results[0] == first, "unchanged"
        second = engine.put(entity(KEY, n=2)).mutation_results[0]
        assert 0 < first.version < second.version
        assert first.create_time == first.update_time == second.create_time
        assert second.update_time.ToMicroseconds() > first.update_time.ToMicroseconds()
        (found,) = engine.lookup(KEY).found
        assert (found.version, found.create_time, found.update_time) == (
            second.version, second.create_time, second.update_time,
        )  # fmt: skip
        deleted = engine.delete(KEY).mutation_results[0]
        third = engine.put(entity(KEY, n=2)).mutation_results[0]
        assert second.version < deleted.version < third.version
        assert not deleted.HasField("update_time")
        assert not deleted.HasField("create_time")
        assert third.create_time != first.create_time


def test_reads_are_before_a_commit_or_after_it() -> None:
    clock = VersionClock(0, lambda: 1000)
    version = clock.start_commit()
    assert clock.read_time() == version - 1
    clock.finish_commit()
    read = clock.read_time()
    assert read >= version
    assert clock.start_commit() > read


class TestConflicts:
    @pytest.mark.parametrize("transactional", [False, True])
    def test_a_stale_one_keeps_the_servers_value_and_the_rest_lands(
        self, engine: Subject, transactional: bool
    ) -> None:
        stale = engine.put(entity(KEY, n=1)).mutation_results[0].version
        current = engine.put(entity(KEY, n=2)).mutation_results[0]
        response = engine.commit(
            Mutation(upsert=entity(key("K", 2), n=0)),
            upsert(99, base_version=stale),
            Mutation(upsert=entity(key("K", 3), n=0)),
            transactional=transactional,
        )
        conflicts = [result.conflict_detected for result in response.mutation_results]
        assert conflicts == [False, True, False]
        conflict = response.mutation_results[1]
        assert (conflict.version, conflict.update_time) == (current.version, current.update_time)
        assert engine.n_of(KEY) == 2
        assert len(engine.lookup(key("K", 2), key("K", 3)).found) == 2

    @pytest.mark.parametrize("mutation", ["upsert", "update", "delete"])
    def test_each_mutation_and_a_version_or_a_time(self, engine: Subject, mutation: str) -> None:
        stale = engine.put(entity(KEY, n=1)).mutation_results[0]
        current = engine.put(entity(KEY, n=2)).mutation_results[0]
        changed = {mutation: KEY if mutation == "delete" else entity(KEY, n=3)}
        for base in ({"base_version": stale.version}, {"update_time": stale.update_time}):
            (result,) = engine.commit(Mutation(**changed, **base)).mutation_results
            assert result.conflict_detected
            assert engine.n_of(KEY) == 2
        on_current = Mutation(**changed, update_time=current.update_time)
        (result,) = engine.commit(on_current).mutation_results
        assert not result.conflict_detected
        assert result.version > current.version
        assert engine.n_of(KEY) == (None if mutation == "delete" else 3)
        deleted = engine.delete(KEY).mutation_results[0].version
        late = Mutation(upsert=entity(KEY, n=4), base_version=current.version)
        (result,) = engine.commit(late).mutation_results
        assert result.conflict_detected, "deleted since"
        assert result.version >= deleted

    def test_a_miss_can_be_a_base(self, engine: Subject) -> None:
        missing = engine.lookup(KEY).missing[0].version
        (result,) = engine.commit(upsert(1, base_version=missing)).mutation_results
        assert not result.conflict_detected
        (result,) = engine.commit(upsert(2, base_version=missing)).mutation_results
        assert result.conflict_detected
        engine.delete(KEY)
        (result,) = engine.commit(upsert(3, base_version=missing)).mutation_results
        assert result.conflict_detected, "it came and went in between"

    def test_strategy_fail_fails_the_whole_commit(self, engine: Subject) -> None:
        stale = engine.put(entity(KEY, n=1)).mutation_results[0].version
        engine.put(entity(KEY, n=2))
        with refused(code=Code.FAILED_PRECONDITION):
            engine.commit(
                Mutation(upsert=entity(key("K", 2), n=0)),
                upsert(9, base_version=stale, conflict_resolution_strategy=Mutation.FAIL),
            )
        assert len(engine.lookup(key("K", 2)).missing) == 1


class TestExistence:
    @pytest.mark.parametrize(
        ("mutation", "code", "text"),
        [
            (Mutation(insert=entity(KEY, n=2)), Code.ALREADY_EXISTS, "entity already exists"),
            (Mutation(update=entity(key("K", 3))), Code.NOT_FOUND, "no entity to update"),
        ],
    )
    def test_a_failed_commit_leaves_no_trace(
        self, engine: Subject, mutation: Message, code: Code, text: str
    ) -> None:
        engine.put(entity(KEY, n=1))
        with refused(text, code):
            engine.commit(Mutation(upsert=entity(key("New", 1), fresh=1)), mutation)
        assert engine.n_of(KEY) == 1
        assert engine.lookup(key("New", 1)).missing, "half a commit landed"
        engine.put(entity(key("New", 2), fresh=2))
        assert engine.identifiers(query("New", orders=("fresh",))) == [2]
        assert engine.delete(key("K", 3)).mutation_results[0].version > 0, "deleting nothing"


OPERATIONS = ["insert", "update", "upsert", "delete"]
FORBIDDEN = {("insert", "insert"), ("update", "insert"), ("upsert", "insert"), ("delete", "update")}


def mutate(operation: str, n: int) -> Message:
    if operation == "delete":
        return Mutation(delete=KEY)
    return Mutation(**{operation: entity(KEY, n=n)})


@pytest.mark.parametrize(("first", "second"), list(itertools.product(OPERATIONS, repeat=2)))
def test_two_mutations_of_one_entity(engine: Subject, first: str, second: str) -> None:
    if first == "update":
        engine.put(entity(KEY, n=0))
    pair = (mutate(first, 1), mutate(second, 2))
    with pytest.raises(DatastoreError, match="non-transactional"):
        engine.commit(*pair)
    if (first, second) in FORBIDDEN:
        with pytest.raises(DatastoreError, match=f"Cannot {first} then {second} an entity"):
            engine.commit(*pair, transactional=True)
        return
    response = engine.commit(*pair, transactional=True)
    assert len(response.mutation_results) == 2
    assert engine.n_of(KEY) == (None if second == "delete" else 2)
    by_index = engine.identifiers(query(filters=where(("n", "=", 2))))
    assert by_index == ([] if second == "delete" else [1])
    assert engine.identifiers(query(filters=where(("n", "<", 2)))) == []


class TestIds:
    def test_allocated_ids_are_spread_and_never_given_out_again(self, engine: Subject) -> None:
        allocated = [
            of.path[0].id
            for _ in range(5)
            for of in engine.ask("AllocateIds", keys=[key("K")] * 300).keys
        ]
        assert len(set(allocated)) == 1500
        assert min(abs(a - b) for a, b in itertools.pairwise(allocated)) > 2**30
        tenths = [number * 10 >> 52 for number in allocated]
        assert all(tenths.count(tenth) > 100 for tenth in range(10)), "in 52 bits"
        inserted = engine.commit(*[Mutation(insert=entity(key("K")))] * 300).mutation_results
        assert not set(allocated) & {result.key.path[0].id for result in inserted}
        with pytest.raises(DatastoreError, match="must not be complete"):
            engine.ask("AllocateIds", keys=[KEY])

    def test_reserved_ids_are_passed_over(self, engine: Subject) -> None:
        next_ids = [scatter(number) for number in range(1, 6)]
        engine.ask("ReserveIds", keys=[key("K", i) for i in next_ids[:2]])
        engine.put(entity(key("K", next_ids[2])))
        (allocated,) = engine.ask("AllocateIds", keys=[key("K")]).keys
        assert allocated.path[0].id == next_ids[3]


def test_entities_come_back_as_they_were_sent(engine: Subject) -> None:
    sent = entity(
        key("P", "ü\x00", "K", -5, namespace="space"),
        nothing=None,
        number=2**63 - 1,
        real=-0.0,
        text="snow ☃",
        blob=b"\x00\xff",
        at=Timestamp(-1_234_567),
        flags=[True, None, 1.5, "x"],
        empty=[],
        nested={"inner": {"list": [1, 2]}, "key": key("A", 1)},
        hidden=value("y" * 5000, indexed=False),
    )
    sent.properties["number"].meaning = 7
    sent.properties["nested"].entity_value.key.CopyFrom(key("Incomplete"))
    sent.properties["exact"].CopyFrom(value(Timestamp(1_000_001)))
    sent.properties["exact"].timestamp_value.nanos += 999
    engine.put(sent)
    sent.properties["exact"].timestamp_value.nanos -= 999  # to microseconds
    (found,) = engine.lookup(sent.key).found
    assert found.entity == sent
    assert found.entity.key.SerializeToString() == sent.key.SerializeToString()


def test_a_key_is_echoed_exactly_as_asked(engine: Subject) -> None:
    engine.put(entity(KEY, n=1))
    bare = key("K", 1)
    bare.ClearField("partition_id")
    nowhere = key("K", 2)
    nowhere.ClearField("partition_id")
    response = engine.lookup(bare, nowhere)
    assert response.found[0].entity.key == bare
    assert response.missing[0].entity.key == nowhere


def test_a_commit_time_is_for_transactions_only(engine: Subject) -> None:
    assert not engine.commit(upsert(1)).HasField("commit_time")
    response = engine.commit(upsert(2), transactional=True)
    assert response.commit_time == response.mutation_results[0].update_time


def test_index_updates_are_counted(engine: Subject) -> None:
    assert engine.put(entity(KEY, a=1, b=[1, 2])).index_updates == 4
    assert engine.put(entity(KEY, a=2, b=[1, 2])).index_updates == 2
    assert engine.delete(KEY).index_updates == 4


def test_an_insert_may_say_that_nothing_is_there(engine: Subject) -> None:
    engine.commit(Mutation(insert=entity(KEY), base_version=0))
    assert engine.lookup(KEY).found


def test_lookups_too_big_for_a_message_are_deferred(engine: Subject) -> None:
    keys = [key("K", index) for index in range(1, 7)]
    blob = value(b"x" * 1_000_000, indexed=False)
    engine.commit(*(Mutation(upsert=entity(each, blob=blob)) for each in keys))
    response = engine.lookup(*keys)
    assert response.ByteSize() < 4 * 1024 * 1024
    rest = engine.lookup(*response.deferred)
    found = [each.entity.key for each in (*response.found, *rest.found)]
    assert sorted(each.path[0].id for each in found) == [1, 2, 3, 4, 5, 6]
