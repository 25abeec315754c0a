"""Whether what was told of each write is what is there in the end.

Each write notes the one that it builds on, so the writes of an entity that have
landed form chains, each from a creation to a deletion or to what is stored:

    created a ◀── b ◀── c ◀── deleted d        created e ◀── f: stored

What was accepted and stands on no such chain is lost. Two writes that have
landed on the same one fork a chain: the later overwrote the earlier. What was
refused, and stands on a chain, is there all the same.

Two forks may be. A creation that was deleted before its outcome was told: it was
sent again, because its reply was lost, and has landed a second time. And a
deletion of what somebody else has written over, and another has deleted before
it came: the entity is gone, as was asked for.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.chaos.findings import Finding, Kind
from tests.chaos.record import Outcome, Stored, Write


@dataclasses.dataclass(frozen=True)
class Compared:
    """What was told, beside what is there.

    Attributes:
        findings: what is wrong, or nothing. Each write is accepted and there once; refused and not
            there; or unknown, and there at most once.
        in_doubt: of those that are unknown, how many had landed, had not, or left no trace by which
            to tell.
    """

    findings: list[Finding]
    in_doubt: Counter[str]


def check(writes: Sequence[Write], stored: Mapping[str, Stored], single: Iterable[str]) -> Compared:
    """Compare what was told with what is there.

    Args:
        writes: all that were made.
        stored: the entities that are there at the end, by name.
        single: the ids of the writes of entities of their own, as they are stored.
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
        landed: the ids of those that have landed for certain.
        absent: of those that have not landed for certain.
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
        self.absent = {
            write.id
            for write in writes
            if write.id not in self.landed
            and write.before is not None
            and (self._next.get(write.before) or write.before in last)
        }

    def _deleted(self, write: Write) -> str | None:
        """Return what a deletion is of.

        Not what its own operation has put before, unless that was accepted: the
        object still stands for what was read.
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
            # What is gone may be deleted again.
            again = all(self._deletes(each) for each in after) or self._is_created_twice(before)
            if len([each for each in after if not self._found_it_gone(each)]) > 1 and not again:
                detail = f"followed by {', '.join(after)}"
                at = max(self._writes[each].made for each in after)
                yield Finding(Kind.FORKED, before, detail, at=at)
        surviving = self._surviving()
        for each in sorted(self.landed):
            write = self._writes.get(each)
            if write is None:
                yield Finding(Kind.PHANTOM, each, "nobody made it")
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
        return Finding(Kind.LOST, write.id, detail, at=write.told)

    def _is_undone(self, write: Write) -> bool:
        """Whether it is a deletion, and what it deleted is there."""
        if not write.deletes or self._stored is None or self._stored.last != write.before:
            return False
        return not self._is_created_twice(self._stored.last)

    def _is_created_twice(self, write_id: str) -> bool:
        """Whether a creation may have been sent again after somebody had deleted what it created.

        What is not there has no version that the second try could name: docs/fencing.md. The
        creation may have had other changes of its operation, made while it was under way.
        """
        creation = write = self._writes.get(write_id)
        while creation is not None and creation.before is not None:
            earlier = self._writes.get(creation.before)
            if earlier is None or earlier.operation != creation.operation or creation.deletes:
                return False
            creation = earlier
        if write is None or creation is None:
            return False
        told = math.inf if creation.told is None else creation.told
        if write is not creation and write.made > told:
            return False  # the second try of the creation cannot have had that change
        return any(
            other.deletes and other.made <= told and write_id in self._back(other.id)
            for other in self._writes.values()
            if self._may_have_landed(other)
        )

    def _found_it_gone(self, write_id: str) -> bool:
        """Whether it is a deletion, and what others had made meanwhile may have been deleted.

        It counts as landed if the entity is gone, whoever has deleted it: docs/fencing.md.
        """
        write = self._writes.get(write_id)
        if write is None or write.before is None or not write.deletes:
            return False
        told = math.inf if write.told is None else write.told
        return any(
            other.deletes
            and other.before != write.before
            and other.made <= told
            and write.before in self._back(other.id)
            for other in self._writes.values()
            if self._may_have_landed(other)
        )

    def _may_have_landed(self, write: Write) -> bool:
        if write.outcome is Outcome.UNKNOWN:
            return write.id not in self.absent
        return write.id in self.landed

    def _surviving(self) -> set[str]:
        """What stands on a chain that ends as it should."""
        ends = [] if self._stored is None else [self._stored.last]
        ends += [each for each in self.landed if self._deletes(each)]
        surviving = {each for end in ends for each in self._back(end)}
        # A deletion that nobody knows of may have ended a chain that ends nowhere else.
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
        """A write, the one that it builds on, and so on to the creation."""
        at: str | None = write_id
        seen: set[str] = set()
        while at is not None and at not in seen:
            seen.add(at)
            yield at
            at = self._before(at)


def _singles(writes: Sequence[Write], stored: Counter[str]) -> Iterator[Finding]:
    """Entities of their own: each is there as often as was told."""
    made = {write.id for write in writes}
    for each in sorted(set(stored) - made):
        yield Finding(Kind.PHANTOM, each, "nobody made it")
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
            yield Finding(Kind.UNCHECKED, write.id, detail, place, write.told)


def _again(writes: Mapping[str, Write], landed: Iterable[str]) -> Iterator[Finding]:
    """An operation that was run again has landed once."""
    runs: dict[str, set[str | None]] = defaultdict(set)
    for each in landed:
        write = writes.get(each)
        if write is not None and write.together is not None:
            runs[write.operation].add(write.together)
    for operation, together in runs.items():
        if len(together) > 1:
            yield Finding(Kind.TWICE, operation, f"{len(together)} of its runs have landed")


def _torn(writes: Sequence[Write], landed: set[str], absent: set[str]) -> Iterator[Finding]:
    """Of a transaction, all writes have landed or none."""
    together: dict[str, list[str]] = defaultdict(list)
    for write in writes:
        if write.together is not None:
            together[write.together].append(write.id)
    for ids in together.values():
        there = [each for each in ids if each in landed]
        missing = [each for each in ids if each in absent]
        if there and missing:
            yield Finding(Kind.TORN, there[0], f"without {', '.join(missing)}")
