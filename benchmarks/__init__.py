"""Measurements of userlock's costs: `python -m benchmarks`.

    lock.py        an uncontended lock, compared with two raw round trips and pymemcache
    handoff.py     time from a release to the grant of a waiter in another process
    fairness.py    eight processes that contend for one lock: shares and utilisation
    crowd.py       50 to 200 waiters on one lock: load on the server
    batch.py       10,000 learners without contention
    outage.py      the server killed, or stopped
    provenance.py  overhead of the model layer per load and put
    datastore.py   the Datastore emulator: start, throughput, memory

All of it runs on the local machine, against a real memcached and a real Redis of its own.
`locks.py` lists the other locks, each at its defaults. `runner.py` and `racers.py` compare the
contenders.
"""

# First of all imports: it inspects ndb before userlock has hooked into it.
from benchmarks import pristine as pristine
