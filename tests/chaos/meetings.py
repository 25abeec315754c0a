"""The effects of the faults: a fault without an effect proves nothing.

A process that is killed or stopped holds locks at that moment, waits for some, or does neither. A
server that is lost has leases, queues and writes in progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tests.chaos.harms import EMULATOR_KILLED, PROCESS_KILLED, PROCESS_STOPPED
from tests.chaos.history import Asked, History, Span

OUTLIVED = "leases outlived by their holders"


def meetings(history: History, losses: Sequence[Span]) -> Counter[str]:
    """Count the leases, waits and writes that met each fault."""
    attempts = list(history.attempts.values())
    tenures = [asked for asked in attempts if asked.granted is not None]
    met = Counter(_of_processes(history.spans, attempts))
    met[OUTLIVED] = sum(
        asked.released is not None and asked.deadline < asked.released for asked in tenures
    )
    met["leases lost by the store while they were held"] = sum(
        asked.held_from is not None and _is_hit(asked, asked.held_from, asked.held_until, losses)
        for asked in tenures
    )
    met["waits in a queue that the store lost"] = sum(
        asked.queued is not None and _is_hit(asked, asked.queued, _ended(asked), losses)
        for asked in attempts
    )
    kills = [span for span in history.spans if span.kind == EMULATOR_KILLED]
    met["writes in progress when the emulator was killed"] = sum(
        write.reported is not None and write.made <= span.began <= write.reported
        for span in kills
        for write in history.writes.values()
    )
    return met


def _of_processes(spans: Sequence[Span], attempts: Sequence[Asked]) -> Iterator[str]:
    for span in spans:
        if span.kind not in (PROCESS_KILLED, PROCESS_STOPPED):
            continue
        for asked in attempts:
            if asked.who != span.who:
                continue
            priority = "batch" if asked.batch else "interactive"
            if _is_held(asked, span.began):
                yield f"{span.kind}: {priority} holder"
                if span.kind == PROCESS_STOPPED and asked.deadline < span.ended:
                    yield f"{span.kind}: {priority} holder, past its lease"
            elif asked.queued is not None and asked.queued <= span.began <= _ended(asked):
                yield f"{span.kind}: {priority} waiter"


def _is_held(asked: Asked, at: float) -> bool:
    return asked.granted is not None and asked.granted <= at < asked.held_until


def _ended(asked: Asked) -> float:
    """Return the end of the wait, at the latest its timeout."""
    return asked.began + asked.timeout if asked.ended is None else asked.ended


def _is_hit(asked: Asked, began: float, ended: float, losses: Sequence[Span]) -> bool:
    """Return whether a whole loss was between these times."""
    return any(
        loss.affects(asked.lock_id) and began <= loss.began and loss.ended <= ended
        for loss in losses
    )
