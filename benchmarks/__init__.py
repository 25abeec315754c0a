"""What userlock costs, measured: `python -m benchmarks`.

    lock.py        an uncontended lock, beside two raw round trips and pymemcache
    handoff.py     how soon a waiter has a lock that another process gives back
    fairness.py    eight processes that want one lock: who gets it, how much of the time
    crowd.py       50 to 200 waiters on one lock: what they cost the server
    batch.py       10,000 learners whom nobody else wants
    outage.py      the server killed, or stopped
    provenance.py  what the model layer adds to a load and to a put
    datastore.py   the Datastore emulator: its start, its answers, its memory

All of it runs on the machine it is started on, against a real memcached and a
real Redis of its own. `locks.py` says which locks of others take part, each at
its defaults, and `runner.py` and `racers.py` how contenders are compared.
"""

# First of all imports: it looks at ndb before userlock has hooked into it.
from benchmarks import pristine as pristine
