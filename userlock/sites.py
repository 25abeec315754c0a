"""Name put sites, and keep the baseline file of known ones.

A put site is a function whose puts (or deletes) its lock does not cover. Its name tells the
function, the violation and the kind of entity:

    app/points.py::finish PutWithoutLock Learner

The name stays the same when lines move. The call site of the read is no part of it: if the entity
came from a cache, that is only the code that filled the cache. Files are named from the project's
folder, so that a site has one name on a laptop, in CI and in a production log.

A baseline has one site per line, sorted, so that branches merge. Text after a `#` is a comment,
which stays with its line, or with the line below it, when the file is rewritten:

    # Put sites that are known not to be covered by their lock. (…)

    app/badges.py::award ReadWithoutLock Learner  # ticket 4711
    app/points.py::finish PutWithoutLock Learner

White space, `%` and `#` in a field are written as in URLs.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from userlock.callsite import CallSite
from userlock.errors import ConfigurationError, LeaseRanOut, LeaseWasLost, WriteViolation
from userlock.words import counted

#: The key under which log records and reports carry the facts of a site.
FACTS_KEY = "userlock_site"
#: The baseline of the commands and the pytest plugin if none is named.
DEFAULT_NAME = "userlock-baseline.txt"

_HEAD = (
    "# Put sites that are known not to be covered by their lock: where, the mistake, the kind.",
    "# Written by `pytest --userlock-baseline-write` or `userlock baseline write`. May be edited.",
)
#: Violations that the code does not cause. They are in no baseline.
_ACCIDENTS = {LeaseRanOut.__name__, LeaseWasLost.__name__}
_LIBRARIES = ("site-packages", "dist-packages")
#: Part of a function's name up to Python 3.11, and not from 3.12 on.
_COMPREHENSION = re.compile(r"(\.<locals>)?\.?<(list|set|dict)comp>")
#: Characters that would split a field, or begin a comment.
_UNSAFE = re.compile(r"[\s%#\x00-\x1f\x7f]")


# --- names --------------------------------------------------------------------------------------


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
        return " ".join(
            _UNSAFE.sub(lambda m: quote(m[0], safe="", errors="surrogateescape"), field)
            for field in self
        )

    @property
    def is_mistake(self) -> bool:
        """Return whether the code causes the violation. A lease that ends early does not count."""
        return self.violation not in _ACCIDENTS

    @classmethod
    def parse(cls, line: str) -> Site:
        """Return the site that a line names; `ValueError` if it names none."""
        fields = [unquote(field, errors="surrogateescape") for field in line.split()]
        if len(fields) != 3 or "::" not in fields[0]:
            raise ValueError(
                f"{line!r:.200} names no put site: expected FILE::FUNCTION VIOLATION KIND"
            )
        return cls(*fields)


@dataclasses.dataclass
class Sighting:
    """The violations of one put site in logs, in reports or in a test run.

    Attributes:
        facts: the facts of one violation.
        times: the number of violations.
        test: the test that had the first one, if any.
    """

    facts: dict[str, Any]
    times: int = 0
    test: str = ""


def facts_of(violation: WriteViolation) -> dict[str, Any]:
    """Return the facts about a violation's site for a log record, ready for JSON.

    `violation`, `kind`, and `put` and `read`, each with `file`, `line` and `function`, or None.
    """
    put, read = (
        at._asdict() if isinstance(at, CallSite) else None
        for at in (violation.put_at, violation.read_at)
    )
    return {"violation": type(violation).__name__, "kind": violation.kind, "put": put, "read": read}


class Project:
    """Names files from the project's folder, its root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        #: Returns the name of a file in this project.
        self.name_of = functools.cache(self._name_of)

    def site_of(self, facts: object) -> Site:
        """Return the site that facts from a log or report describe; `ValueError` if they do not."""
        match facts:
            case {"violation": str(violation), "kind": str(kind), **more} if violation and kind:
                return Site(self._function(more.get("put")), violation, kind)
        raise ValueError(f"no facts of a put site: {facts!r:.200}")

    def _function(self, place: object) -> str:
        match place:
            case None:
                return "?::?"
            case {"file": str(file), "function": str(function)} if file and function:
                return f"{self.name_of(file)}::{_COMPREHENSION.sub('', function) or '<module>'}"
        raise ValueError(f"no place in the code: {place!r:.200}")

    def _name_of(self, file: str) -> str:
        """Return the file's name from the root.

        A file elsewhere may be the project's file in a deployment: `/srv/app/points.py` is
        `app/points.py` if the project has that file. An installed file may come from `src`.
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


# --- the baseline -------------------------------------------------------------------------------


class BaselineError(ConfigurationError):
    """A baseline file cannot be read."""


class Comparison(NamedTuple):
    """A comparison of the sites that were seen with a baseline.

    Attributes:
        new: sites that were seen and are not in the baseline.
        stale: sites in the baseline that were not seen.
    """

    new: list[Site]
    stale: list[Site]


class Update(NamedTuple):
    """The changes to a baseline file.

    Attributes:
        known: the number of sites in the new file.
        added: sites that the old file did not have.
        removed: sites that only the old file had.
    """

    known: int
    added: list[Site]
    removed: list[Site]

    def lines(self, path: str) -> list[str]:
        """Return the changes in lines for people."""
        return [
            *(f"+ {site}" for site in self.added),
            *(f"- {site}" for site in self.removed),
            f"{path}: {counted(self.known, 'put site')}; {len(self.added)} added, "
            f"{len(self.removed)} removed",
        ]


@dataclasses.dataclass
class _Comments:
    """The comments on one site."""

    above: list[str] = dataclasses.field(default_factory=list)
    behind: str = ""


class Baseline:
    """Known put sites, with their comments."""

    def __init__(self, sites: Iterable[Site] = ()) -> None:
        self._head = list(_HEAD)
        self._sites = {site: _Comments() for site in sites}

    def __contains__(self, site: object) -> bool:
        return site in self._sites

    def __iter__(self) -> Iterator[Site]:
        return iter(sorted(self._sites))

    def __len__(self) -> int:
        return len(self._sites)

    def compare(self, seen: Iterable[Site]) -> Comparison:
        """Return the new and the stale sites, both sorted."""
        seen = set(seen)
        return Comparison(sorted(seen - self._sites.keys()), sorted(self._sites.keys() - seen))

    def updated(self, seen: Iterable[Site], *, keep: bool) -> Baseline:
        """Return a baseline of the sites that were seen; with `keep`, also of those known."""
        new = Baseline(seen)
        new._head = self._head
        new._sites |= {site: self._sites[site] for site in self._sites if keep or site in new}
        return new

    def rewrite(self, path: Path, seen: Iterable[Site], *, keep: bool) -> Update:
        """Write the updated baseline to a file.

        Raises:
            OSError: the file cannot be written. It is unchanged.
        """
        new = self.updated(seen, keep=keep)
        write_whole(path, new.format())
        return Update(len(new), *self.compare(new))

    @classmethod
    def read(cls, path: Path, *, missing_ok: bool = False) -> Baseline:
        """Return the baseline in a file. A missing file may count as an empty baseline.

        Raises:
            BaselineError: there is no such file, or it is no baseline. Names the line.
        """
        try:
            return cls.parse(path.read_text(encoding="utf-8", errors="surrogateescape"))
        except FileNotFoundError:
            if missing_ok:
                return cls()
            raise BaselineError(
                f"there is no baseline {path}. To fix it: name another file, or create this one "
                "with `userlock baseline write` or `pytest --userlock-baseline-write`"
            ) from None
        except OSError as error:
            raise BaselineError(f"{path} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise BaselineError(f"{path}, {error}") from error

    @classmethod
    def parse(cls, text: str) -> Baseline:
        """Return the baseline in a text; `ValueError` names a line that names no put site."""
        baseline = cls()
        baseline._head = []
        above: list[str] = []
        for number, line in enumerate(text.split("\n"), 1):
            fields, hash_sign, comment = line.partition("#")
            if fields.strip():
                try:
                    site = Site.parse(fields)
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from error
                # After a merge there may be two lines of a site.
                comments = baseline._sites.setdefault(site, _Comments())
                comments.above += [each for each in above if each not in comments.above]
                if hash_sign and not comments.behind:
                    comments.behind = f"# {comment.strip()}"
                above = []
            elif hash_sign:
                above.append(line.strip())
            else:  # an empty line: the comments above it belong to no site
                baseline._head += above
                above = []
        baseline._head += above
        return baseline

    def format(self) -> str:
        """Return the text of the file. Empty for a baseline without sites or comments."""
        lines = [*self._head, ""] if self._head else []
        for line, site in sorted((str(site), site) for site in self._sites):
            comments = self._sites[site]
            lines += comments.above
            lines.append(f"{line}  {comments.behind}" if comments.behind else line)
        return "\n".join([*lines, ""])


def write_whole(path: Path, text: str) -> None:
    """Replace a file's text at once, so that nobody reads half of it.

    Raises:
        OSError: the file cannot be written. It is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
