"""The injection of faults (`harms`), and their records.

There are several sources, each with its own timing, so that several faults happen at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos import harms
from tests.chaos.crew import Crew
from tests.chaos.groups import Group
from tests.chaos.harms import FAULTS, Deed, Harm, deeds
from tests.chaos.network import Weather
from tests.chaos.programs import USERS
from tests.chaos.record import LOOK_SECONDS, Recorder
from tests.chaos.stage import Stage
from tests.chaos.stores import StoreKind
from tests.chaos.watched import WallClockOffset
from userlock.clock import SYSTEM_CLOCK

#: The duration of the phases with faults of the lease store and the network, in seconds. Order is
#: only kept in the phases between them, see `StoreKind.calm`. In a storm one lease server fails.
_STORM = 14.0
#: The time after a storm within which the last faults of Datastore have been planted.
_DIES_DOWN_SECONDS = 3.0
#: The time after filling during which a memcached may still evict items, in seconds.
_STAYS_FULL_SECONDS = 2.5


class Nemesis:
    """The source of faults for a given time."""

    def __init__(
        self,
        stage: Stage,
        crew: Crew,
        offset: WallClockOffset,
        out: Path,
        *,
        seed: str,
        kind: StoreKind,
    ) -> None:
        self._stage = stage
        self._crew = crew
        self._offset = offset
        self._recorder = Recorder(out)
        self._seed = seed
        self._kind = kind
        self._began = self._until = 0.0
        self._trouble: list[BaseException] = []

    def run(self, chosen: frozenset[Harm], seconds: float) -> None:
        """Inject faults for this time, and restore everything.

        The calling thread restarts lease servers, because a server ends with the thread that
        started it.
        """
        self._began = time.monotonic()
        self._until = self._began + seconds
        chosen &= self._kind.harms
        threads = [
            threading.Thread(target=self._guarded, args=(self._again_and_again, harm))
            for harm in sorted(chosen - {Harm.STORE}, key=lambda harm: harm.name)
        ]
        threads.append(threading.Thread(target=self._look_on))
        if Harm.DATASTORE in chosen & self._kind.stormy:
            threads.append(threading.Thread(target=self._guarded, args=(self._note_storms,)))
        for thread in threads:
            thread.start()
        try:
            if Harm.STORE in chosen:
                self._again_and_again(Harm.STORE)
        finally:
            for thread in threads:
                thread.join()
            self._offset.set(0.0)
            self._stage.clear_faults()
            if any(harms.EMULATOR_KILLED in self._kind.faults[harm] for harm in chosen):
                # The locks of a transaction would otherwise stay for a minute after its process was
                # killed.
                self._harm_emulator(Deed(harms.EMULATOR_KILLED, 0.0))
            for kind, count in self._stage.met.items():
                self._recorder.note("met", kind=kind, count=count)
            self._recorder.close()
        if self._trouble:
            raise self._trouble[0]

    def _look_on(self) -> None:
        """Record pauses of this process: the network in it forwards nothing meanwhile."""
        last = SYSTEM_CLOCK.now()
        while time.monotonic() < self._until:
            time.sleep(LOOK_SECONDS)
            if SYSTEM_CLOCK.now() - last > 2 * LOOK_SECONDS:
                self._recorder.note("starved", who=None, began=last + LOOK_SECONDS)
            last = SYSTEM_CLOCK.now()

    def _guarded(self, act: Callable[..., None], *args: Harm) -> None:
        try:
            act(*args)
        except BaseException as trouble:  # reported by the run
            self._trouble.append(trouble)

    def _again_and_again(self, harm: Harm) -> None:
        for deed in deeds(self._seed, harm, self._kind.faults[harm]):
            if not self._sleep(deed.pause):
                return
            if harm not in self._kind.stormy or self._is_stormy():
                self._act(deed)

    def _sleep(self, seconds: float) -> bool:
        """Sleep, but not beyond the end. Return whether there is time left."""
        left = self._until - time.monotonic()
        time.sleep(max(0.0, min(seconds, left)))
        return seconds < left

    def _note_storms(self) -> None:
        """Record the times in which requests to Datastore meet faults, and end them."""
        while True:
            with self._recorder.span(harms.DATASTORE_STORM):
                self._sleep(_STORM + _DIES_DOWN_SECONDS)
                self._stage.clear_faults()
            if not self._sleep(self._kind.calm - _DIES_DOWN_SECONDS):
                return

    def _is_stormy(self) -> bool:
        return (time.monotonic() - self._began) % (_STORM + self._kind.calm) < _STORM

    def _victim(self) -> int:
        """Return the number of the lease server that fails in this storm: it has a lock."""
        storm = int((time.monotonic() - self._began) / (_STORM + self._kind.calm))
        return self._stage.homes[USERS[storm % len(USERS)]]

    # --- the faults -------------------------------------------------------------------------

    def _act(self, deed: Deed) -> None:
        if deed.what in FAULTS:
            self._stage.plant(deed.what)
        elif deed.what in (harms.PROCESS_KILLED, harms.PROCESS_STOPPED):
            self._harm_processes(deed)
        elif deed.what in (harms.EMULATOR_KILLED, harms.EMULATOR_STOPPED):
            self._harm_emulator(deed)
        elif deed.what == harms.CLOCK_SET:
            self._set_clocks(deed)
        elif deed.weather is not None:
            self._harm_network(deed, deed.weather)
        else:
            self._harm_server(deed)

    def _harm_server(self, deed: Deed) -> None:
        number = self._victim()
        server = self._stage.lease_servers[number].server
        with self._recorder.span(deed.what, locks=self._stage.locks_of(number)):
            if deed.what == harms.RESTARTED:
                server.restart()
            elif deed.what == harms.RESTARTED_TWICE:
                server.restart()
                time.sleep(deed.seconds)
                server.restart()
            elif deed.what == harms.DOWN:
                server.kill()
                time.sleep(deed.seconds)
                server.start()
            elif deed.what == harms.MOVED:
                self._stage.move(number)
            elif deed.what == harms.PROMOTED:
                assert isinstance(server, Group)
                server.promote()
            elif deed.what == harms.FLUSHED:
                assert isinstance(server, Group)
                server.flush()
            elif deed.what == harms.STOPPED:
                with server.paused():
                    time.sleep(deed.seconds)
            else:
                assert self._stage.fill(number) > 0, "nothing was evicted"
                time.sleep(_STAYS_FULL_SECONDS)

    def _harm_network(self, deed: Deed, weather: Weather) -> None:
        number = self._victim()
        network = self._stage.lease_servers[number].network
        locks = self._stage.locks_of(number)
        with self._recorder.span(deed.what, locks=locks), network.weather(weather):
            if deed.cuts:
                network.cut()
            time.sleep(deed.seconds)

    def _set_clocks(self, deed: Deed) -> None:
        with self._recorder.span(deed.what):
            self._offset.set(deed.offset)
            time.sleep(deed.seconds)
            self._offset.set(0.0)

    def _harm_processes(self, deed: Deed) -> None:
        if deed.what == harms.PROCESS_KILLED:
            self._crew.kill(deed.whom, self._recorder, self._until)
        else:
            seconds = min(deed.seconds, max(0.1, self._until - time.monotonic()))
            self._crew.stop(deed.whom, self._recorder, seconds)

    def _harm_emulator(self, deed: Deed) -> None:
        with self._recorder.span(deed.what):
            if deed.what == harms.EMULATOR_KILLED:
                self._stage.kill_emulator(deed.seconds)
            else:
                self._stage.stop_emulator(deed.seconds)
