"""The faults: random events, the same for the same seed, at any times."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.chaos.network import Trouble, Weather
from tests.chaos.programs import one_of


class Harm(enum.Enum):
    """A source of faults, with the least and longest time between two, in seconds."""

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

#: The faults after which memcached may have lost any record.
LOSSES = frozenset({RESTARTED, RESTARTED_TWICE, DOWN, FILLED})
#: The other faults of the network and of memcached, without loss of data. Wall clocks are among
#: them, because a waiter that rejoins the queue is placed by its own.
TROUBLES = frozenset({STOPPED, CLOCK_SET, *(trouble.value for trouble in Trouble)})
#: The faults that stop a process. The last one happens on a busy machine by itself.
STOPS = frozenset({PROCESS_STOPPED, PROCESS_KILLED, "process starved"})

#: The emulator's faults by their name here: the frequency, and the emulator's arguments.
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
    """One fault.

    Attributes:
        what: its name, also in the records.
        pause: the time before it, in seconds.
        seconds: its duration; of a double fault, the time between the two.
        whom: the process, as a share of all, from 0 to below 1.
        weather: the network's behaviour.
        cuts: whether all connections also break at once.
        offset: the error of the wall clock meanwhile, in seconds.
    """

    what: str
    pause: float
    seconds: float = 0.0
    whom: float = 0.0
    weather: Weather | None = None
    cuts: bool = False
    offset: float = 0.0


def deeds(seed: str, harm: Harm) -> Iterator[Deed]:
    """Yield the faults of one source, without end."""
    random = Random(f"{seed}/{harm.name}")
    while True:
        yield _DRAWN[harm](random, random.uniform(*harm.value))


def _of_memcached(random: Random, pause: float) -> Deed:
    what = one_of(random, {RESTARTED: 3, RESTARTED_TWICE: 1, DOWN: 2, STOPPED: 4, FILLED: 2})
    seconds = random.uniform(0.2, 1.0) if random.random() < 0.6 else random.uniform(1.0, 4.5)
    if what == RESTARTED_TWICE:
        # Few changes in between, so that version numbers repeat.
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
