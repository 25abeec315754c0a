"""Asking a running emulator, over HTTP, for what is no RPC."""

import http.client
import json
from collections.abc import Iterable, Iterator

# A request may have 16 MiB; nobody else is served while one is stored.
_BYTES_AT_ONCE = 4 * 2**20
# A reset or an import waits for the commit under way.
_TIMEOUT_SECONDS = 60


class RemoteError(Exception):
    """No emulator answers there, or it refuses. The text is one line."""


class Remote:
    """A running emulator.

    Args:
        host: "HOST:PORT", as in DATASTORE_EMULATOR_HOST; "http://" may stand before it, as
            some clients want it.
    """

    def __init__(self, host: str) -> None:
        self._host = host.removeprefix("http://").rstrip("/")

    def reset(self) -> None:
        """Forget everything: see `Emulator.reset`.

        Raises:
            RemoteError: it could not be asked.
        """
        for _ in self._ask("POST", "/reset"):
            pass

    def export(self) -> Iterator[bytes]:
        """All entities as of now, a line of JSON each.

        Raises:
            RemoteError: it could not be asked, or has gone in the middle of it.
        """
        return self._ask("GET", "/export")

    def load(self, lines: Iterable[bytes]) -> int:
        """Store entities, many at once; returns how many.

        Raises:
            RemoteError: it could not be asked, or a line is no entity. The lines
                before may have been stored.
        """
        return sum(
            int(json.loads(line)["entities"])
            for body in _batches(lines)
            for line in self._ask("POST", "/import", body)
        )

    def _ask(self, method: str, path: str, body: bytes = b"") -> Iterator[bytes]:
        """The lines of the answer."""
        try:
            connection = http.client.HTTPConnection(self._host, timeout=_TIMEOUT_SECONDS)
        except http.client.InvalidURL as error:
            raise RemoteError(f"not HOST:PORT: {self._host!r} ({error})") from None
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise RemoteError(_reason(response.read()))
            yield from response
        except (OSError, http.client.HTTPException) as error:
            raise RemoteError(f"no emulator answers at {self._host}: {error}") from None
        finally:
            connection.close()


def _batches(lines: Iterable[bytes]) -> Iterator[bytes]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        if batch and size + len(line) > _BYTES_AT_ONCE:
            yield b"".join(batch)
            batch, size = [], 0
        batch.append(line if line.endswith(b"\n") else line + b"\n")
        size += len(line)
    if batch:
        yield b"".join(batch)


def _reason(body: bytes) -> str:
    try:
        return " ".join(str(json.loads(body)["error"]).split())
    except (ValueError, KeyError, TypeError):
        return f"this is not an emulator: it replied {body[:100]!r}"
