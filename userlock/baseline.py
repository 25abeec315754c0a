"""A baseline: the put sites that are known, in a file beside the code.

One site a line, sorted, so that branches merge; what follows a `#` is a
comment, and stays with its line, or with the line below it, when the file is
written again:

    # Put sites that are known not to be covered by their lock. (…)

    app/badges.py::award ReadWithoutLock Learner  # ticket 4711
    app/points.py::finish PutWithoutLock Learner

White space, `%` and `#` in a field are written as in URLs.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from userlock.errors import ConfigurationError
from userlock.sites import Site

#: What the commands and the tests' plugin take if no file is named.
DEFAULT_NAME = "userlock-baseline.txt"

_HEAD = (
    "# Put sites that are known not to be covered by their lock: where, the mistake, the kind.",
    "# Written by `pytest --userlock-baseline-write` or `userlock baseline write`. May be edited.",
)


class BaselineError(ConfigurationError):
    """A baseline file cannot be read."""


class Comparison(NamedTuple):
    """A comparison of the sites that were seen with a baseline.

    Attributes:
        new: seen, and not in it.
        stale: in it, and not seen.
    """

    new: list[Site]
    stale: list[Site]


@dataclasses.dataclass
class _Comments:
    """The note that people wrote about one site."""

    above: list[str]
    behind: str = ""

    def and_those_of(self, other: _Comments) -> _Comments:
        """Of a line that is there twice, as after a merge."""
        above = [*self.above, *(line for line in other.above if line not in self.above)]
        return _Comments(above, self.behind or other.behind)


class Baseline:
    """Known put sites, with what people wrote about them."""

    def __init__(self, sites: Iterable[Site] = ()) -> None:
        self._head = list(_HEAD)
        self._sites = {site: _Comments([]) for site in sites}

    def __contains__(self, site: object) -> bool:
        return site in self._sites

    def __iter__(self) -> Iterator[Site]:
        return iter(sorted(self._sites))

    def __len__(self) -> int:
        return len(self._sites)

    def compare(self, seen: Iterable[Site]) -> Comparison:
        """Return the new and the stale sites, both sorted."""
        seen = set(seen)
        return Comparison(
            sorted(seen.difference(self._sites)), sorted(set(self._sites).difference(seen))
        )

    def updated(self, seen: Iterable[Site], *, keep: bool) -> Baseline:
        """Return a baseline of what was seen.

        Args:
            seen: put sites.
            keep: whether those that were not seen stay as well.
        """
        new = Baseline(seen)
        new._head = self._head
        for site, comments in self._sites.items():
            if keep or site in new:
                new._sites[site] = comments
        return new

    # --- as a file --------------------------------------------------------------------------

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Return the baseline in a file.

        Raises:
            FileNotFoundError: there is no such file.
            BaselineError: what is in it is no baseline; says which line.
        """
        try:
            text = path.read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise BaselineError(f"{path} cannot be read: {error.strerror or error}") from error
        try:
            return cls.parse(text)
        except ValueError as error:
            raise BaselineError(f"{path}, {error}") from error

    @classmethod
    def parse(cls, text: str) -> Baseline:
        """Return the baseline in a text.

        Raises:
            ValueError: a line names no put site; says which one.
        """
        baseline = cls()
        baseline._head = []
        above: list[str] = []
        for number, line in enumerate(text.split("\n"), 1):
            fields, mark, comment = line.partition("#")
            if not fields.strip():
                if mark:
                    above.append(line.strip())
                else:  # an empty line: what stands above it belongs to no site
                    baseline._head += above
                    above = []
                continue
            try:
                site = Site.parse(fields)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
            comments = _Comments(above, f"# {comment.strip()}" if mark else "")
            known = baseline._sites.get(site)
            baseline._sites[site] = comments if known is None else known.and_those_of(comments)
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

    def write(self, path: Path) -> None:
        """Replace the file as a whole, so that nobody ever reads half of it.

        Raises:
            OSError: it cannot be written; the file is as it was.
        """
        write_whole(path, self.format())


def write_whole(path: Path, text: str) -> None:
    """Replace a file's text, or leave it as it was.

    Raises:
        OSError: it cannot be written.
    """
    with tempfile.NamedTemporaryFile(
        "w",
        dir=path.parent,
        prefix=f".{path.name}.",
        delete=False,
        encoding="utf-8",
        errors="surrogateescape",
    ) as file:
        temporary = Path(file.name)
        try:
            file.write(text)
            file.close()
            temporary.chmod(_mode(path))
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _mode(path: Path) -> int:
    """Return the permissions that the file has, or would be made with."""
    try:
        return path.stat().st_mode & 0o7777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
