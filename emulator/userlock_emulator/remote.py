"""Requests beside the RPCs to a running emulator, over HTTP."""

import http.client
import json
from collections.abc import Iterable, Iterator

# A request may have 16 MiB; no other request is served while one is stored.
_BYTES_AT_ONCE = 4 * 2**20
# A reset or an import waits for the commit in progress.
_TIMEOUT_SECONDS = 60


class RemoteError(Exception):
    """No emulator answers there, or it refuses. The text is one line."""


class Remote:
    """A running emulator in another process.

    Args:
        host: "HOST:PORT", as in DATASTORE_EMULATOR_HOST; "http://" may precede it, as
            some clients require.
    """

    def __init__(self, host: str) -> None:
        self._host = host.removeprefix("http://").rstrip("/")

    def reset(self) -> None:
        """Delete all data: see `Emulator.reset`.

        Raises:
            RemoteError: the request failed.
        """
        for _ in self._ask("POST", "/reset"):
            pass

    def export(self) -> Iterator[bytes]:
        """Yield all entities as of now, a line of JSON each.

        Raises:
            RemoteError: the request failed, or the connection was lost in the middle.
        """
        return self._ask("GET", "/export")

    def load(self, lines: Iterable[bytes]) -> int:
        """Store entities in large requests and return their number.

        Raises:
            RemoteError: the request failed, or a line is no entity. The lines
                before may have been stored.
        """
        return sum(
            int(json.loads(line)["entities"])
            for body in _batches(lines)
            for line in self._ask("POST", "/import", body)
        )

    def _ask(self, method: str, path: str, body: bytes = b"") -> Iterator[bytes]:
        """Send a request and yield the lines of the response."""
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
