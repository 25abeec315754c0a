"""Break one promise of the protocol in each store, as negative controls of the contract suite."""

from __future__ import annotations

import itertools
import os
import time
import unicodedata

from userlock.clock import Clock
from userlock.lock.store import GRACE_SECONDS, Stored
from userlock.stores import MemoryStore


def dither() -> None:
    """Give other threads time to come in between."""
    time.sleep(0.002)


# --- not atomic ---------------------------------------------------------------------------------


class CreateLooksFirst(MemoryStore):
    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        if self.read(lock_id) is not None:
            return None
        dither()
        self.evict(lock_id)
        return super().create(lock_id, record, ttl_seconds)


class SwapLooksFirst(MemoryStore):
    def swap(self, lock_id: str, version: object, record: bytes, ttl_seconds: float) -> int | None:
        stored = self.read(lock_id)
        if stored is None or stored.version != version:
            return None
        dither()
        with self._mutex:
            return self._put(lock_id, record, ttl_seconds)


class RemoveLooksFirst(MemoryStore):
    def remove(self, lock_id: str, version: object) -> bool:
        stored = self.read(lock_id)
        if stored is None or stored.version != version:
            return False
        dither()
        self.evict(lock_id)
        return True


class AppendReadsThenWrites(MemoryStore):
    def append(self, lock_id: str, line: bytes) -> Stored | None:
        with self._mutex:
            entry = self._entry(lock_id)
        if entry is None:
            return None
        dither()
        with self._mutex:
            changed = entry._replace(record=entry.record + line, version=next(self._versions))
            self._entries[lock_id] = changed
            return self._stored(changed)


class BreaksInChildren(MemoryStore):
    def __init__(self, *, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._process = os.getpid()

    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        if os.getpid() != self._process:
            raise OSError("this is another's connection")
        return super().create(lock_id, record, ttl_seconds)


class MixesUpRepliesInChildren(BreaksInChildren):
    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        return MemoryStore.create(self, lock_id, record, ttl_seconds)

    def append(self, lock_id: str, line: bytes) -> Stored | None:
        stored = super().append(lock_id, line)
        return stored and stored._replace(
            record=stored.record if os.getpid() == self._process else b"another's"
        )


# --- versions -----------------------------------------------------------------------------------


class SwapIgnoresVersion(MemoryStore):
    def swap(self, lock_id: str, version: object, record: bytes, ttl_seconds: float) -> int | None:
        with self._mutex:
            return self._put(lock_id, record, ttl_seconds) if self._entry(lock_id) else None


class SwapCreates(MemoryStore):
    def swap(self, lock_id: str, version: object, record: bytes, ttl_seconds: float) -> int | None:
        swapped = super().swap(lock_id, version, record, ttl_seconds)
        return swapped or self.create(lock_id, record, ttl_seconds)


class RemoveIgnoresVersion(MemoryStore):
    def remove(self, lock_id: str, version: object) -> bool:
        stored = self.read(lock_id)
        return stored is not None and super().remove(lock_id, stored.version)


class AppendSpendsNoVersion(MemoryStore):
    def append(self, lock_id: str, line: bytes) -> Stored | None:
        with self._mutex:
            entry = self._entry(lock_id)
            if entry is None:
                return None
            self._entries[lock_id] = entry._replace(record=entry.record + line)
            return self._stored(self._entries[lock_id])


class VersionsAreRecords(MemoryStore):
    """Gives a renewed record its old version if its text is the same."""

    def create(  # type: ignore[override]
        self, lock_id: str, record: bytes, ttl_seconds: float
    ) -> bytes | None:
        return None if super().create(lock_id, record, ttl_seconds) is None else record

    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        stored = super().read(lock_id)
        return stored and stored._replace(version=stored.record)

    def append(self, lock_id: str, line: bytes) -> Stored | None:
        stored = super().append(lock_id, line)
        return stored and stored._replace(version=stored.record)

    def swap(  # type: ignore[override]
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> bytes | None:
        with self._mutex:
            entry = self._entry(lock_id)
            if entry is None or entry.record != version:
                return None
            self._put(lock_id, record, ttl_seconds)
            return record

    def remove(self, lock_id: str, version: object) -> bool:
        with self._mutex:
            entry = self._entry(lock_id)
            if entry is None or entry.record != version:
                return False
            del self._entries[lock_id]
            return True


class VersionsStartAgain(MemoryStore):
    """Counts the versions of each record from 1, so a new record has the versions of an old one."""

    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        if self.read(lock_id) is None:
            self._versions = itertools.count(1)
        return super().create(lock_id, record, ttl_seconds)


# --- records ------------------------------------------------------------------------------------


class CreateOverwrites(MemoryStore):
    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        version = super().create(lock_id, record, ttl_seconds)
        if version is None:
            with self._mutex:
                self._put(lock_id, record, ttl_seconds)
        return version


class AppendCreates(MemoryStore):
    def append(self, lock_id: str, line: bytes) -> Stored | None:
        if self.read(lock_id) is None:
            self.create(lock_id, line, 60)
            return None
        return super().append(lock_id, line)


class AppendAnswersWithWhatWas(MemoryStore):
    def append(self, lock_id: str, line: bytes) -> Stored | None:
        before = self.read(lock_id)
        super().append(lock_id, line)
        return before


class ReadsWhatIsNotThere(MemoryStore):
    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        return super().read(lock_id) or Stored(b"", 0, lapsed=False)


class RemoveTakesEverything(MemoryStore):
    def remove(self, lock_id: str, version: object) -> bool:
        removed = super().remove(lock_id, version)
        if removed:
            self.forget_everything()
        return removed


class HurryReadsNothing(MemoryStore):
    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        return None if hurry else super().read(lock_id)


class CutsBigRecords(MemoryStore):
    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        stored = super().read(lock_id)
        return stored and stored._replace(record=stored.record[:65_536])


class StripsRecords(MemoryStore):
    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        return super().create(lock_id, record.strip(), ttl_seconds)


class _Folding(MemoryStore):
    def fold(self, lock_id: str) -> str:
        raise NotImplementedError

    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        return super().create(self.fold(lock_id), record, ttl_seconds)


class FoldsSurrogates(_Folding):
    def fold(self, lock_id: str) -> str:
        return lock_id.encode("utf-8", "replace").decode()


class JoinsSurrogates(_Folding):
    def fold(self, lock_id: str) -> str:
        return lock_id.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


class NormalizesUnicode(_Folding):
    def fold(self, lock_id: str) -> str:
        return unicodedata.normalize("NFC", lock_id)


class CutsLockIds(_Folding):
    def fold(self, lock_id: str) -> str:
        return lock_id[:250]


class StripsLockIds(_Folding):
    def fold(self, lock_id: str) -> str:
        return lock_id.strip() or lock_id


# --- time ---------------------------------------------------------------------------------------


class LapsesEarly(MemoryStore):
    def _put(self, lock_id: str, record: bytes, ttl_seconds: float) -> int:
        return super()._put(lock_id, record, ttl_seconds * 0.9)


class NeverLapses(MemoryStore):
    def _stored(self, entry: object) -> Stored | None:
        stored = super()._stored(entry)  # type: ignore[arg-type]
        return stored and stored._replace(lapsed=False)


class LapsesLate(MemoryStore):
    def _put(self, lock_id: str, record: bytes, ttl_seconds: float) -> int:
        return super()._put(lock_id, record, ttl_seconds + 5)


class GivesNoGrace(MemoryStore):
    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        stored = super().read(lock_id)
        if stored is not None and stored.lapsed:
            self.evict(lock_id)
            return None
        return stored


class RefusesBriefRecords(MemoryStore):
    def _put(self, lock_id: str, record: bytes, ttl_seconds: float) -> int:
        return super()._put(lock_id, record, ttl_seconds if ttl_seconds >= 1 else -GRACE_SECONDS)


class TakesLongTtlsForDates(MemoryStore):
    def _put(self, lock_id: str, record: bytes, ttl_seconds: float) -> int:
        return super()._put(lock_id, record, ttl_seconds if ttl_seconds < 1_000_000 else 0)


class KeepsForEver(MemoryStore):
    def _put(self, lock_id: str, record: bytes, ttl_seconds: float) -> int:
        return super()._put(lock_id, record, ttl_seconds if ttl_seconds >= 0.01 else 10**9)


class AppendRenewsTheTtl(MemoryStore):
    def append(self, lock_id: str, line: bytes) -> Stored | None:
        with self._mutex:
            entry = self._entry(lock_id)
            if entry is None:
                return None
            self._put(lock_id, entry.record + line, 1)
            return self._stored(self._entries[lock_id])


class SwapKeepsTheTtl(MemoryStore):
    def swap(self, lock_id: str, version: object, record: bytes, ttl_seconds: float) -> int | None:
        with self._mutex:
            entry = self._entry(lock_id)
            left = entry.lapses_at - self.clock.now() if entry else 0
        return super().swap(lock_id, version, record, left)


class RefusedCreateRenewsTheTtl(MemoryStore):
    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        with self._mutex:
            entry = self._entry(lock_id)
            if entry is not None:
                ends = self.clock.now() + ttl_seconds
                self._entries[lock_id] = entry._replace(lapses_at=ends)
        return super().create(lock_id, record, ttl_seconds)


class CreateTakesOverTheLapsed(MemoryStore):
    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        stored = self.read(lock_id)
        if stored is not None and stored.lapsed:
            self.evict(lock_id)
        return super().create(lock_id, record, ttl_seconds)


class LapsedCannotBeSwapped(MemoryStore):
    def swap(self, lock_id: str, version: object, record: bytes, ttl_seconds: float) -> int | None:
        stored = self.read(lock_id)
        if stored is None or stored.lapsed:
            return None
        return super().swap(lock_id, version, record, ttl_seconds)


class LapsedCannotBeRemoved(MemoryStore):
    def remove(self, lock_id: str, version: object) -> bool:
        stored = self.read(lock_id)
        return stored is not None and not stored.lapsed and super().remove(lock_id, version)


class LapsingSpendsTheVersion(MemoryStore):
    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        stored = super().read(lock_id)
        with self._mutex:
            entry = self._entry(lock_id)
            if entry is not None and self.clock.now() >= entry.lapses_at:
                self._entries[lock_id] = entry._replace(version=next(self._versions))
        return stored


class GraceIsShort(MemoryStore):
    def _put(self, lock_id: str, record: bytes, ttl_seconds: float) -> int:
        return super()._put(lock_id, record, ttl_seconds - GRACE_SECONDS / 2)

    def _stored(self, entry: object) -> Stored | None:
        stored = super()._stored(entry)  # type: ignore[arg-type]
        if stored is None:
            return None
        ends = entry.lapses_at + GRACE_SECONDS / 2  # type: ignore[attr-defined]
        return stored._replace(lapsed=self.clock.now() >= ends)


# --- the end ------------------------------------------------------------------------------------


class BreaksAfterClose(MemoryStore):
    def close(self) -> None:
        self._entries = None  # type: ignore[assignment]


class CloseOnlyOnce(MemoryStore):
    def close(self) -> None:
        del self._entries
