"""Put sites, under names that stay when lines move.

A site is a put (or a delete) that its lock does not cover: the function that it
stands in, what is wrong, and the kind of entity.

    app/points.py::finish PutWithoutLock Learner

Where the entity was read is told beside it, but is no part of the name: a cache
may have answered, and then it is wherever somebody filled that.

Files are named from the project's folder, so that a site is the same on a
laptop, in CI and, read from a log, in production.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol, runtime_checkable
from urllib.parse import quote, unquote

from userlock.errors import LeaseRanOut, LeaseWasLost, WriteViolation

#: The key under which log records and reports carry the facts of a site.
FACTS_KEY = "userlock_site"

#: Not mistakes of a place in the code, but things that happen to it: no baseline has them.
_ACCIDENTS = {LeaseRanOut.__name__, LeaseWasLost.__name__}
_UNKNOWN = "?"
_LIBRARIES = ("site-packages", "dist-packages")
#: Part of the function's name up to Python 3.11, and not from 3.12 on.
_COMPREHENSION = re.compile(r"(\.<locals>)?\.?<(list|set|dict)comp>")
#: What would break a line into other fields than were written, or make a comment of it.
_UNSAFE = re.compile(r"[\s%#\x00-\x1f\x7f]")


@runtime_checkable
class Located(Protocol):
    """A line of code, as violations carry it."""

    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def function(self) -> str: ...


class Site(NamedTuple):
    """One put site. As a string: its line in a baseline file.

    Attributes:
        put: file and function of the put or delete, `app/points.py::finish`.
        violation: the name of the error class.
        kind: the kind of the entity.
    """

    put: str
    violation: str
    kind: str

    def __str__(self) -> str:
        return " ".join(_escape(field) for field in self)

    @property
    def is_mistake(self) -> bool:
        """Return whether the code causes the violation. A lease that ends early does not count."""
        return self.violation not in _ACCIDENTS

    @classmethod
    def parse(cls, line: str) -> Site:
        """Return the site that a line names.

        Raises:
            ValueError: it names none.
        """
        fields = [unquote(field, errors="surrogateescape") for field in line.split()]
        if len(fields) != 3 or "::" not in fields[0]:
            raise ValueError(
                f"{line!r:.200} names no put site: expected FILE::FUNCTION VIOLATION KIND"
            )
        return cls(*fields)


def _escape(field: str) -> str:
    return _UNSAFE.sub(lambda m: quote(m[0], safe="", errors="surrogateescape"), field)


def facts_of(violation: WriteViolation) -> dict[str, Any]:
    """Return the facts about a violation's site for a log record, ready for JSON.

    `violation`, `kind`, and `put` and `read`, each with `file`, `line` and
    `function`, or None.
    """
    return {
        "violation": type(violation).__name__,
        "kind": violation.kind,
        "put": _place(violation.put_at),
        "read": _place(violation.read_at),
    }


def _place(at: object) -> dict[str, Any] | None:
    if not isinstance(at, Located):
        return None
    return {"file": at.file, "line": at.line, "function": at.function}


class Project:
    """Names files from the project's folder.

    Args:
        root: the project's folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names: dict[str, str] = {}

    def site_of(self, facts: object) -> Site:
        """Return the site that a violation's facts are about.

        Raises:
            ValueError: these are no such facts.
        """
        if not isinstance(facts, dict):
            raise ValueError(f"no facts of a put site: {facts!r:.200}")
        violation, kind = facts.get("violation"), facts.get("kind")
        if not (isinstance(violation, str) and violation and isinstance(kind, str) and kind):
            raise ValueError(f"no facts of a put site: {facts!r:.200}")
        return Site(self._spot(facts.get("put")), violation, kind)

    def _spot(self, place: object) -> str:
        if place is None:
            return f"{_UNKNOWN}::{_UNKNOWN}"
        if not isinstance(place, dict):
            raise ValueError(f"no place in the code: {place!r:.200}")
        file, function = place.get("file"), place.get("function")
        if not (isinstance(file, str) and file and isinstance(function, str) and function):
            raise ValueError(f"no place in the code: {place!r:.200}")
        return f"{self.name_of(file)}::{_COMPREHENSION.sub('', function) or '<module>'}"

    def name_of(self, file: str) -> str:
        """Return the name of a file in this project."""
        name = self._names.get(file)
        if name is None:
            name = self._names[file] = self._name_of(file)
        return name

    def _name_of(self, file: str) -> str:
        """Return the file's name from the root.

        A file that lies elsewhere may be the project's all the same, as it was
        deployed: `/srv/app/points.py` is `app/points.py` if the project has
        one; what was installed may come from `src`.
        """
        path = PurePosixPath(file)
        if not path.is_absolute():
            return file
        parts = path.parts[1:]
        libraries = [index for index, part in enumerate(parts) if part in _LIBRARIES]
        if not libraries and path.is_relative_to(self.root):
            return str(path.relative_to(self.root))
        first = libraries[-1] + 1 if libraries else 0
        for start in range(first, len(parts)):
            for base in ("", "src"):
                name = str(PurePosixPath(base, *parts[start:]))
                if (self.root / name).is_file():
                    return name
        return str(PurePosixPath(*parts[first - 1 :])) if libraries else file
