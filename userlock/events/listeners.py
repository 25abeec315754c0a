"""The listeners of events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from userlock.events.lines import log, log_event
from userlock.events.types import Event

Listener = Callable[[Event], None]


class Listeners:
    """A list of listeners, told one after the other."""

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._listeners: tuple[Listener, ...] = tuple(listeners)
        self._only_logged = self._listeners == (log_event,)

    def add(self, listener: Listener) -> None:
        """Tell `listener` of every event from now on."""
        self._listeners = (*self._listeners, listener)
        self._only_logged = self._listeners == (log_event,)

    def remove(self, listener: Listener) -> None:
        """Tell `listener` of nothing any more. Nothing happens if it was told of nothing."""
        self._listeners = tuple(each for each in self._listeners if each != listener)
        self._only_logged = self._listeners == (log_event,)

    def watched(self) -> bool:
        """Return whether anybody sees an event of DEBUG level. Events of each lock are not even
        made when nobody does."""
        return not self._only_logged or log.isEnabledFor(logging.DEBUG)

    def emit(self, event: Event) -> None:
        """Tell everybody. Never raises what a listener raises."""
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                log.exception("a userlock listener failed on %s", type(event).__name__)


#: Told by the model layer as well as by every lock service.
LISTENERS = Listeners([log_event])
