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

    STORE = (1.5, 5.0)
    NETWORK = (0.5, 3.0)
    PROCESSES = (0.6, 3.0)
    DATASTORE = (0.02, 0.3)
    EMULATOR = (8.0, 20.0)


RESTARTED, RESTARTED_TWICE = "lease server restarted", "lease server restarted twice"
DOWN, STOPPED, FILLED = "lease server down", "lease server stopped", "lease server filled"
#: Of servers that stand in for each other.
PROMOTED, FLUSHED, MOVED = "replica promoted", "lease server flushed", "slots moved"
CLOCK_SET = "wall clock set"
PROCESS_STOPPED, PROCESS_KILLED = "process stopped", "process killed"
EMULATOR_KILLED, EMULATOR_STOPPED = "emulator killed", "emulator stopped"
#: A time in which requests to Datastore meet faults. Noted only where the leases are there.
DATASTORE_STORM = "Datastore disturbed"

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
        seconds: its duration; of a double fault, the time between the two.
        whom: the process, as a share of all, from 0 to below 1.
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


def deeds(seed: str, harm: Harm, faults: Mapping[str, int]) -> Iterator[Deed]:
    """Yield the faults of one source, without end."""
    random = Random(f"{seed}/{harm.name}")
    while True:
        pause = random.uniform(*harm.value)
        what = one_of(random, faults)
        yield _DRAWN.get(what, _of_network)(random, what, pause)


def _of_server(random: Random, what: str, pause: float) -> Deed:
    seconds = random.uniform(0.2, 1.0) if random.random() < 0.6 else random.uniform(1.0, 4.5)
    if what == RESTARTED_TWICE:
        # Few changes in between, so that version numbers repeat.
        seconds = random.uniform(0.0, 0.2)
    return Deed(what, pause, seconds)


def _of_clocks(random: Random, what: str, pause: float) -> Deed:
    offset = random.choice((-1, 1)) * random.choice((0.3, 5.0, 120.0, 86400.0))
    return Deed(what, pause, random.uniform(0.5, 4.0), offset=offset)


def _of_network(random: Random, what: str, pause: float) -> Deed:
    trouble = Trouble(what)
    weather = Weather(
        trouble,
        share=random.choice((0.05, 0.3, 1.0)),
        seconds=random.choice((0.05, 0.25, 0.6)),
    )
    return Deed(
        what,
        pause,
        random.uniform(0.1, 1.5),
        weather=weather,
        cuts=trouble is Trouble.CUT and random.random() < 0.5,
    )


def _of_processes(random: Random, what: str, pause: float) -> Deed:
    whom = random.random()
    if what == PROCESS_KILLED:
        return Deed(what, pause, whom=whom)
    # A moment, or longer than its leases.
    lasts = one_of(random, {(0.1, 0.9): 4, (1.2, 7.0): 3})
    return Deed(what, pause, random.uniform(*lasts), whom=whom)


def _of_datastore(_: Random, what: str, pause: float) -> Deed:
    return Deed(what, pause)


def _of_emulator(random: Random, what: str, pause: float) -> Deed:
    return Deed(what, pause, random.uniform(0.0, 1.5))


_DRAWN: Mapping[str, Callable[[Random, str, float], Deed]] = {
    **dict.fromkeys((RESTARTED, RESTARTED_TWICE, DOWN, STOPPED, FILLED), _of_server),
    **dict.fromkeys((PROMOTED, FLUSHED, MOVED), _of_server),
    CLOCK_SET: _of_clocks,
    PROCESS_STOPPED: _of_processes,
    PROCESS_KILLED: _of_processes,
    **dict.fromkeys(FAULTS, _of_datastore),
    EMULATOR_KILLED: _of_emulator,
    EMULATOR_STOPPED: _of_emulator,
}
