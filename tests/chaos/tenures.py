"""Mutual exclusion: no two tenures of a lock overlap, and no read under a lock is stale.

A tenure lasts from the grant reported to its holder to the begin of its release, or to its
deadline, by the holder's own clock. A degraded one begins when the store has confirmed it.

Leases in a fallback store exclude each other in the same way, whatever happens to the first store.
Each backs a degraded lease: together they are checked like the leases of a store of its own.

A holder whose process was stopped before the report, and until after the deadline, never held.

    A   granted ▐▀▀▀▀▀▀▀▀▀▀▀▀▀▌ released
    B                      granted ▐▀▀▀▀▀▀▀▀▌           overlap: a finding,
                   ▲                                    unless the store lost its data
                   a restart                            after A's request

The tenures of one lock are consecutive. So a read under a later one must include all writes that
were accepted under earlier ones. This finds errors that exclusion alone does not: an object from a
cache, a write that lands after the release.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

from tests.chaos.findings import Finding, Kind
from tests.chaos.history import Asked, History, LockedRead, Span
from tests.chaos.record import Outcome, Write
from tests.chaos.writes import back, is_created_twice

#: The number of latest writes under earlier tenures that each read is compared with.
_LATEST = 20
#: The time within which the reply to a request may still come.
_REPLY_SECONDS = 1.5


class Exclusion:
    """The tenures of all locks, and their checks.

    Args:
        losses: times at which the store lost records: all, or those of some locks.
        fallback_losses: the same of the fallback store.

    Attributes:
        explained: number of legitimate overlaps, by their explanation.
        compared: number of pairs of consecutive tenures without a loss in between.
        compared_backed: the same of leases in the fallback store.
        compared_reads: number of reads that were compared with earlier writes.
    """

    def __init__(
        self, history: History, losses: Sequence[Span], fallback_losses: Sequence[Span] = ()
    ) -> None:
        self.explained: Counter[str] = Counter()
        self.compared = self.compared_backed = 0
        self.compared_reads = 0
        self._history = history
        self._losses = losses
        self._fallback_losses = fallback_losses
        self._by_token = history.tenures

    def findings(self) -> Iterator[Finding]:
        """Yield the errors."""
        by_lock: dict[str, list[Asked]] = defaultdict(list)
        for asked in self._by_token.values():
            by_lock[asked.lock_id].append(asked)
        for tenures in by_lock.values():
            self.compared += yield from self._overlaps(tenures, self._losses)
            backed = list(_backed(tenures))
            self.compared_backed += yield from self._overlaps(backed, self._fallback_losses)
        yield from self._outdated()

    # --- one at a time ----------------------------------------------------------------------

    def _overlaps(
        self, tenures: Iterable[Asked], losses: Sequence[Span]
    ) -> Generator[Finding, None, int]:
        """Yield the overlaps. Return the number of tenures that had no predecessor any more."""
        compared = 0
        running: list[Asked] = []
        for later in sorted(tenures, key=_began):
            running = [each for each in running if each.held_until > _began(later)]
            for earlier in running:
                if earlier.held_from is None or later.held_from is None:
                    self.explained["a degraded lease"] += 1
                    continue
                first, second = sorted((earlier, later), key=_held_from)
                if min(first.held_until, second.held_until) <= _held_from(second):
                    continue  # the first one was over, or the second one never began
                # The grant that is reported last may have been made first, and then lost.
                since = min(first.began, _sent(second))
                why = _loss(losses, later.lock_id, since, _held_from(second))
                if why:
                    self.explained[why] += 1
                    continue
                yield Finding(
                    Kind.OVERLAP,
                    second.id,
                    f"has {second.lock_id} from {_held_from(second):.3f}; {first.id} had it "
                    f"from {_held_from(first):.3f} to {first.held_until:.3f}",
                    second.lock_id,
                    second.held_from,
                )
            compared += not running
            running.append(later)
        return compared

    # --- one after the other ----------------------------------------------------------------

    def _outdated(self) -> Iterator[Finding]:
        chains = _Order(self._history.writes)
        sealed = self._sealed()
        early: set[str] = set()
        for read in self._history.reads:
            tenure = self._by_token.get(read.token)
            if tenure is None or tenure.held_from is None:
                continue
            if read.began < tenure.held_from:
                early.add(read.token)
            # A degraded read stays in the context cache after the confirmation, and a query brings
            # others of the same kind along.
            if read.token in early:
                continue
            if read.ended > tenure.held_until:
                continue  # it was over by the holder's own clock, so its reads are not used
            earlier = sealed.get((read.entity, tenure.lock_id), [])
            before = bisect.bisect_left(earlier, tenure.held_from, key=lambda pair: pair[0])
            for _, write in earlier[max(0, before - _LATEST) : before]:
                # Its tenure may have been lost before its grant was reported.
                sent = _sent(self._by_token[write.token or ""])
                if _loss(self._losses, tenure.lock_id, sent, read.ended):
                    continue
                self.compared_reads += 1
                if chains.shows_less(read.found, write.id):
                    yield _outdated(read, tenure, write)
                    break

    def _sealed(self) -> Mapping[tuple[str, str], list[tuple[float, Write]]]:
        """Return the writes accepted under a tenure during it, by entity and lock, in order."""
        sealed: dict[tuple[str, str], list[tuple[float, Write]]] = defaultdict(list)
        for write in self._history.writes.values():
            tenure = self._by_token.get(write.token or "")
            if tenure is None or write.outcome is not Outcome.ACCEPTED or write.entity is None:
                continue
            began = tenure.held_from
            assert write.reported is not None
            if began is not None and began <= write.made and write.reported <= tenure.deadline:
                sealed[write.entity, tenure.lock_id].append((began, write))
        for each in sealed.values():
            each.sort(key=lambda pair: pair[0])
        return sealed


def _loss(losses: Iterable[Span], lock_id: str, since: float, until: float) -> str:
    """Return the loss of a lock's record in this interval; empty if there is none."""
    for loss in losses:
        if loss.affects(lock_id) and loss.meets(since, until):
            return loss.kind
    return ""


def _backed(tenures: Iterable[Asked]) -> Iterator[Asked]:
    """Yield the leases in the fallback store, as tenures from the grant on."""
    for asked in tenures:
        if asked.backed_until is not None:
            until = min(asked.deadline, asked.backed_until)
            yield dataclasses.replace(asked, degraded=False, deadline=until)


def _outdated(read: LockedRead, tenure: Asked, write: Write) -> Finding:
    return Finding(
        Kind.OUTDATED,
        tenure.id,
        f"read {read.entity} as of {read.found}, after {write.id} was accepted under an earlier "
        f"tenure of {tenure.lock_id}",
        read.entity,
        read.began,
    )


def _began(asked: Asked) -> float:
    assert asked.granted is not None
    return asked.granted


def _sent(asked: Asked) -> float:
    """Return the earliest time of the request that was granted."""
    return max(asked.began, _held_from(asked) - _REPLY_SECONDS)


def _held_from(asked: Asked) -> float:
    assert asked.held_from is not None
    return asked.held_from


class _Order:
    """The order of the writes of an entity, by their predecessors.

    Two writes after the same one have none: `writes` reports them.
    """

    def __init__(self, writes: Mapping[str, Write]) -> None:
        self._writes = writes
        self._places: dict[str, tuple[str, int]] = {}
        #: Creations whose chains have ended, or may have.
        self._ended = {
            self._place(write.id)[0]
            for write in writes.values()
            if write.deletes and write.outcome is not Outcome.REFUSED
        }
        self._followed = {
            write.before for write in writes.values() if write.outcome is Outcome.ACCEPTED
        }

    def _place(self, write_id: str) -> tuple[str, int]:
        """Return the creation that a write goes back to, and the number of writes in between."""
        behind: list[str] = []
        at = write_id
        while at not in self._places:
            write = self._writes.get(at)
            if write is None or write.before is None or write.before in behind:
                self._places[at] = (at, 0)
                break
            behind.append(at)
            at = write.before
        root, depth = self._places[at]
        for each in reversed(behind):
            depth += 1
            self._places[each] = (root, depth)
        return self._places[write_id]

    def shows_less(self, found: str | None, write_id: str) -> bool:
        """Return whether the found state is certainly older than this write."""
        root, depth = self._place(write_id)
        if found is None:
            return root not in self._ended and not self._writes[write_id].deletes
        found_root, found_depth = self._place(found)
        if found_root != root or found_depth >= depth:
            return False
        return found in back(self._writes, write_id) and not is_created_twice(
            self._writes, found, self._may_have_landed
        )

    def _may_have_landed(self, write: Write) -> bool:
        if write.outcome is Outcome.UNKNOWN:
            return write.before not in self._followed
        return write.outcome is Outcome.ACCEPTED
