"""The Datastore emulator: its start, throughput, processor time and memory.

Requests are prepared beforehand and sent on plain gRPC channels, so that only the server is
measured. Clients and server share the machine. The floor is a gRPC server in Python that returns
its requests (`bare_grpc.py`), in the same rounds.

A query for 20 entities, filtered and ordered, runs on a kind of 1,000 and on one of 100,000. With
indexes it costs nearly the same.
"""

from __future__ import annotations

import contextlib
import itertools
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from google.cloud.datastore_v1.types import datastore as messages
from google.cloud.datastore_v1.types import entity as entities
from google.cloud.datastore_v1.types import query as queries

from benchmarks.figures import Measurement, Section, Table, compared
from benchmarks.runner import Contender, interleave, repeat
from sample_app.stack import ports, services
from sample_app.stack.children import Child
from sample_app.words import counted
from tools.compare import servers

PROJECT = "benchmark"
FLOOR = "floor: a gRPC server in Python that does nothing"
EMULATOR = "emulator"
CLIENTS = 8
_SERVICE = "/google.datastore.v1.Datastore/"
#: The number of entities per commit while the data is created.
_TOGETHER = 500


def run(*, quick: bool) -> Section:
    """Measure; about two minutes, or 10 seconds if `quick`."""
    starts, seconds, rounds = (1, 0.2, 10) if quick else (5, 3.0, 100)
    few, many, on_disk = (100, 1_000, 1_000) if quick else (1_000, 100_000, 1_000_000)
    summed = 500 if quick else 5_000
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="userlock-bench-")))
        tables = [
            _start(folder, starts, on_disk),
            *_requests(stack, folder, rounds, seconds, summed),
            *_queries(stack, folder, rounds, few, many),
        ]
    return Section(
        name="emulator",
        title="The Datastore emulator",
        method=(
            f"Prepared requests on plain gRPC channels. Start: from the process to its first "
            f"reply, the median of {starts}. Lookup: one client, one key. Lookups and commits per "
            f"second: one client, and {CLIENTS} at once, one entity each, everything in memory. "
            f"CPU: the server's processor time per operation, of all its threads. "
            f"Beside Google's emulators where a Cloud SDK with them is installed."
        ),
        tables=tuple(tables),
    )


# --- the measured server ------------------------------------------------------------------------


class _Server:
    """A child that serves gRPC."""

    def __init__(self, address: str, pid: int) -> None:
        self.address = address
        self.pid = pid
        self._channel = self.channel()

    def channel(self) -> Any:
        """Return a new connection."""
        return grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])

    def method(self, name: str) -> Callable[..., bytes]:
        """Return an RPC, bytes in and bytes out."""
        method: Callable[..., bytes] = self._channel.unary_unary(_SERVICE + name)
        return method

    def cpu_seconds(self) -> float:
        """Return the processor time of its threads, without those that have ended."""
        nanoseconds = 0
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has just ended
                nanoseconds += int((thread / "schedstat").read_text().split()[0])
        return nanoseconds / 1e9

    @contextlib.contextmanager
    def metered(self, seconds: list[float]) -> Iterator[None]:
        """Append the processor time that the server takes during the block."""
        before = self.cpu_seconds()
        yield
        seconds.append(self.cpu_seconds() - before)

    def close(self) -> None:
        self._channel.close()


class _OwnServer(_Server):
    """One of this project."""

    def __init__(self, child: Child, port: int) -> None:
        super().__init__(f"127.0.0.1:{port}", child.pid)
        self.child = child

    def resident_bytes(self) -> int:
        """Return the memory of the process."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    def close(self) -> None:
        super().close()
        self.child.stop(grace_seconds=10)


def _emulator(folder: Path, *arguments: str) -> AbstractContextManager[_OwnServer]:
    return _served(
        folder, "the Datastore emulator", "userlock_emulator", "start", "--port", more=arguments
    )


def _floor(folder: Path) -> AbstractContextManager[_OwnServer]:
    return _served(folder, "a bare gRPC server", "benchmarks.bare_grpc")


@contextlib.contextmanager
def _served(
    folder: Path, name: str, *module: str, more: tuple[str, ...] = ()
) -> Iterator[_OwnServer]:
    """Run a module as a child with a port of its own, until the block ends."""
    port = ports.any_free()
    child = Child(
        name,
        [sys.executable, "-m", *module, str(port), *more],
        answers=partial(services.accepts, port),
        log_file=folder / f"{module[0]}.log",
        cwd=services.ROOT,
    )
    child.start()
    server = _OwnServer(child, port)
    try:
        child.wait_until_it_answers()
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def _googles(name: str, file: Path, folder: Path) -> Iterator[_Server]:
    """Run one of Google's emulators, until the block ends."""
    with servers.started(name, file, folder) as running:
        server = _Server(running.address, running.pid)
        try:
            yield server
        finally:
            server.close()


# --- requests -----------------------------------------------------------------------------------


def _key(kind: str, number: int) -> entities.Key:
    return entities.Key(path=[entities.Key.PathElement(kind=kind, id=number + 1)])


def _entity(kind: str, number: int) -> entities.Entity:
    return entities.Entity(
        key=_key(kind, number),
        properties={
            "name": entities.Value(string_value=f"learner {number}"),
            "group": entities.Value(integer_value=number % 10),
            "points": entities.Value(integer_value=number * 7919 % 100_003),
        },
    )


def _bytes(message: Any) -> bytes:
    serialized: bytes = type(message).pb(message).SerializeToString()
    return serialized


def _lookup(kind: str, number: int) -> bytes:
    return _bytes(messages.LookupRequest(project_id=PROJECT, keys=[_key(kind, number)]))


def _commit(kind: str, numbers: range) -> bytes:
    return _bytes(
        messages.CommitRequest(
            project_id=PROJECT,
            mode=messages.CommitRequest.Mode.NON_TRANSACTIONAL,
            mutations=[messages.Mutation(upsert=_entity(kind, number)) for number in numbers],
        )
    )


def _query(kind: str) -> bytes:
    """Return a query for twenty of a tenth of the entities, by points."""
    query = queries.Query(
        kind=[queries.KindExpression(name=kind)],
        filter=queries.Filter(
            property_filter=queries.PropertyFilter(
                property=queries.PropertyReference(name="group"),
                op=queries.PropertyFilter.Operator.EQUAL,
                value=entities.Value(integer_value=3),
            )
        ),
        order=[queries.PropertyOrder(property=queries.PropertyReference(name="points"))],
        limit=20,
    )
    return _bytes(messages.RunQueryRequest(project_id=PROJECT, query=query))


def _sum(kind: str) -> bytes:
    """Return a sum of the points of all entities."""
    total = queries.AggregationQuery.Aggregation.Sum(
        property=queries.PropertyReference(name="points")
    )
    query = queries.AggregationQuery(
        nested_query=queries.Query(kind=[queries.KindExpression(name=kind)]),
        aggregations=[queries.AggregationQuery.Aggregation(sum=total, alias="points")],
    )
    return _bytes(messages.RunAggregationQueryRequest(project_id=PROJECT, aggregation_query=query))


def _fill(server: _Server, kind: str, count: int) -> None:
    commit = server.method("Commit")
    for first in range(0, count, _TOGETHER):
        commit(_commit(kind, range(first, min(first + _TOGETHER, count))))


# --- measurements -------------------------------------------------------------------------------


def _start(folder: Path, times: int, on_disk: int) -> Table:
    data = folder / "data"
    with _emulator(folder, "--data-dir", str(data)) as server:
        _fill(server, "Learner", on_disk)
    rows = {"with nothing": (), f"on a file of {on_disk:,} entities": ("--data-dir", str(data))}
    return Table(
        title="start",
        measurements=tuple(
            Measurement(
                contender=name,
                metric="first answer",
                value=statistics.median(_seconds_to_answer(arguments) for _ in range(times)) * 1000,
                unit="ms",
                samples=times,
            )
            for name, arguments in rows.items()
        ),
    )


def _seconds_to_answer(arguments: tuple[str, ...]) -> float:
    """Return the time from the start of a process to its first reply."""
    port = ports.any_free()
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "userlock_emulator", "start", "--port", str(port), *arguments],
        cwd=services.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()  # it prints a line when it serves
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            channel.unary_unary(_SERVICE + "Lookup")(_lookup("Learner", 1), wait_for_ready=True)
        return time.perf_counter() - began
    finally:
        process.terminate()
        process.communicate()


def _requests(
    stack: contextlib.ExitStack, folder: Path, rounds: int, seconds: float, summed: int
) -> Iterator[Table]:
    contenders: dict[str, _Server] = {
        FLOOR: stack.enter_context(_floor(folder)),
        EMULATOR: stack.enter_context(_emulator(folder)),
    }
    for name, file in servers.installed().items():
        contenders[f"Google's {name} emulator"] = stack.enter_context(_googles(name, file, folder))
    emulators = {name: server for name, server in contenders.items() if name != FLOOR}
    lookup = _lookup("Learner", 1)
    commits = [_commit("Learner", range(number, number + 1)) for number in range(1_000)]
    for server in emulators.values():
        _fill(server, "Learner", 1_000)
        _fill(server, "Summed", summed)
    cpu: list[Measurement] = []
    figures = _calls(
        contenders, "Lookup", lookup, rounds, cpu, operations=20, metric="lookup", baseline=FLOOR
    )
    for clients in (1, CLIENTS):
        for name, server in contenders.items():
            for metric, rpc, requests in (
                (f"lookups, {counted(clients, 'client')}", "Lookup", [lookup]),
                (f"commits, {counted(clients, 'client')}", "Commit", commits),
            ):
                figures.append(_rate(name, server, metric, rpc, requests, seconds, clients, cpu))
    figures += _calls(
        {name: server for name, server in emulators.items() if _has_sums(server)},
        "RunAggregationQuery",
        _sum("Summed"),
        rounds,
        cpu,
        operations=2,
        metric=f"sum of {summed:,}",
        baseline=EMULATOR,
    )
    figures += _bulk_loads(emulators, rounds, cpu)
    yield Table(title="requests", measurements=tuple(figures))
    yield Table(title="CPU of the server per operation", measurements=tuple(cpu))


def _calls(
    contenders: Mapping[str, _Server],
    rpc: str,
    request: bytes,
    rounds: int,
    cpu: list[Measurement],
    *,
    operations: int,
    metric: str,
    baseline: str,
) -> list[Measurement]:
    """Return the times of one request of one client; add the server's CPU to `cpu`."""
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    times = interleave(
        [
            Contender(
                name=name,
                operations=repeat(partial(server.method(rpc), request)),
                around=partial(server.metered, spent[name]),
            )
            for name, server in contenders.items()
        ],
        rounds=rounds,
        operations=operations,
    )
    for name, each in spent.items():
        cpu.append(_cpu(name, metric, sum(each), len(each) * operations))
    return list(compared(times, metric=f"{metric} p50", baseline=baseline))


def _has_sums(server: _Server) -> bool:
    """Return whether the server has aggregations; Google's older emulator has none."""
    try:
        server.method("RunAggregationQuery")(_sum("Summed"))
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise
        return False
    return True


def _cpu(name: str, metric: str, seconds: float, count: int) -> Measurement:
    return Measurement(
        contender=name,
        metric=metric,
        value=seconds / count * 1e6,
        unit="us",
        samples=count,
    )


def _bulk_loads(
    contenders: Mapping[str, _Server], rounds: int, cpu: list[Measurement]
) -> Iterator[Measurement]:
    """Measure commits of many new entities by one client, in turn; add the CPU to `cpu`."""
    loads = [_commit("Bulk", range(first, first + _TOGETHER)) for first in _firsts(rounds)]
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    for load in loads:
        for name, took in seconds.items():
            with contenders[name].metered(spent[name]):
                began = time.perf_counter()
                contenders[name].method("Commit")(load)
                took.append(time.perf_counter() - began)
    for name, took in seconds.items():
        each = f"entity in commits of {_TOGETHER}"
        cpu.append(_cpu(name, each, sum(spent[name]), rounds * _TOGETHER))
        yield Measurement(
            contender=name,
            metric=f"entities in commits of {_TOGETHER}",
            value=_TOGETHER / statistics.median(took),
            unit="per second",
            samples=len(took),
        )


def _firsts(rounds: int) -> range:
    return range(0, rounds * _TOGETHER, _TOGETHER)


def _rate(
    name: str,
    server: _Server,
    metric: str,
    rpc: str,
    requests: list[bytes],
    seconds: float,
    clients: int,
    cpu: list[Measurement],
) -> Measurement:
    """Return the requests per second of concurrent clients; add the server's CPU to `cpu`."""
    done = [0] * clients
    begin = threading.Barrier(clients + 1)
    over = threading.Event()

    def client(number: int) -> None:
        with server.channel() as channel:
            method = channel.unary_unary(_SERVICE + rpc)
            mine = itertools.cycle(requests[number::clients] or requests)
            method(next(mine), wait_for_ready=True)
            begin.wait()
            while not over.is_set():
                method(next(mine))
                done[number] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    begin.wait()
    spent: list[float] = []
    with server.metered(spent):
        began = time.perf_counter()
        over.wait(seconds)
        took = time.perf_counter() - began
        count = sum(done)
    over.set()
    for thread in threads:
        thread.join()
    cpu.append(_cpu(name, metric, spent[0], count))
    return Measurement(
        contender=name, metric=metric, value=count / took, unit="per second", samples=1
    )


def _queries(
    stack: contextlib.ExitStack, folder: Path, rounds: int, few: int, many: int
) -> Iterator[Table]:
    server = stack.enter_context(_emulator(folder))
    _fill(server, "Few", few)
    before = server.resident_bytes()
    _fill(server, "Many", many)
    grown = server.resident_bytes() - before
    run_query = server.method("RunQuery")
    names = {kind: f"20 of {count:,}" for kind, count in (("Few", few), ("Many", many))}
    times = interleave(
        [
            Contender(name=name, operations=repeat(partial(run_query, _query(kind))))
            for kind, name in names.items()
        ],
        rounds=rounds,
        operations=10,
    )
    yield Table(
        title="a query, filtered and ordered",
        measurements=compared(times, metric="query", baseline=names["Few"]),
    )
    size = statistics.fmean(len(_bytes(_entity("Many", number))) for number in range(many))
    yield Table(
        title="memory",
        measurements=(
            Measurement(
                contender=f"one of {many:,} entities",
                metric="in all",
                value=grown / many,
                unit="bytes",
                samples=many,
            ),
            Measurement(
                contender=f"one of {many:,} entities",
                metric="its message",
                value=size,
                unit="bytes",
                samples=many,
            ),
        ),
    )
