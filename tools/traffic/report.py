"""A day as a table, or as facts for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from tools.traffic.day import Result
from tools.traffic.profile import DAY_SECONDS
from tools.traffic.sizing import BUSY_SHARE, FAIL_OVER_SECONDS, SHARDS, THREADS, needs
from tools.traffic.tally import PART_SECONDS, Tally

_OF_SHARD = "shard_locks_per_second_peak"


def facts(result: Result) -> dict[str, Any]:
    """Return all figures of a day: times in seconds, rates per second, sizes in bytes."""
    tally, need = result.tally, needs(result)
    operations = sum(tally.operations)
    return {
        "users": result.users,
        "drawn": result.drawn,
        "sampled": result.sampled,
        "requests_per_second": tally.requests / DAY_SECONDS,
        "locks_per_second": tally.locks / DAY_SECONDS,
        "locks_per_second_peak": max(tally.locks_by_part) / PART_SECONDS,
        "operations_per_second": operations / DAY_SECONDS,
        "operations_per_second_peak": max(tally.operations) / PART_SECONDS,
        "operations_per_lock": operations / (tally.locks + tally.visits),
        "operations_per_request": (operations - _swept(result)) / tally.requests,
        "waiting_share": tally.waiting_share,
        "waiting_share_error": result.error(lambda part: part.waiting_share),
        "wait_p50": tally.wait_quantile(0.5),
        "wait_p99": tally.wait_quantile(0.99),
        "wait_p99_error": result.error(lambda part: part.wait_quantile(0.99)),
        "wait_longest": tally.longest_wait,
        "timed_out_per_million": _timed_out(tally),
        "timed_out_per_million_error": result.error(_timed_out),
        "sweep_workers": result.sweep.workers,
        "sweep_seconds": result.sweep_seconds,
        "sweep_waits_per_million": 1e6 * tally.expected_waits / max(tally.visits, 1.0),
        "sweep_yields_per_million": 1e6 * tally.expected_yields / max(tally.visits, 1.0),
        "sweep_failed_per_million": 1e6 * tally.visits_failed / max(tally.visits, 1.0),
        "records_peak": need.records,
        "record_bytes": need.record_bytes,
        "memory_bytes_peak": need.records * need.record_bytes,
        "memory_bytes_most": need.most_records * need.record_bytes,
        "workers": need.workers,
        "connections": need.connections,
        "node_connections": need.node_connections,
        _OF_SHARD: need.shard_locks,
        "lost_shard_locks": need.lost_locks,
    }


def as_json(result: Result) -> str:
    """Return a document on one line."""
    return json.dumps(facts(result))


def table(results: Sequence[Result]) -> str:
    """Return a table with one column per day."""
    columns = [facts(result) for result in results]
    lines = [("", [f"{column['users']:,} users" for column in columns])]
    lines += [(label, [show(column) for column in columns]) for label, show in _ROWS]
    first = max(len(label) for label, _ in lines)
    widths = [max(len(cells[i]) for _, cells in lines) for i in range(len(columns))]
    return "\n".join(
        f"{label:<{first}}"
        + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        for label, cells in lines
    )


def notes(results: Sequence[Result]) -> str:
    """Return the assumptions behind the figures."""
    profile = results[0].profile
    sampled = [result for result in results if result.sampled]
    standing = (
        f"The days of {sampled[0].drawn:,} users represent all users of larger sites.\n"
        if sampled
        else ""
    )
    return (
        f"Peak: the busiest ten minutes. Waits: only locks that were not free at once. "
        f"±: standard error.\n{standing}"
        f"Actions of an active user ({profile.active_share:.0%} of all): lognormal, "
        f"median {profile.actions.median:g}, sigma {profile.actions.sigma:g}, at most "
        f"{profile.actions.most:,.0f}. Sections: lognormal, median "
        f"{1000 * profile.section.median:g} ms, sigma {profile.section.sigma:g}; "
        f"{profile.slow_share:.1%} of them have a median of {profile.slow_section.median:g} s.\n"
        f"Workers: processes of {THREADS} threads, busy for {BUSY_SHARE:.0%} of the time at the "
        f"peak. All assumptions: tools/traffic/profile.py."
    )


def _swept(result: Result) -> float:
    """Return the number of commands for visits of the sweep, almost all without contention."""
    return result.tally.visits * (1 + result.profile.sweep_steps)


def _timed_out(tally: Tally) -> float:
    return 1e6 * tally.timed_out / tally.locks if tally.locks else 0.0


def _number(value: float) -> str:
    """Format a number with about three figures."""
    if value == int(value) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2g}" if value < 1 else f"{value:.1f}"


def _seconds(value: float) -> str:
    if value >= 3600:
        return f"{value / 3600:.1f} h"
    if value >= 120:
        return f"{value / 60:.1f} min"
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.0f} ms"


def _bytes(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:,.1f} MB"
    return f"{value / 1e3:,.1f} kB"


def _named(name: str, show: Callable[[float], str] = _number) -> Callable[[dict[str, Any]], str]:
    return lambda column: show(column[name])


def _pair(mean: str, peak: str) -> Callable[[dict[str, Any]], str]:
    return lambda column: f"{_number(column[mean])} / {_number(column[peak])}"


def _exactly(name: str, show: Callable[[float], str]) -> Callable[[dict[str, Any]], str]:
    return lambda column: f"{show(column[name])} ± {show(column[name + '_error'])}"


_ROWS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("interactive requests per second", _named("requests_per_second")),
    (
        "interactive locks per second: mean / peak",
        _pair("locks_per_second", "locks_per_second_peak"),
    ),
    (
        "memcached operations per second: mean / peak",
        _pair("operations_per_second", "operations_per_second_peak"),
    ),
    ("memcached operations per request", _named("operations_per_request")),
    ("memcached operations per lock, sweep included", _named("operations_per_lock")),
    ("locks that were not free", _exactly("waiting_share", lambda value: f"{value:.2%}")),
    ("  median wait", _named("wait_p50", _seconds)),
    ("  wait, 99th percentile", _exactly("wait_p99", _seconds)),
    ("  longest wait", _named("wait_longest", _seconds)),
    ("timed out (503), per million locks", _exactly("timed_out_per_million", _number)),
    ("sweep: workers", _named("sweep_workers")),
    ("sweep: duration", _named("sweep_seconds", _seconds)),
    ("sweep: visits that wait, per million", _named("sweep_waits_per_million")),
    ("sweep: yields, per million visits", _named("sweep_yields_per_million")),
    ("records in memcached at the peak", _named("records_peak")),
    ("  their memory", _named("memory_bytes_peak", _bytes)),
    ("  without releases for a lease's time", _named("memory_bytes_most", _bytes)),
    ("worker processes", _named("workers")),
    ("connections to each memcached, maximum", _named("connections")),
    (f"cluster of {SHARDS} shards: locks per second and shard, peak", _named(_OF_SHARD)),
    ("  connections to each node, maximum", _named("node_connections")),
    (
        f"  locks without a store in {FAIL_OVER_SECONDS:g} s of fail-over",
        _named("lost_shard_locks"),
    ),
)
