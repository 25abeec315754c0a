"""What goes wrong, and when: by a seed, noted as it happens.

There are four who do harm, each in its own time, so that several things go wrong at once.
"""

from __future__ import annotations

import contextlib
import enum
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

from tests.trial.crew import Crew
from tests.trial.network import Trouble, Weather
from tests.trial.record import LOOK_SECONDS, Recorder
from tests.trial.stage import Stage
from tests.trial.watched import WallClockOffset
from userlock.clock import SYSTEM_CLOCK

#: After these memcached may have lost any record.
LOSSES = frozenset(
    {"memcached restarted", "memcached restarted twice", "memcached down", "memcached filled"}
)
#: These are the network's and memcached's as well, but nothing is lost.
TROUBLES = frozenset({"memcached stopped", *(trouble.value for trouble in Trouble)})
#: Of one process; the last one is what a busy machine does by itself.
STOPS = frozenset({"process stopped", "process killed", "process starved"})

_FAULTS: tuple[tuple[Mapping[str, Any], int], ...] = (
    ({"fault": "drop_reply"}, 4),
    ({"fault": "abort"}, 3),
    ({"fault": "unavailable", "rpc": "Commit"}, 3),
    ({"fault": "unavailable", "rpc": "Lookup"}, 1),
    ({"fault": "unavailable", "rpc": "BeginTransaction"}, 1),
    ({"fault": "deadline_exceeded", "rpc": "Commit", "applied": True}, 1),
    ({"fault": "deadline_exceeded", "rpc": "Commit"}, 1),
    ({"fault": "delay", "seconds": 0.2, "rpc": "Commit"}, 2),
)


#: memcached and the network are left alone now and then: order is only kept while they are well.
#: For how long they are not, and are, in seconds.
_STORM, _CALM = 14.0, 7.0
#: After it was filled memcached may throw something out for a while, in seconds.
_STAYS_FULL_SECONDS = 2.5


class Harm(enum.Enum):
    """Who does harm, and how often: least and most seconds in between."""

    MEMCACHED = (1.5, 5.0)
    NETWORK = (0.5, 3.0)
    PROCESSES = (0.6, 3.0)
    DATASTORE = (0.02, 0.3)
    EMULATOR = (8.0, 20.0)


_IN_STORMS = frozenset({Harm.MEMCACHED, Harm.NETWORK})


class Nemesis:
    """Does harm until its time is over.

    Args:
        stage: the servers.
        crew: the processes.
        offset: by how much their wall clock is wrong.
        out: for notes of what it does.
        seed: of what it does.
        kills: whether processes are killed, beside being stopped.
    """

    def __init__(
        self,
        stage: Stage,
        crew: Crew,
        offset: WallClockOffset,
        out: Path,
        *,
        seed: str,
        kills: bool,
    ) -> None:
        self._stage = stage
        self._crew = crew
        self._offset = offset
        self._recorder = Recorder(out)
        self._seed = seed
        self._kills = kills
        self._began = self._until = 0.0
        self._trouble: list[BaseException] = []

    def run(self, harms: frozenset[Harm], seconds: float) -> None:
        """Do harm for so long, and leave everything well again.

        memcached is restarted from the thread that calls this, because it is to end with that.
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
            for harm in sorted(harms - {Harm.MEMCACHED}, key=lambda harm: harm.name)
        ]
        threads.append(threading.Thread(target=self._look_on))
        for thread in threads:
            thread.start()
        try:
            if Harm.MEMCACHED in harms:
                self._again_and_again(Harm.MEMCACHED, actions[Harm.MEMCACHED])
        finally:
            for thread in threads:
                thread.join()
            self._offset.set(0.0)
            self._stage.clear_faults()
            self._recorder.close()
        if self._trouble:
            raise self._trouble[0]

    def _look_on(self) -> None:
        """Note when this process was not let run: the network is in it, and hands nothing on."""
        last = SYSTEM_CLOCK.now()
        while time.monotonic() < self._until:
            time.sleep(LOOK_SECONDS)
            if SYSTEM_CLOCK.now() - last > 2 * LOOK_SECONDS:
                self._recorder.note("starved", who=None, began=last + LOOK_SECONDS)
            last = SYSTEM_CLOCK.now()

    def _guarded(self, harm: Harm, act: Callable[[Random], None]) -> None:
        try:
            self._again_and_again(harm, act)
        except BaseException as trouble:  # told by whoever runs the trial
            self._trouble.append(trouble)

    def _again_and_again(self, harm: Harm, act: Callable[[Random], None]) -> None:
        random = Random(f"{self._seed}/{harm.name}")
        while True:
            pause = random.uniform(*harm.value)
            left = self._until - time.monotonic()
            time.sleep(max(0.0, min(pause, left)))
            if pause >= left:
                return
            if harm not in _IN_STORMS or self._is_stormy():
                act(random)

    def _is_stormy(self) -> bool:
        return (time.monotonic() - self._began) % (_STORM + _CALM) < _STORM

    @contextlib.contextmanager
    def _noted(self, kind: str) -> Iterator[None]:
        with self._recorder.span(kind):
            yield

    # --- the lease store --------------------------------------------------------------------

    def _harm_memcached(self, random: Random) -> None:
        memcached = self._stage.memcached
        what = random.choices(("restart", "twice", "down", "stop", "fill"), (3, 1, 2, 4, 2))[0]
        seconds = random.uniform(0.2, 1.0) if random.random() < 0.6 else random.uniform(1.0, 4.5)
        if what == "restart":
            with self._noted("memcached restarted"):
                memcached.restart()
        elif what == "twice":
            # Few changes in between, so that the numbers of versions come again.
            with self._noted("memcached restarted twice"):
                memcached.restart()
                time.sleep(random.uniform(0.0, 0.2))
                memcached.restart()
        elif what == "down":
            with self._noted("memcached down"):
                memcached.kill()
                time.sleep(seconds)
                memcached.start()
        elif what == "stop":
            with self._noted("memcached stopped"), memcached.paused():
                time.sleep(seconds)
        else:
            with self._noted("memcached filled"):
                assert self._stage.fill_memcached() > 0, "nothing was thrown out"
                time.sleep(_STAYS_FULL_SECONDS)

    # --- what is between, and the clock -----------------------------------------------------

    def _harm_network(self, random: Random) -> None:
        if random.random() < 0.15:
            seconds = random.choice((-1, 1)) * random.choice((0.3, 5.0, 120.0, 86400.0))
            with self._noted("wall clock set"):
                self._offset.set(seconds)
            return
        trouble = random.choice(list(Trouble))
        weather = Weather(
            trouble,
            share=random.choice((0.05, 0.3, 1.0)),
            seconds=random.choice((0.05, 0.25, 0.6)),
        )
        with self._noted(trouble.value), self._stage.network.weather(weather):
            if trouble is Trouble.CUT and random.random() < 0.5:
                self._stage.network.cut()
            time.sleep(random.uniform(0.1, 1.5))

    # --- the processes ----------------------------------------------------------------------

    def _harm_processes(self, random: Random) -> None:
        what = random.choices(("moment", "past lease", "kill"), (4, 3, 2 if self._kills else 0))[0]
        if what == "kill":
            self._crew.kill(random, self._recorder, self._until)
        else:
            seconds = random.uniform(*((0.1, 0.9) if what == "moment" else (1.2, 7.0)))
            seconds = min(seconds, max(0.1, self._until - time.monotonic()))
            self._crew.stop(random, self._recorder, seconds)

    # --- Datastore --------------------------------------------------------------------------

    def _harm_datastore(self, random: Random) -> None:
        (fault,) = random.choices(*zip(*_FAULTS, strict=True))
        self._stage.plant(fault)
        self._recorder.note("planted", fault=fault["fault"])

    def _harm_emulator(self, random: Random) -> None:
        with self._noted("emulator killed"):
            self._stage.kill_emulator(random.uniform(0.0, 1.0))
