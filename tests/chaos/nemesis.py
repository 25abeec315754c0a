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
from tests.chaos.harms import Deed, Harm, deeds
from tests.chaos.record import LOOK_SECONDS, Recorder
from tests.chaos.stage import Stage
from tests.chaos.watched import WallClockOffset
from userlock.clock import SYSTEM_CLOCK

#: The durations of alternating phases with and without faults of memcached and the network, in
#: seconds. Order is only kept in the phases without faults.
_STORM, _CALM = 14.0, 7.0
#: The time after filling during which memcached may still evict items, in seconds.
_STAYS_FULL_SECONDS = 2.5
_IN_STORMS = frozenset({Harm.MEMCACHED, Harm.NETWORK})


class Nemesis:
    """The source of faults for a given time.

    Args:
        stage: the servers.
        crew: the processes.
        offset: the error of their wall clock.
        out: the folder for records.
        seed: the seed of the faults.
    """

    def __init__(
        self,
        stage: Stage,
        crew: Crew,
        offset: WallClockOffset,
        out: Path,
        *,
        seed: str,
    ) -> None:
        self._stage = stage
        self._crew = crew
        self._offset = offset
        self._recorder = Recorder(out)
        self._seed = seed
        self._began = self._until = 0.0
        self._trouble: list[BaseException] = []

    def run(self, chosen: frozenset[Harm], seconds: float) -> None:
        """Inject faults for this time, and restore everything.

        The calling thread restarts memcached, because memcached ends with the thread that started
        it.
        """
        self._began = time.monotonic()
        self._until = self._began + seconds
        actions = {
            Harm.MEMCACHED: self._harm_memcached,
            Harm.NETWORK: self._harm_network,
            Harm.PROCESSES: self._harm_processes,
            Harm.DATASTORE: self._harm_datastore,
            Harm.EMULATOR: self._harm_emulator,
        }
        threads = [
            threading.Thread(target=self._guarded, args=(harm, actions[harm]))
            for harm in sorted(chosen - {Harm.MEMCACHED}, key=lambda harm: harm.name)
        ]
        threads.append(threading.Thread(target=self._look_on))
        for thread in threads:
            thread.start()
        try:
            if Harm.MEMCACHED in chosen:
                self._again_and_again(Harm.MEMCACHED, actions[Harm.MEMCACHED])
        finally:
            for thread in threads:
                thread.join()
            self._offset.set(0.0)
            self._stage.clear_faults()
            if Harm.EMULATOR in chosen:
                # The locks of a transaction would otherwise stay for a minute after its process was
                # killed.
                self._kill_emulator(0.0)
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

    def _guarded(self, harm: Harm, act: Callable[[Deed], None]) -> None:
        try:
            self._again_and_again(harm, act)
        except BaseException as trouble:  # reported by the run
            self._trouble.append(trouble)

    def _again_and_again(self, harm: Harm, act: Callable[[Deed], None]) -> None:
        for deed in deeds(self._seed, harm):
            left = self._until - time.monotonic()
            time.sleep(max(0.0, min(deed.pause, left)))
            if deed.pause >= left:
                return
            if harm not in _IN_STORMS or self._is_stormy():
                act(deed)

    def _is_stormy(self) -> bool:
        return (time.monotonic() - self._began) % (_STORM + _CALM) < _STORM

    def _harm_memcached(self, deed: Deed) -> None:
        memcached = self._stage.memcached
        with self._recorder.span(deed.what):
            if deed.what == harms.RESTARTED:
                memcached.restart()
            elif deed.what == harms.RESTARTED_TWICE:
                memcached.restart()
                time.sleep(deed.seconds)
                memcached.restart()
            elif deed.what == harms.DOWN:
                memcached.kill()
                time.sleep(deed.seconds)
                memcached.start()
            elif deed.what == harms.STOPPED:
                with memcached.paused():
                    time.sleep(deed.seconds)
            else:
                assert self._stage.fill_memcached() > 0, "nothing was evicted"
                time.sleep(_STAYS_FULL_SECONDS)

    def _harm_network(self, deed: Deed) -> None:
        if deed.weather is None:
            with self._recorder.span(deed.what):
                self._offset.set(deed.offset)
                time.sleep(deed.seconds)
                self._offset.set(0.0)
            return
        with self._recorder.span(deed.what), self._stage.network.weather(deed.weather):
            if deed.cuts:
                self._stage.network.cut()
            time.sleep(deed.seconds)

    def _harm_processes(self, deed: Deed) -> None:
        if deed.what == harms.PROCESS_KILLED:
            self._crew.kill(deed.whom, self._recorder, self._until)
        else:
            seconds = min(deed.seconds, max(0.1, self._until - time.monotonic()))
            self._crew.stop(deed.whom, self._recorder, seconds)

    def _harm_datastore(self, deed: Deed) -> None:
        self._stage.plant(deed.what)

    def _harm_emulator(self, deed: Deed) -> None:
        self._kill_emulator(deed.seconds)

    def _kill_emulator(self, seconds: float) -> None:
        with self._recorder.span(harms.EMULATOR_KILLED):
            self._stage.kill_emulator(seconds)
