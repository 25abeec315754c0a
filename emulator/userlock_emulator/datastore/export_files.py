"""The files of an export, as the service and Google's emulators write them.

    NAME/NAME.overall_export_metadata              a log: a version, the parts
    NAME/all_namespaces/all_kinds/
        all_namespaces_all_kinds.export_metadata   a message: the output files
        output-0                                   a log: an EntityProto per record

An export of some kinds or namespaces has a part for each. The overall file is written last. The
messages of the metadata are not documented; their fields are those that Google's emulators write.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from google.protobuf.message import DecodeError

from userlock_emulator.datastore import legacy_messages
from userlock_emulator.datastore.errors import Code, DatastoreError, invalid
from userlock_emulator.datastore.log_files import LogFileError, LogWriter, records
from userlock_emulator.private_files import create_file, make_folder, make_new_folder
from userlock_emulator.regular_files import open_regular, read_regular

OVERALL = ".overall_export_metadata"
_PART = ".export_metadata"
_VERSION = b"3"
_ALL_KINDS, _SOME_KINDS, _ALL_NAMESPACES, _SOME_NAMESPACES = 2, 1, 3, 1

#: The messages of metadata files.
MESSAGES = legacy_messages.classes(
    "userlock_emulator.export",
    {
        "Scope": {"kinds": (1, "int32"), "namespaces": (3, "int32")},
        "Part": {
            "scope": (1, "Scope"),
            "path": (2, "string"),
            "entities": (3, "int64"),
            "bytes": (4, "int64"),
        },
        "Overall": {"part": (1, "repeated Part")},
        "Head": {"name": (1, "string"), "begun": (2, "int64"), "ended": (3, "int64")},
        "Output": {"shard": (1, "string"), "file": (2, "string")},
        "Files": {"head": (1, "Head"), "output": (2, "repeated Output")},
    },
)


class Part(NamedTuple):
    """A part of an export: one kind or all, one namespace or all (None)."""

    kind: str | None
    namespace: str | None

    @property
    def folders(self) -> tuple[str, str]:
        kind = "all_kinds" if self.kind is None else f"kind_{quote(self.kind, safe=' ')}"
        if self.namespace is None:
            return "all_namespaces", kind
        return f"namespace_{quote(self.namespace, safe=' ')}", kind


class ExportWriter:
    """The writer of one export.

    Args:
        folder: a new folder, named as the export. It is created.
        begun: the time of the data, in microseconds.

    Raises:
        DatastoreError: ALREADY_EXISTS; FAILED_PRECONDITION if it cannot be created.
    """

    def __init__(self, folder: Path, begun: int) -> None:
        self._folder = folder
        self._begun = begun
        self._overall = MESSAGES["Overall"]()
        try:
            make_folder(folder.parent)
            if not make_new_folder(folder):
                raise DatastoreError(Code.ALREADY_EXISTS, f"{folder} exists")
        except OSError as error:
            raise _unwritable(folder, error) from None

    def write(self, part: Part, entities: Iterator[bytes], now: Callable[[], int]) -> None:
        """Write a part."""
        outer, inner = part.folders
        folder = self._folder / outer / inner
        count = 0
        try:
            make_folder(folder)
            create_file(folder / "output-0")
            with (folder / "output-0").open("wb") as file:
                log = LogWriter(file)
                for entity in entities:
                    log.write(entity)
                    count += 1
            files = MESSAGES["Files"]()
            files.head.name, files.head.begun = self._folder.name, self._begun
            files.head.ended = now()
            files.output.add(shard="", file="output-0")
            name = f"{outer}_{inner}{_PART}"
            create_file(folder / name)
            (folder / name).write_bytes(files.SerializeToString())
        except OSError as error:
            raise _unwritable(folder, error) from None
        listed = self._overall.part.add(
            path=f"{outer}/{inner}/{name}", entities=count, bytes=log.size
        )
        listed.scope.kinds = _ALL_KINDS if part.kind is None else _SOME_KINDS
        listed.scope.namespaces = _ALL_NAMESPACES if part.namespace is None else _SOME_NAMESPACES

    def finish(self) -> Path:
        """Write the file that makes it an export, and return its path."""
        path = self._folder / f"{self._folder.name}{OVERALL}"
        try:
            create_file(path)
            with path.open("wb") as file:
                log = LogWriter(file)
                log.write(_VERSION)
                log.write(self._overall.SerializeToString())
        except OSError as error:
            raise _unwritable(path, error) from None
        return path


def outputs(overall: Path) -> list[Path]:
    """Return the files with the entities of an export.

    Raises:
        DatastoreError: NOT_FOUND; INVALID_ARGUMENT if it is no export.
    """
    if overall.is_dir():
        found = [*overall.glob(f"*{OVERALL}"), *overall.glob(f"*/*{OVERALL}")]
        if len(found) != 1:
            raise invalid(f"{overall} holds {len(found)} exports; name one {OVERALL} file")
        (overall,) = found
    parts = _parts(overall)
    root = overall.parent.resolve()
    files = []
    for part in parts:
        path = _inside(root, overall, part.path)
        try:
            listed = _parsed("Files", read_regular(path), path)
        except OSError as error:
            raise _unreadable(path, error) from None
        files += [_inside(root, path, f"{path.parent}/{each.file}") for each in listed.output]
    return files


def _parts(overall: Path) -> Sequence[Any]:
    found = list(read(overall))
    if len(found) < 2 or not overall.name.endswith(OVERALL):
        raise invalid(f"{overall} is not the {OVERALL} file of an export")
    parts = [part for each in found[1:] for part in _parsed("Overall", each, overall).part]
    if not parts:
        raise invalid(f"{overall} names no parts")
    return parts


def read(path: Path) -> Iterator[bytes]:
    """Yield the records of a file.

    Raises:
        DatastoreError: NOT_FOUND; INVALID_ARGUMENT with the position of the damage.
    """
    try:
        with open_regular(path) as file:
            yield from records(file)
    except LogFileError as error:
        raise invalid(f"{path}: {error}") from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _parsed(name: str, data: bytes, path: Path) -> Any:
    try:
        return MESSAGES[name].FromString(data)
    except DecodeError as error:
        raise invalid(f"{path} is not the metadata of an export: {error}") from None


def _inside(root: Path, source: Path, name: str) -> Path:
    """Return a file that an export names, which has to be in its folder."""
    path = (root / name).resolve()
    if not path.is_relative_to(root):
        raise invalid(f"{source} names a file outside of the export: {name}")
    return path


def _unreadable(path: Path, error: OSError) -> DatastoreError:
    code = Code.NOT_FOUND if isinstance(error, FileNotFoundError) else Code.FAILED_PRECONDITION
    return DatastoreError(code, f"cannot read {path}: {error.strerror}")


def _unwritable(path: Path, error: OSError) -> DatastoreError:
    return DatastoreError(Code.FAILED_PRECONDITION, f"cannot write {path}: {error.strerror}")
