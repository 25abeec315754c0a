"""What userlock costs, measured: `python -m benchmarks`.

    lock.py        an uncontended lock, beside two raw round trips and pymemcache
    handoff.py     how soon a waiter has a lock that another process gives back
    provenance.py  what the model layer adds to a load and to a put

All of it runs on the machine it is started on, against a real memcached of its
own; `runner.py` says how contenders are compared.
"""

# First of all imports: it looks at ndb before userlock has hooked into it.
from benchmarks import pristine as pristine
