"""The policy for queries whose composite index is not defined."""

import threading
from pathlib import Path
from types import ModuleType

from userlock_emulator.datastore.composite import CompositeIndex, requirements
from userlock_emulator.datastore.errors import Code, DatastoreError, StorageError
from userlock_emulator.datastore.query import ParsedQuery

OFF, ENFORCED, AUTO = "off", "enforced", "auto"
MODES = (OFF, ENFORCED, AUTO)


class IndexPolicy:
    """A policy for composite indexes: off, enforced, or added to the file as needed.

    Thread-safe. A changed file is read again.

    Args:
        mode: "off" (no index is needed), "enforced" (a query without its index is refused, as by
            the service) or "auto" (its index is added to the file).
        path: the index.yaml; needed unless `mode` is "off".

    Raises:
        StorageError: the path is missing, or the file cannot be used.
        ValueError: the mode is unknown.
    """

    def __init__(self, mode: str = OFF, path: Path | None = None) -> None:
        if mode not in MODES:
            raise ValueError(f"unknown mode of indexes {mode!r}; available: {', '.join(MODES)}")
        if mode != OFF and path is None:
            raise StorageError(f"the mode of indexes {mode!r} needs an index file")
        self._mode = mode
        self._path = path
        self._lock = threading.Lock()
        self._defined: list[CompositeIndex] = []
        # Those that a client has created, which last as long as the emulator.
        self._created: set[CompositeIndex] = set()
        self._stamp: tuple[int, int] | None = None
        if mode == ENFORCED or (mode == AUTO and path is not None and path.exists()):
            self._read()

    @property
    def mode(self) -> str:
        """Return the mode."""
        return self._mode

    def require(self, query: ParsedQuery) -> None:
        """Refuse a query without its indexes, or add them to the file.

        Raises:
            DatastoreError: FAILED_PRECONDITION with the recommended index, or the file's error.
        """
        if self._mode == OFF or query.on_metadata:
            return
        with self._lock:
            try:
                missing = self._undefined(query)
                if missing and self._mode == AUTO:
                    assert self._path is not None
                    _files().add(self._path, missing)
                    self._read()
                    return
            except StorageError as error:
                raise DatastoreError(Code.FAILED_PRECONDITION, str(error)) from None
        if missing:
            raise DatastoreError(
                Code.FAILED_PRECONDITION,
                f"no matching index found. recommended index is:\n{missing[0]}\n",
            )

    def defined(self) -> list[CompositeIndex]:
        """Return the indexes of the file, and those that were created.

        Raises:
            DatastoreError: FAILED_PRECONDITION: the file cannot be used.
        """
        with self._lock:
            return sorted({*self._current(), *self._created})

    def create(self, index: CompositeIndex) -> None:
        """Define an index, beside those of the file.

        Raises:
            DatastoreError: ALREADY_EXISTS; FAILED_PRECONDITION: the file cannot be used.
        """
        with self._lock:
            if index in self._created or index in self._current():
                raise DatastoreError(Code.ALREADY_EXISTS, "index already exists")
            self._created.add(index)

    def delete(self, index: CompositeIndex) -> None:
        """Remove an index that was created.

        Raises:
            DatastoreError: FAILED_PRECONDITION: it is in the file, which is the developer's.
        """
        with self._lock:
            if index not in self._created:
                raise DatastoreError(
                    Code.FAILED_PRECONDITION,
                    f"The index is defined in {self._path}: remove it there.",
                )
            self._created.discard(index)

    def _current(self) -> list[CompositeIndex]:
        """Return the indexes of the file as it is now."""
        if self._path is not None and self._is_changed() and self._path.exists():
            try:
                self._read()
            except StorageError as error:
                raise DatastoreError(Code.FAILED_PRECONDITION, str(error)) from None
        return self._defined

    def _undefined(self, query: ParsedQuery) -> list[CompositeIndex]:
        """Return the indexes that a query needs and the current file does not define."""
        missing = self._missing(query)
        if missing and self._is_changed():
            self._read()
            missing = self._missing(query)
        return missing

    def _missing(self, query: ParsedQuery) -> list[CompositeIndex]:
        return [
            requirement.composite
            for requirement in requirements(query)
            if requirement.composite is not None
            and not requirement.met_by({*self._defined, *self._created})
        ]

    def _is_changed(self) -> bool:
        return self._stamp != self._current_stamp()

    def _current_stamp(self) -> tuple[int, int] | None:
        """Return a value that changes with the content of the file."""
        assert self._path is not None
        try:
            status = self._path.stat()
        except OSError:
            return None
        return (status.st_mtime_ns, status.st_ino)

    def _read(self) -> None:
        assert self._path is not None
        stamp = self._current_stamp()
        self._defined = _files().read(self._path)
        self._stamp = stamp


def _files() -> ModuleType:
    # PyYAML takes 15 ms to import. A start without an index file need not pay for it.
    from userlock_emulator.datastore import index_file

    return index_file
