"""Whether locks excluded: no two held one at once, and what was read under one was new.

A tenure lasts from when its holder was told that it has the lock to when it
began to give it back, or to its deadline, by the holder's own clock. One that
was taken without the store's word begins when the store has given it.

One whose process was stopped until the deadline had passed, before it could be
told, never held.

    A   granted ▐▀▀▀▀▀▀▀▀▀▀▀▀▀▌ released
    B                      granted ▐▀▀▀▀▀▀▀▀▌           at once: a finding,
                   ▲                                    unless the store lost its data
                   a restart                            after A had asked

The tenures of one lock come one after the other, so what was read under a later
one has all that was accepted under an earlier one. This finds what exclusion
alone does not: an object from a cache, a write that lands after the release.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.chaos.findings import Finding, Kind
from tests.chaos.history import Asked, History, Sight, Span
from tests.chaos.record import Outcome, Write

#: What each sight is compared with: so many of the latest writes under earlier tenures.
_LATEST = 20


class Exclusion:
    """The tenures of all locks, and what they allow.

    Args:
        history: what has happened.
        losses: when the store lost records: all, or that of one lock.

    Attributes:
        explained: how many overlaps there were that may be, by what explains them.
        compared: how many pairs of tenures came one after the other while nothing was lost.
        looked_at: how many sights were compared with earlier writes.
    """

    def __init__(self, history: History, losses: Sequence[Span]) -> None:
        self.explained: Counter[str] = Counter()
        self.compared = 0
        self.looked_at = 0
        self._history = history
        self._losses = losses
        self._by_token = history.tenures

    def findings(self) -> Iterator[Finding]:
        """What is wrong."""
        by_lock: dict[str, list[Asked]] = defaultdict(list)
        for asked in self._by_token.values():
            by_lock[asked.lock_id].append(asked)
        for tenures in by_lock.values():
            yield from self._overlaps(tenures)
        yield from self._outdated()

    def _loss(self, lock_id: str, since: float, until: float) -> str:
        """What the store has lost of a lock meanwhile; empty if nothing."""
        for loss in self._losses:
            if loss.lock in (None, lock_id) and loss.meets(since, until):
                return loss.kind
        return ""

    # --- one at a time ----------------------------------------------------------------------

    def _overlaps(self, tenures: Iterable[Asked]) -> Iterator[Finding]:
        running: list[Asked] = []
        for later in sorted(tenures, key=_began):
            running = [each for each in running if each.held_until > _began(later)]
            for earlier in running:
                if earlier.held_from is None or later.held_from is None:
                    self.explained["without the store's word"] += 1
                    continue
                first, second = sorted((earlier, later), key=_held_from)
                if min(first.held_until, second.held_until) <= _held_from(second):
                    continue  # the one was over, or the other had never begun
                why = self._loss(later.lock_id, first.began, _held_from(second))
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
            self.compared += not running
            running.append(later)

    # --- one after the other ----------------------------------------------------------------

    def _outdated(self) -> Iterator[Finding]:
        chains = _Order(self._history.writes)
        sealed = self._sealed()
        early: set[str] = set()
        for sight in self._history.sights:
            tenure = self._by_token.get(sight.token)
            if tenure is None or tenure.held_from is None:
                continue
            if sight.began < tenure.held_from:
                early.add(sight.token)
            # Read without the store's word, it stays in the context cache when that is given; and
            # a query brings others of the same kind along.
            if sight.token in early:
                continue
            if sight.ended > tenure.held_until:
                continue  # it was over by the holder's own clock, so nothing may be made of it
            earlier = sealed.get((sight.entity, tenure.lock_id), [])
            before = bisect.bisect_left(earlier, tenure.held_from, key=lambda pair: pair[0])
            for held_from, write in earlier[max(0, before - _LATEST) : before]:
                if self._loss(tenure.lock_id, held_from, sight.ended):
                    continue
                self.looked_at += 1
                if chains.shows_less(sight.found, write.id):
                    yield _outdated(sight, tenure, write)
                    break

    def _sealed(self) -> Mapping[tuple[str, str], list[tuple[float, Write]]]:
        """What was accepted under a tenure while that lasted, by entity and lock, in order."""
        sealed: dict[tuple[str, str], list[tuple[float, Write]]] = defaultdict(list)
        for write in self._history.writes.values():
            tenure = self._by_token.get(write.token or "")
            if tenure is None or write.outcome is not Outcome.ACCEPTED or write.entity is None:
                continue
            began = tenure.held_from
            assert write.told is not None
            if began is not None and began <= write.made and write.told <= tenure.deadline:
                sealed[write.entity, tenure.lock_id].append((began, write))
        for each in sealed.values():
            each.sort(key=lambda pair: pair[0])
        return sealed


def _outdated(sight: Sight, tenure: Asked, write: Write) -> Finding:
    return Finding(
        Kind.OUTDATED,
        tenure.id,
        f"read {sight.entity} as of {sight.found}, after {write.id} was accepted under an earlier "
        f"tenure of {tenure.lock_id}",
        sight.entity,
        sight.began,
    )


def _began(asked: Asked) -> float:
    assert asked.granted is not None
    return asked.granted


def _held_from(asked: Asked) -> float:
    assert asked.held_from is not None
    return asked.held_from


class _Order:
    """Which write of an entity comes after which, as each says what it builds on."""

    def __init__(self, writes: Mapping[str, Write]) -> None:
        self._writes = writes
        self._places: dict[str, tuple[str, int]] = {}
        #: Creations whose chains have ended, or may have.
        self._ended = {
            self._place(write.id)[0]
            for write in writes.values()
            if write.deletes and write.outcome is not Outcome.REFUSED
        }

    def _place(self, write_id: str) -> tuple[str, int]:
        """The creation that a write goes back to, and how many writes lie between them."""
        back: list[str] = []
        at = write_id
        while at not in self._places:
            write = self._writes.get(at)
            if write is None or write.before is None or write.before in back:
                self._places[at] = (at, 0)
                break
            back.append(at)
            at = write.before
        root, depth = self._places[at]
        for each in reversed(back):
            depth += 1
            self._places[each] = (root, depth)
        return self._places[write_id]

    def shows_less(self, found: str | None, write_id: str) -> bool:
        """Whether what was found is older than this write for certain."""
        root, depth = self._place(write_id)
        if found is None:
            return root not in self._ended and not self._writes[write_id].deletes
        found_root, found_depth = self._place(found)
        return found_root == root and found_depth < depth
