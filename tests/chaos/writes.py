"""The agreement of the reported outcomes of writes with the final state.

Each write records its predecessor. So the writes of an entity that have landed form chains, each
from a creation to a deletion or to the stored state:

    created a ◀── b ◀── c ◀── deleted d        created e ◀── f: stored

An accepted write outside such chains is lost. Two landed writes with the same predecessor fork a
chain: the later one overwrote the earlier. A refused write on a chain did land.

Two kinds of forks are legitimate. A creation that was deleted before its outcome was reported: it
was retried after a lost reply, and has landed a second time. And a deletion of an entity that
another client has overwritten, and a third one has deleted first: the entity is gone, as requested.
The same holds for a transaction in doubt that puts an entity and deletes it in the end.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tests.chaos.findings import Finding, Kind
from tests.chaos.record import Outcome, Stored, Write


@dataclasses.dataclass(frozen=True)
class Compared:
    """The comparison of reported outcomes with the final state.

    Attributes:
        findings: the errors. Each write must be accepted and present once; refused and
            absent; or unknown, and present at most once.
        in_doubt: number of unknown writes that have landed, have not, or left no trace.
    """

    findings: list[Finding]
    in_doubt: Counter[str]


def check(writes: Sequence[Write], stored: Mapping[str, Stored], single: Iterable[str]) -> Compared:
    """Compare the reported outcomes with the final state.

    Args:
        single: the stored ids of the writes of single entities.
    """
    by_id = {write.id: write for write in writes}
    landed: set[str] = set()
    absent: set[str] = set()
    findings: list[Finding] = []
    by_entity: dict[str, list[Write]] = {name: [] for name in stored}
    for write in writes:
        if write.entity is not None:
            by_entity.setdefault(write.entity, []).append(write)
    for name, mine in by_entity.items():
        chains = _Chains(mine, stored.get(name))
        findings += (dataclasses.replace(each, place=name) for each in chains.findings())
        landed |= chains.landed
        absent |= chains.absent
    findings += _singles([write for write in writes if write.entity is None], Counter(single))
    landed.update(single)
    absent.update(write.id for write in writes if write.entity is None and write.id not in landed)
    findings += _unchecked(writes, landed)
    findings += _again(by_id, landed)
    findings += _torn(writes, landed, absent)
    in_doubt = Counter(
        "had landed" if each.id in landed else "had not" if each.id in absent else "nothing tells"
        for each in writes
        if each.outcome is Outcome.UNKNOWN
    )
    return Compared(findings, in_doubt)


class _Chains:
    """The writes of one entity.

    Attributes:
        landed: the ids of writes that have certainly landed.
        absent: the ids of writes that have certainly not landed.
    """

    def __init__(self, writes: Sequence[Write], stored: Stored | None) -> None:
        self._writes = {write.id: write for write in writes}
        for write in writes:
            if write.deletes:
                self._writes[write.id] = dataclasses.replace(write, before=self._deleted(write))
        self._stored = stored
        accepted = [write.id for write in writes if write.outcome is Outcome.ACCEPTED]
        last = [] if stored is None else [stored.last]
        self.landed = {each for end in (*accepted, *last) for each in self._back(end)}
        self._next: dict[str, list[str]] = defaultdict(list)
        for each in sorted(self.landed):
            before = self._before(each)
            if before is not None:
                self._next[before].append(each)
        #: Writes of states that others have followed: they have not landed, but for deletions that
        #: have found the entity gone.
        self._overtaken = {
            write.id
            for write in writes
            if write.id not in self.landed
            and write.before is not None
            and (self._next.get(write.before) or write.before in last)
        }
        self.absent = {each for each in self._overtaken if not self._found_it_gone(each, same=True)}

    def _deleted(self, write: Write) -> str | None:
        """Return the write that a deletion removes.

        It is not an earlier put of the same operation, unless that one was accepted: the object
        still represents the state that was read.
        """
        before = write.before
        while before in self._writes:
            put = self._writes[before]
            if put.operation != write.operation or put.outcome is Outcome.ACCEPTED:
                break
            before = put.before
        return before

    def findings(self) -> Iterator[Finding]:
        for before, after in self._next.items():
            # A missing entity may be deleted again.
            again = all(self._removes(each) for each in after) or self._is_created_twice(before)
            if len([each for each in after if not self._found_it_gone(each)]) > 1 and not again:
                detail = f"followed by {', '.join(after)}"
                at = max(self._writes[each].made for each in after)
                yield Finding(Kind.FORKED, before, detail, at=at)
        surviving = self._surviving()
        for each in sorted(self.landed):
            write = self._writes.get(each)
            if write is None:
                yield Finding(Kind.PHANTOM, each, "no such write was made")
            elif write.outcome is Outcome.REFUSED:
                yield Finding(Kind.PHANTOM, each, f"refused of {write.operation}")
            elif (write.outcome is Outcome.ACCEPTED and each not in surviving) or self._is_undone(
                write
            ):
                yield self._lost(write)
        if self._stored is not None:
            length = sum(1 for _ in self._back(self._stored.last))
            if self._stored.count != length:
                detail = f"{self._stored.count} for {length}"
                yield Finding(Kind.MISCOUNTED, self._stored.last, detail)

    def _lost(self, write: Write) -> Finding:
        detail = f"of {write.entity}, by {write.operation}"
        return Finding(Kind.LOST, write.id, detail, at=write.reported)

    def _is_undone(self, write: Write) -> bool:
        """Return whether it is a deletion whose entity still exists."""
        if not write.deletes or self._stored is None or self._stored.last != write.before:
            return False
        return not self._is_created_twice(self._stored.last)

    def _is_created_twice(self, write_id: str) -> bool:
        return is_created_twice(self._writes, write_id, self._may_have_landed)

    def _found_it_gone(self, write_id: str, *, same: bool = False) -> bool:
        """Return whether its commit deletes an entity that others may have deleted before.

        They have overwritten it first, or, with `same`, perhaps not. The commit counts as landed if
        the entity is gone, by any deletion: docs/fencing.md.
        """
        write = self._writes.get(write_id)
        if write is None or write.before is None:
            return False
        last = self._last_of_its_commit(write)
        if not last.deletes:
            return False
        return any(
            (same or other.before != write.before) and self._may_have_landed(other)
            for other in self._deletions_before(last, write.before)
        )

    def _deletions_before(self, deletion: Write, state: str) -> Iterator[Write]:
        """Yield the other deletions, of this or a later state, that may have come before it."""
        reported = math.inf if deletion.reported is None else deletion.reported
        for other in self._writes.values():
            if (
                other.deletes
                and other.id != deletion.id
                and (other.together is None or other.together != deletion.together)
                and other.outcome is not Outcome.REFUSED
                and other.made <= reported
                and state in self._back(other.id)
            ):
                yield other

    def _removes(self, write_id: str) -> bool:
        """Return whether it deletes the entity, or its transaction does in the end."""
        return write_id in self._writes and self._last_of_its_commit(self._writes[write_id]).deletes

    def _last_of_its_commit(self, write: Write) -> Write:
        """Return the last write of this entity in the write's transaction, or the write itself."""
        if write.together is None:
            return write
        commit = [each for each in self._writes.values() if each.together == write.together]
        return max(commit, key=lambda each: each.made)

    def _may_have_landed(self, write: Write) -> bool:
        if write.outcome is Outcome.UNKNOWN:
            return write.id not in self._overtaken
        return write.id in self.landed

    def _surviving(self) -> set[str]:
        """Return the writes on chains with a proper end."""
        ends = [] if self._stored is None else [self._stored.last]
        ends += [each for each in self.landed if self._deletes(each)]
        surviving = {each for end in ends for each in self._back(end)}
        # A deletion without a known outcome may have ended a chain that has no other end.
        for write in self._writes.values():
            if write.deletes and write.outcome is Outcome.UNKNOWN:
                chain = list(self._back(write.id))[1:]
                end = next((each for each in chain if each in self.landed), None)
                if end is not None and end not in surviving and not self._next.get(end):
                    surviving.update(self._back(end))
        return surviving

    def _deletes(self, write_id: str) -> bool:
        return write_id in self._writes and self._writes[write_id].deletes

    def _before(self, write_id: str) -> str | None:
        return self._writes[write_id].before if write_id in self._writes else None

    def _back(self, write_id: str) -> Iterator[str]:
        return back(self._writes, write_id)


def back(writes: Mapping[str, Write], write_id: str) -> Iterator[str]:
    """Yield a write, its predecessor, and so on to the creation."""
    at: str | None = write_id
    seen: set[str] = set()
    while at is not None and at not in seen:
        seen.add(at)
        yield at
        at = writes[at].before if at in writes else None


def is_created_twice(
    writes: Mapping[str, Write],
    write_id: str,
    may_have_landed: Callable[[Write], bool],
) -> bool:
    """Return whether a creation may have been retried after its entity was deleted.

    A missing entity has no version that the retry could name: docs/fencing.md. The creation may
    have had other changes of its operation, made while it was in progress.
    """
    creation = write = writes.get(write_id)
    while creation is not None and creation.before is not None:
        earlier = writes.get(creation.before)
        if earlier is None or earlier.operation != creation.operation or creation.deletes:
            return False
        creation = earlier
    if write is None or creation is None:
        return False
    reported = math.inf if creation.reported is None else creation.reported
    if write is not creation and write.made > reported:
        return False  # the retry of the creation cannot have had that change
    return any(
        other.deletes and other.made <= reported and write_id in back(writes, other.id)
        for other in writes.values()
        if may_have_landed(other)
    )


def _singles(writes: Sequence[Write], stored: Counter[str]) -> Iterator[Finding]:
    """Yield the single entities whose number differs from the reported outcome."""
    made = {write.id for write in writes}
    for each in sorted(set(stored) - made):
        yield Finding(Kind.PHANTOM, each, "no such write was made")
    for write in writes:
        count = stored[write.id]
        if count > 1:
            yield Finding(Kind.TWICE, write.id, f"{count} entities, by {write.operation}")
        if count and write.outcome is Outcome.REFUSED:
            yield Finding(Kind.PHANTOM, write.id, f"refused of {write.operation}")
        if not count and write.outcome is Outcome.ACCEPTED:
            yield Finding(Kind.LOST, write.id, f"by {write.operation}")


def _unchecked(writes: Iterable[Write], landed: set[str]) -> Iterator[Finding]:
    """Return the writes made under no lock, where that is refused, or past the library."""
    for write in writes:
        if write.forbidden and (write.outcome is Outcome.ACCEPTED or write.id in landed):
            place = write.entity or ""
            detail = f"{write.outcome.value}, of {write.operation}"
            yield Finding(Kind.UNCHECKED, write.id, detail, place, write.reported)


def _again(writes: Mapping[str, Write], landed: Iterable[str]) -> Iterator[Finding]:
    """Yield the repeated operations that have landed more than once."""
    runs: dict[str, set[str | None]] = defaultdict(set)
    for each in landed:
        write = writes.get(each)
        if write is not None and write.together is not None:
            runs[write.operation].add(write.together)
    for operation, together in runs.items():
        if len(together) > 1:
            yield Finding(Kind.TWICE, operation, f"{len(together)} of its attempts have landed")


def _torn(writes: Sequence[Write], landed: set[str], absent: set[str]) -> Iterator[Finding]:
    """Yield the transactions of which only a part has landed."""
    together: dict[str, list[str]] = defaultdict(list)
    for write in writes:
        if write.together is not None:
            together[write.together].append(write.id)
    for ids in together.values():
        there = [each for each in ids if each in landed]
        missing = [each for each in ids if each in absent]
        if there and missing:
            yield Finding(Kind.TORN, there[0], f"without {', '.join(missing)}")
