"""Short chaos runs, with the negative controls of their checks.

    make chaos DURATION=3600 SEED=7 STORE=redis

`make test` runs half a minute of it and one control, both with memcached. `make test-all` runs
half a minute with each other kind of store, half a minute with few entities, and each rule of the
library disabled, at least one for each kind. `make test-long` runs longer, and in pessimistic mode.

Programs and faults follow from the seed. Their interleaving depends on the machine.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.chaos.findings import Kind
from tests.chaos.harms import FAULTS, Harm
from tests.chaos.meetings import OUTLIVED
from tests.chaos.mutations import Mutation
from tests.chaos.network import Trouble
from tests.chaos.processes import Result, run
from tests.chaos.report import Report, excerpt
from tests.chaos.stores import STORES
from tests.servers import real

SEED = str(random.randrange(10**6))
#: On a machine that is too busy for two concurrent processes, one run may show nothing.
_TIMES = 5
#: The share of degraded leases without a fault that a busy machine does not make.
_STRANGE = 0.02
#: Of this many faults of Datastore the rarest kinds are a dozen, so that chance omits none.
_MANY = 200
#: So many include a deletion of a tree, of which there are a dozen in a thousand.
_MANY_OPERATIONS = 600


@pytest.fixture(autouse=True)
def _memcached() -> None:
    real("memcached", "memcached")


def said(result: Result, seed: str) -> str:
    report = Report(seed)
    report.add(result)
    lines = [report.brief()]
    for finding in result.verdict.findings[:3]:
        lines += ["", str(finding), *excerpt(result, finding)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("store", "concurrency_mode", "seconds"),
    [
        ("memcached", "optimistic", 22.0),
        pytest.param("memcached", "optimistic", 95.0, marks=pytest.mark.long),
        pytest.param("memcached", "pessimistic", 40.0, marks=pytest.mark.long),
        *(
            pytest.param(store, "optimistic", 30.0, marks=pytest.mark.slow)
            for store in sorted(STORES.keys() - {"memcached"})
        ),
    ],
)
def test_nothing_is_wrong(
    tmp_path: Path, store: str, concurrency_mode: str, seconds: float
) -> None:
    kind = STORES[store]
    result = run(
        tmp_path, store=store, seed=SEED, seconds=seconds, concurrency_mode=concurrency_mode
    )
    print(f"\n{store}, {concurrency_mode}, SEED={SEED}\n{said(result, SEED)}")
    assert result.verdict.findings == [], f"SEED={SEED}\n{said(result, SEED)}"
    # There was enough data to check, on a busy machine too.
    figures, met = result.verdict.figures, result.verdict.met
    assert figures["writes accepted"] > seconds
    assert figures["writes refused"] > seconds / 10
    assert 0 < figures["writes unknown"] < figures["writes"] / 3
    assert figures["hand-overs checked for exclusion"] > seconds / 5
    assert figures["reads compared with earlier writes"] > 0
    assert bool(figures["hand-overs in the fallback store"]) == bool(kind.fallback)
    assert figures["jobs with an effect"] > seconds / 5
    assert figures["runs of jobs that failed"] > 0
    assert figures["pairs of jobs checked for order"] > 0
    assert figures["writes refused for a title"] > 0
    assert figures["requests: done"] > 0
    if figures["operations"] > _MANY_OPERATIONS:
        assert figures["trees deleted"] > 0
    # The faults had effects.
    troubles = [trouble.value for trouble in Trouble if kind.may_meet(trouble.value)]
    assert any(met[trouble] for trouble in troubles) if troubles else figures["degraded leases"]
    hits = sum(met[fault] for fault in FAULTS)
    assert hits > seconds / 10
    if hits > _MANY:
        assert all(met[fault] for fault in FAULTS)
        assert figures.get("unknown writes: had landed")
        assert met[OUTLIVED] > 0


@pytest.mark.parametrize(
    "concurrency_mode",
    [
        pytest.param("optimistic", marks=pytest.mark.slow),
        pytest.param("pessimistic", marks=pytest.mark.long),
    ],
)
def test_nothing_is_wrong_with_few_entities(tmp_path: Path, concurrency_mode: str) -> None:
    result = run(
        tmp_path,
        seed=SEED,
        seconds=30.0,
        members=[("few entities", 2, "optimistic")] * 3,
        concurrency_mode=concurrency_mode,
    )
    print(f"\nfew entities, {concurrency_mode}, SEED={SEED}\n{said(result, SEED)}")
    assert result.verdict.findings == [], f"SEED={SEED}\n{said(result, SEED)}"
    assert result.verdict.figures["writes accepted"] > 100
    assert result.verdict.figures["writes refused"] > 100


class Control(NamedTuple):
    """A disabled rule, the resulting finding, and the necessary programs, seconds and store."""

    mutation: Mutation
    kind: Kind
    members: list[tuple[str, int, str]]
    seconds: float = 9.0
    harms: frozenset[Harm] = frozenset()
    store: str = "memcached"


_WITHOUT_LOCK = ("writes without the lock", 2, "optimistic")
_BEYOND = [("beyond their leases", 4, "optimistic")]
_ONE_LOCK = [("one lock", 2, "optimistic")]
_TITLES = [("titles", 2, "optimistic")]
_REQUESTS = [("requests", 2, "optimistic")]
_TREES = [("trees", 2, "optimistic")]
_JOBS = [("jobs", 2, "optimistic")] * 2
_JOBS_WITHOUT_LOCKS = [("jobs without locks", 1, "optimistic")] * 3
_STORE_AND_NETWORK = frozenset({Harm.STORE, Harm.NETWORK})

CONTROLS = [
    Control(
        Mutation.FENCING,
        Kind.LOST,
        [("interactive", 2, "optimistic")] * 3,
        8.0,
        frozenset({Harm.DATASTORE}),
    ),
    Control(Mutation.TICKETS, Kind.LOST, [_WITHOUT_LOCK] * 2, 4.0),
    Control(Mutation.GATE, Kind.LOST, [_WITHOUT_LOCK] * 2, 4.0),
    Control(Mutation.READS_KEPT, Kind.LOST, [("deletes after puts", 3, "optimistic")] * 2, 6.0),
    Control(Mutation.INSERTS, Kind.LOST, [("creations and deletes", 2, "optimistic")] * 2, 6.0),
    Control(
        Mutation.UNGUARDED_ALONE, Kind.UNCHECKED, [("blocks in tasklets", 1, "optimistic")], 3.0
    ),
    Control(Mutation.CHECKED_RELEASE, Kind.OVERLAP, _BEYOND * 2),
    Control(Mutation.FRESH_READS, Kind.OUTDATED, [("read before the lock", 2, "optimistic")] * 2),
    Control(
        Mutation.HELD_TO_COMMIT,
        Kind.OUTDATED,
        [("locks in transactions", 2, "optimistic")] * 2,
        harms=frozenset({Harm.DATASTORE}),
    ),
    Control(
        Mutation.BATCH_STANDS_BACK,
        Kind.OVERTAKEN,
        [("one lock", 2, "optimistic"), ("one lock, batch", 2, "optimistic")],
    ),
    # Of the outbox.
    Control(Mutation.JOBS_STAGED_INSIDE, Kind.EARLY, _JOBS, 6.0),
    Control(Mutation.JOBS_ORDERED, Kind.DISORDERED, _JOBS, 6.0),
    Control(Mutation.JOBS_COMMIT_ORDER, Kind.DISORDERED, _JOBS, 6.0),
    # The third process's clock is behind.
    Control(Mutation.JOBS_DUE_AT_ONCE, Kind.DISORDERED, [*_JOBS, _JOBS[0]], 8.0),
    Control(Mutation.JOBS_RELAYED, Kind.LOST, _JOBS, 6.0),
    Control(Mutation.JOBS_ONE_COMMIT, Kind.TWICE, _JOBS_WITHOUT_LOCKS, 15.0),
    Control(Mutation.JOBS_CLAIMED, Kind.TOGETHER, _JOBS_WITHOUT_LOCKS),
    # Found only while two other workers are idle.
    Control(Mutation.JOBS_CLAIM_CHECKED, Kind.TOGETHER, _JOBS_WITHOUT_LOCKS * 2, 20.0),
    # Of two namespaces.
    *(
        Control(Mutation.ROWS_APART, Kind.STRAY, members, 4.0)
        for members in (_JOBS, _TITLES * 2, _REQUESTS * 2)
    ),
    Control(Mutation.PROVIDER_KEYS, Kind.TWICE, _REQUESTS * 3, 9.0, frozenset({Harm.DATASTORE})),
    # Of names and deletions.
    Control(Mutation.CLAIMS_CHECKED, Kind.TWICE, _TITLES * 2, 4.0),
    Control(Mutation.CLAIMS_FREED, Kind.CLAIM, _TITLES * 2, 4.0),
    Control(Mutation.TREES_DECLARED, Kind.ORPHAN, _TREES * 2, 5.0),
    Control(Mutation.TREES_ONE_COMMIT, Kind.ORPHAN, _TREES * 2, 8.0, frozenset({Harm.DATASTORE})),
    # Of the other kinds of store.
    Control(Mutation.CHECKED_RELEASE, Kind.OVERLAP, _BEYOND * 2, store="redis"),
    Control(Mutation.AGREED_SERVER, Kind.OVERLAP, _ONE_LOCK * 3, store="memcacheds"),
    Control(Mutation.COMPARED_ROWS, Kind.OVERLAP, _ONE_LOCK * 3, store="datastore"),
    Control(
        Mutation.SHARED_FALLBACK, Kind.OVERLAP, _ONE_LOCK * 3, 14.0, _STORE_AND_NETWORK, "fallback"
    ),
]


@pytest.mark.slow
def test_the_controls_with_the_unchanged_library(tmp_path: Path) -> None:
    """The unchanged library has none of these findings: all of the controls' programs at once."""
    every = dict.fromkeys(member for control in CONTROLS[1:] for member in control.members)
    result = run(
        tmp_path, seed=SEED, seconds=15.0, members=list(every), harms=frozenset({Harm.DATASTORE})
    )
    print(f"\nno rule disabled, SEED={SEED}\n{said(result, SEED)}")
    assert result.verdict.findings == [], f"SEED={SEED}\n{said(result, SEED)}"


@pytest.mark.parametrize(
    "control",
    [
        pytest.param(
            control,
            id=f"{control.store}-{control.mutation.name.lower()}",
            marks=() if control.mutation is Mutation.GATE else pytest.mark.slow,
        )
        for control in CONTROLS
    ],
)
def test_each_disabled_rule_is_found(tmp_path: Path, control: Control) -> None:
    """The negative controls: the same run with one rule of the library disabled.

    With another seed if necessary.
    """
    for number in range(_TIMES):
        seed = f"{SEED}/{number}"
        folder = tmp_path / str(number)
        folder.mkdir()
        result = run(
            folder,
            seed=seed,
            seconds=control.seconds,
            store=control.store,
            members=control.members,
            harms=control.harms,
            mutation=control.mutation,
        )
        print(f"\nwithout {control.mutation.value}, SEED={seed}\n{said(result, seed)[:2000]}")
        if result.verdict.found(control.kind):
            return
    pytest.fail(f"SEED={SEED}: {control.kind.value}: not found in {_TIMES} runs")


@pytest.mark.slow
@pytest.mark.parametrize("mutation", [Mutation.NONE, Mutation.REDIRECTIONS, Mutation.ONE_BREAKER])
def test_faults_of_a_cluster_stay_with_their_locks(tmp_path: Path, mutation: Mutation) -> None:
    """Leases are degraded near a fault of their own shard, and a slot that moves is none.

    Not so with redirections ignored, or with one breaker for all nodes: the negative controls,
    with another seed if necessary.
    """
    controls = mutation is not Mutation.NONE
    for number in range(_TIMES if controls else 1):
        seed = f"{SEED}/{number}"
        folder = tmp_path / str(number)
        folder.mkdir()
        result = run(
            folder,
            store="cluster",
            seed=seed,
            seconds=25.0,
            members=[("interactive", 2, "optimistic")] * 3,
            harms=frozenset({Harm.STORE}),
            mutation=mutation,
        )
        figures = result.verdict.figures
        print(f"\nwithout {mutation.value}, SEED={seed}\n{said(result, seed)[:2000]}")
        strange = figures["degraded leases without a fault"] / figures["locks taken"]
        if controls and strange > _STRANGE:
            return
    assert not controls, f"SEED={SEED}: not found in {_TIMES} runs"
    assert strange < _STRANGE, f"SEED={SEED}: {strange:.2%}"
