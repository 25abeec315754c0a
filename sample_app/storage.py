"""Files of the studio: on the disk for `make run`, in a bucket in production.

A file is written once, under a new name, and never changed. To delete one that is gone is no error.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import tempfile
import uuid
from pathlib import Path
from typing import Any, Protocol

from google.api_core.exceptions import NotFound

#: Names of files. No other text becomes part of a path.
_NAME = re.compile(r"[0-9a-f]{32}")


class Storage(Protocol):
    """Keeps files by name."""

    def write(self, name: str, data: bytes, content_type: str) -> None:
        """Store a file for good: it survives the process as soon as this returns."""

    def read(self, name: str) -> bytes | None:
        """Return a file; None if there is none."""

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""


def new_name() -> str:
    """Return a name that no other file has."""
    return uuid.uuid4().hex


class FolderStorage:
    """Files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, data: bytes, content_type: str) -> None:
        path = self._path(name)
        self._folder.mkdir(parents=True, exist_ok=True)
        # Nobody sees half a file, whatever happens here.
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink()
                raise

    def read(self, name: str) -> bytes | None:
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            return None

    def delete(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / _checked(name)


class BucketStorage:
    """Files in a bucket of Google Cloud Storage. Needs `pip install google-cloud-storage`.

    Args:
        bucket: a `google.cloud.storage.Bucket`.
    """

    def __init__(self, bucket: Any) -> None:
        self._bucket = bucket

    @classmethod
    def named(cls, name: str) -> BucketStorage:
        """Return the storage in the bucket of that name, with the default credentials."""
        storage = importlib.import_module("google.cloud.storage")
        return cls(storage.Client().bucket(name))

    def write(self, name: str, data: bytes, content_type: str) -> None:
        self._bucket.blob(_checked(name)).upload_from_string(data, content_type=content_type)

    def read(self, name: str) -> bytes | None:
        blob = self._bucket.get_blob(_checked(name))
        return None if blob is None else bytes(blob.download_as_bytes())

    def delete(self, name: str) -> None:
        with contextlib.suppress(NotFound):
            self._bucket.blob(_checked(name)).delete()


def open_storage(place: str) -> Storage:
    """Return the storage of a setting: `gs://BUCKET`, or a folder."""
    if place.startswith("gs://"):
        return BucketStorage.named(place.removeprefix("gs://").strip("/"))
    return FolderStorage(Path(place))


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r:.80} is no name of a file")
    return name
