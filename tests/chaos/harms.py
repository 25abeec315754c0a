"""What goes wrong: random deeds, the same for the same seed, whenever they are done."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.chaos.network import Trouble, Weather
from tests.chaos.programs import one_of


class Harm(enum.Enum):
    """Who does harm, and how often: least and most seconds in between."""

    MEMCACHED = (1.5, 5.0)
    NETWORK = (0.5, 3.0)
    PROCESSES = (0.6, 3.0)
    DATASTORE = (0.02, 0.3)
    EMULATOR = (8.0, 20.0)


RESTARTED, RESTARTED_TWICE = "memcached restarted", "memcached restarted twice"
DOWN, STOPPED, FILLED = "memcached down", "memcached stopped", "memcached filled"
CLOCK_SET = "wall clock set"
PROCESS_STOPPED, PROCESS_KILLED = "process stopped", "process killed"
EMULATOR_KILLED = "emulator killed"

#: After these memcached may have lost any record.
LOSSES = frozenset({RESTARTED, RESTARTED_TWICE, DOWN, FILLED})
#: These are the network's and memcached's as well, but nothing is lost. Wall clocks are among them,
#: for those who line up again are placed by theirs.
TROUBLES = frozenset({STOPPED, CLOCK_SET, *(trouble.value for trouble in Trouble)})
#: Of one process; the last one is what a busy machine does by itself.
STOPS = frozenset({PROCESS_STOPPED, PROCESS_KILLED, "process starved"})

#: What the emulator does once, by what it is called here: how often, and what it calls it.
FAULTS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "commit applied, reply lost": (4, {"fault": "drop_reply"}),
    "commit aborted": (3, {"fault": "abort"}),
    "commit unavailable": (3, {"fault": "unavailable", "rpc": "Commit"}),
    "commit late": (2, {"fault": "delay", "seconds": 0.2, "rpc": "Commit"}),
    "commit applied, past its deadline": (
        1,
        {"fault": "deadline_exceeded", "rpc": "Commit", "applied": True},
    ),
    "commit past its deadline": (1, {"fault": "deadline_exceeded", "rpc": "Commit"}),
    "look-up unavailable": (1, {"fault": "unavailable", "rpc": "Lookup"}),
    "begin of a transaction unavailable": (1, {"fault": "unavailable", "rpc": "BeginTransaction"}),
}


@dataclass(frozen=True)
class Deed:
    """One thing that goes wrong.

    Attributes:
        what: it is; also what it is noted as.
        pause: for how long whoever does it waits before, in seconds.
        seconds: for how long it lasts; of what is done twice, how long after the first time.
        whom: which of the processes, as a share of them, from 0 to below 1.
        weather: of the network.
        cuts: whether all its connections break at once as well.
        offset: by how much the wall clock is wrong meanwhile, in seconds.
    """

    what: str
    pause: float
    seconds: float = 0.0
    whom: float = 0.0
    weather: Weather | None = None
    cuts: bool = False
    offset: float = 0.0


def deeds(seed: str, harm: Harm) -> Iterator[Deed]:
    """All that one of them does, without an end."""
    random = Random(f"{seed}/{harm.name}")
    while True:
        yield _DRAWN[harm](random, random.uniform(*harm.value))


def _of_memcached(random: Random, pause: float) -> Deed:
    what = one_of(random, {RESTARTED: 3, RESTARTED_TWICE: 1, DOWN: 2, STOPPED: 4, FILLED: 2})
    seconds = random.uniform(0.2, 1.0) if random.random() < 0.6 else random.uniform(1.0, 4.5)
    if what == RESTARTED_TWICE:
        # Few changes in between, so that the numbers of versions come again.
        seconds = random.uniform(0.0, 0.2)
    return Deed(what, pause, seconds)


def _of_network(random: Random, pause: float) -> Deed:
    if random.random() < 0.15:
        offset = random.choice((-1, 1)) * random.choice((0.3, 5.0, 120.0, 86400.0))
        return Deed(CLOCK_SET, pause, random.uniform(0.5, 4.0), offset=offset)
    trouble = random.choice(list(Trouble))
    weather = Weather(
        trouble,
        share=random.choice((0.05, 0.3, 1.0)),
        seconds=random.choice((0.05, 0.25, 0.6)),
    )
    return Deed(
        trouble.value,
        pause,
        random.uniform(0.1, 1.5),
        weather=weather,
        cuts=trouble is Trouble.CUT and random.random() < 0.5,
    )


def _of_processes(random: Random, pause: float) -> Deed:
    # A moment, or longer than its leases.
    lasts = one_of(random, {(0.1, 0.9): 4, (1.2, 7.0): 3, None: 2})
    whom = random.random()
    if lasts is None:
        return Deed(PROCESS_KILLED, pause, whom=whom)
    return Deed(PROCESS_STOPPED, pause, random.uniform(*lasts), whom=whom)


def _of_datastore(random: Random, pause: float) -> Deed:
    return Deed(one_of(random, {what: weight for what, (weight, _) in FAULTS.items()}), pause)


def _of_emulator(random: Random, pause: float) -> Deed:
    return Deed(EMULATOR_KILLED, pause, random.uniform(0.0, 1.0))


_DRAWN: Mapping[Harm, Callable[[Random, float], Deed]] = {
    Harm.MEMCACHED: _of_memcached,
    Harm.NETWORK: _of_network,
    Harm.PROCESSES: _of_processes,
    Harm.DATASTORE: _of_datastore,
    Harm.EMULATOR: _of_emulator,
}
