"""An export: a folder with a file of JSON lines per kind.

FOLDER/export.json                              {"format": 1, "entities": 12}
FOLDER/PROJECT/(default)/(default)/Task.jsonl   database and namespace between

Only the owner can read it.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

from userlock_emulator.private_files import make_folder, opener
from userlock_emulator.regular_files import open_regular, read_regular

FORMAT = 1
_ABOUT = "export.json"
_DEFAULT = "(default)"
# File systems allow 255 bytes.
_MAX_NAME = 200


class DumpError(Exception):
    """The folder cannot be written or read. The text is one line."""


def write(lines: Iterable[bytes], folder: Path) -> int:
    """Write an export and return the number of its entities.

    The export appears as a whole or not at all: it is written next to its final place, then
    renamed.

    Raises:
        DumpError: the folder is not empty, or cannot be written.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DumpError(f"{folder} exists and is not empty")
        make_folder(folder.absolute().parent)
        beside = Path(tempfile.mkdtemp(prefix=".export-", dir=folder.absolute().parent))
        try:
            count = _write_lines(lines, beside)
            about = {"format": FORMAT, "entities": count}
            with open(beside / _ABOUT, "w", opener=opener) as file:
                file.write(json.dumps(about) + "\n")
            beside.rename(folder)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
    except OSError as error:
        raise DumpError(f"cannot write {folder}: {error}") from None
    return count


def _write_lines(lines: Iterable[bytes], folder: Path) -> int:
    count = 0
    for line in lines:
        key = json.loads(line)["key"]
        partition = key["partitionId"]
        place = folder.joinpath(
            _named(partition["projectId"]),
            _named(partition.get("databaseId", _DEFAULT)),
            _named(partition.get("namespaceId", _DEFAULT)),
        )
        make_folder(place)
        name = f"{_named(key['path'][-1]['kind'])}.jsonl"
        with open(place / name, "ab", opener=opener) as file:
            file.write(line)
        count += 1
    return count


def _named(name: str) -> str:
    """Return a unique file name for any name, neither a path nor too long."""
    quoted = quote(name, safe=" ()~:@").replace("..", "%2E%2E")
    if len(quoted) <= _MAX_NAME:
        return "%2E" if quoted == "." else quoted
    return f"{quoted[:100]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def read(folder: Path) -> Iterator[bytes]:
    """Yield the lines of all files in a folder, exported or written by hand.

    Raises:
        DumpError: the folder cannot be read, has no files, or is from a newer version.
    """
    try:
        about = folder / _ABOUT
        if about.exists():
            _check(about)
        files = sorted(folder.rglob("*.jsonl"))
        if not files and not about.exists():
            raise DumpError(f"{folder} has no export: neither {_ABOUT} nor *.jsonl")
        for path in files:
            with open_regular(path) as file:
                yield from file
    except OSError as error:
        raise DumpError(f"cannot read {folder}: {error}") from None


def _check(about: Path) -> None:
    try:
        written = int(json.loads(read_regular(about))["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise DumpError(f"{about} is not part of an export: {error!r}") from None
    if written > FORMAT:
        raise DumpError(
            f"{about} is from a newer version of the emulator (format {written}, this one "
            f"reads up to {FORMAT})"
        )
