"""Wait for the signal to stop.

A handler in Python is called between two steps of the main thread, too late if
that thread has just begun to wait:

    the signal          the main thread
                        sees no signal
    arrives: noted
                        waits for ever, and calls no handler

So the main thread reads from a socket, into which Python writes each signal at
once (`signal.set_wakeup_fd`). Nothing is missed, and no handler takes a mutex.
"""

import contextlib
import signal
import socket

_STOPPING = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """SIGINT, SIGTERM or `send`, from now on. Made and awaited by the main thread."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in _STOPPING:
            signal.signal(number, lambda *_: None)

    def send(self) -> None:
        """End the wait, from any thread."""
        with contextlib.suppress(BlockingIOError):  # there are enough
            self._writer.send(b"\0")

    def wait(self) -> None:
        """Wait for a signal; return at once if there was one."""
        self._reader.recv(1)
