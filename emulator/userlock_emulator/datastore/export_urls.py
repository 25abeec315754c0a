"""The places of exports: folders, and buckets as folders."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from userlock_emulator.datastore.errors import Code, DatastoreError, invalid

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


class ExportPlaces:
    """The folders in which exports may be.

    Args:
        folder: `gs://BUCKET/PATH` is BUCKET/PATH in it, and no other folder is used. None: folders
            are used as they are named, and there are no buckets.
        anywhere: without `folder`, whether folders may be named at all: not by other machines.
    """

    def __init__(self, folder: Path | None, *, anywhere: bool) -> None:
        self._folder = None if folder is None else folder.resolve()
        self._anywhere = anywhere

    def find(self, url: str) -> Path:
        """Return the path of a URL.

        Raises:
            DatastoreError: INVALID_ARGUMENT or FAILED_PRECONDITION: it cannot be used.
        """
        scheme, host, path, query, fragment = urlsplit(url)
        if query or fragment or "\x00" in url:
            raise invalid(f"{url!r:.200} is not the place of an export")
        if scheme == "gs":
            return self._in_bucket(url, host, path.lstrip("/"))
        if scheme not in ("", "file") or host or not path.startswith("/"):
            raise invalid(
                f"{url!r:.200} is not the place of an export: gs://BUCKET/PATH, or the absolute "
                "path of a folder on this machine"
            )
        found = Path(unquote(path) if scheme else path).resolve()
        if self._folder is not None:
            if not found.is_relative_to(self._folder):
                raise invalid(f"{url!r:.200} is outside of the folder of exports")
        elif not self._anywhere:
            raise DatastoreError(
                Code.FAILED_PRECONDITION,
                "other machines can reach this emulator: start it with --exports FOLDER",
            )
        return found

    def _in_bucket(self, url: str, bucket: str, path: str) -> Path:
        if not _BUCKET.fullmatch(bucket):
            raise invalid(f"{url!r:.200}: the bucket is missing or malformed")
        if self._folder is None:
            raise DatastoreError(
                Code.FAILED_PRECONDITION,
                f"{url!r:.200}: start the emulator with --exports FOLDER, in which buckets are "
                "folders",
            )
        root = self._folder / bucket
        found = (root / path).resolve()
        if not found.is_relative_to(root):
            raise invalid(f"{url!r:.200} is outside of its bucket")
        return found
