"""One client's conversation, without I/O: bytes in, bytes out.

`Connection.receive` takes bytes in pieces of any size and returns the reply. Limits, as in
memcached: a key has at most 250 bytes, an item 1 MiB. A line that has not ended after 2,048 bytes
closes the connection, except for a `get`, which may name many keys (1 MiB here). At most one line
or one value is buffered per connection; the data of a refused value is discarded as it arrives.
Many pipelined commands, and a `get` of many keys, are executed in portions, as in memcached: other
clients have their turn in between.

memcached collects the replies to pipelined commands and writes them at certain points: after a
`get`, after `mn`, or when it has read all there is between two commands. Most clients cannot tell.
But three consequences are visible, so replies wait here too. A `get` with a key too long drops the
waiting replies. A number that a waiting `mg` reply refers to is not changed in place. While a data
block is incomplete nothing is sent. (memcached also writes after twenty commands in a row; that is
left out.)
"""

from __future__ import annotations

from collections.abc import Callable

from userlock_emulator.memcache.cache import Cache
from userlock_emulator.memcache.item import Item
from userlock_emulator.memcache.meta_get import MetaReads
from userlock_emulator.memcache.meta_store import MetaWrites
from userlock_emulator.memcache.stats import Stats
from userlock_emulator.memcache.steps import ERROR, Handler, Step, line
from userlock_emulator.memcache.text import VERSION, TextCommands
from userlock_emulator.memcache.wire import split_line

MAX_UNFINISHED_LINE_BYTES = 2048
MAX_UNFINISHED_GET_BYTES = 1024 * 1024
_MAX_START_BYTES = 100 + len(b"gets ")
# A step that is continued counts as many.
_WORK_OF_STEP = 50
_BINARY_MAGIC = b"\x80"
_FIRST_LETTERS = (b"a", b"c", b"d", b"g", b"i", b"s", b"t")
_MOST_WORDS = 23


class Protocol:
    """The commands on one cache, shared by all connections to it."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.stats = Stats(cache, VERSION)
        self._text = TextCommands(cache, self.stats)
        self._handlers: dict[bytes, Handler] = {
            **self._text.handlers,
            **MetaReads(cache).handlers,
            **MetaWrites(cache).handlers,
        }

    def connect(self) -> Connection:
        """Return a connection for a new client."""
        self.cache.counters.total_connections += 1
        self.stats.open_connections += 1
        return Connection(self)

    def disconnect(self, connection: Connection) -> None:
        """Record that a client is gone; call once for each `connect`."""
        self.stats.open_connections -= 1
        connection.close()

    def execute(self, command_line: bytes) -> Step:
        """Run one command line, given without its line end."""
        if len(command_line) > MAX_UNFINISHED_LINE_BYTES and _is_get(command_line):
            return self._text.long_get(command_line)
        words = split_line(command_line)
        handler = self._handlers.get(words[0]) if words else None
        if handler is not None:
            return handler(words)
        return Step(close=True) if _is_http(words) else line(ERROR)


class Connection:
    """One client's connection.

    Attributes:
        closed: the server is to hang up.
        pending: there are commands left to execute; see `receive`.
        executed: number of steps taken.
    """

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self._counters = protocol.cache.counters
        self._greeted = False
        self._input = bytearray()
        self._block_bytes = 0
        self._finish: Callable[[bytes], Step] | None = None
        self._then: Callable[[], Step] | None = None
        self._swallow_bytes = 0
        self._waiting: list[bytes] = []
        self._sending: list[bytes] = []
        self._read_items: list[Item] = []
        self.closed = False
        self.pending = False
        self.executed = 0

    @property
    def is_midway(self) -> bool:
        """Return whether the rest of a command, or of its data, has not arrived."""
        return bool(self._input) or self._finish is not None or self._swallow_bytes > 0

    @property
    def buffered_bytes(self) -> int:
        """Return the number of input bytes that wait for the rest of their line or value."""
        return len(self._input)

    def receive(self, data: bytes, *, most: int | None = None) -> list[bytes]:
        """Take bytes from the client and return the bytes to send, in pieces.

        After `close` nothing may be sent to the client.

        Args:
            most: the most pieces of work, each about one key. Work that is left sets `pending`:
                call again, with no data, after other clients had their turn.
        """
        self._counters.bytes_read += len(data)
        self._input += data
        if data and not self._greeted:
            self._greeted = True
            # The binary protocol, which memcached has deprecated.
            self.closed = data[:1] == _BINARY_MAGIC
        position = 0
        work = 0
        self.pending = False
        while not self.closed:
            if most is not None and work >= most:
                self.pending = True
                break
            if self._swallow_bytes:
                skipped = min(self._swallow_bytes, len(self._input) - position)
                self._swallow_bytes -= skipped
                position += skipped
                if self._swallow_bytes:
                    break
            if self._then is not None:
                step = self._then()
            elif self._finish is not None:
                end = position + self._block_bytes
                if len(self._input) < end:
                    break
                finish, self._finish = self._finish, None
                step = finish(bytes(self._input[position:end]))
                position = end
            else:
                newline = self._input.find(b"\n", position)
                if newline < 0:
                    self._between_commands(position)
                    break
                step = self._protocol.execute(_without_cr(self._input, position, newline))
                position = newline + 1
            self._take(step)
            work += 1 + len(step.reply) + _WORK_OF_STEP * (step.then is not None)
        del self._input[:position]
        sending, self._sending = self._sending, []
        return sending

    def close(self) -> None:
        """End the connection and drop its unsent replies."""
        self.closed = True
        self.pending = False
        self._then = None
        self._forget_waiting()
        self._input.clear()

    def _take(self, step: Step) -> None:
        if step.drop:
            self._forget_waiting()
        self._waiting += step.reply
        if step.reads is not None:
            step.reads.readers += 1
            self._read_items.append(step.reads)
        self.executed += 1
        self._then = step.then
        self._block_bytes = step.block_bytes
        self._finish = step.finish
        self._swallow_bytes = step.swallow_bytes
        if step.flush:
            self._flush()
        self.closed = step.close

    def _between_commands(self, position: int) -> None:
        unfinished = len(self._input) - position
        if unfinished > MAX_UNFINISHED_LINE_BYTES and not self._is_long_get(position):
            self.close()
            return
        self._flush()

    def _is_long_get(self, position: int) -> bool:
        if len(self._input) - position > MAX_UNFINISHED_GET_BYTES:
            return False
        return _is_get(bytes(self._input[position : position + _MAX_START_BYTES]))

    def _flush(self) -> None:
        self._counters.bytes_written += sum(map(len, self._waiting))
        self._sending += self._waiting
        self._forget_waiting()

    def _forget_waiting(self) -> None:
        self._waiting = []
        for item in self._read_items:
            item.readers -= 1
        self._read_items = []


def _is_get(line: bytes) -> bool:
    """Return whether a line begins like a `get`, after a limited number of blanks."""
    return line[:_MAX_START_BYTES].lstrip(b" ").startswith((b"get ", b"gets "))


def _is_http(words: list[bytes]) -> bool:
    """Return whether an unknown command is the first line of an HTTP request.

    A web page can make a browser send one, with commands in its body. memcached hangs up on it,
    with two exceptions: the method's first letter is also that of one of its own commands, or the
    version is beyond the words that it counts.
    """
    if not words or len(words[0]) < 2 or words[0][:1] in _FIRST_LETTERS:
        return False
    if len(words[0]) == 2 and words[0].startswith(b"m"):
        return False
    return words[:_MOST_WORDS][-1].startswith(b"HTTP/")


def _without_cr(data: bytearray, start: int, newline: int) -> bytes:
    end = newline - 1 if newline > start and data[newline - 1] == 0x0D else newline
    return bytes(data[start:end])
