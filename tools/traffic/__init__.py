"""A day of traffic of a site that takes a lock per user, simulated.

    make simulation                       # or python -m tools.traffic
    python -m tools.traffic --users 10000 --json

For sizing: how many lock operations a second, how many of the requests wait,
for how long, how long the nightly sweep over all users takes, what memcached
has to keep. From 10,000 to 100,000,000 users.

- `profile`   what people do and how long things take: every assumption, with its unit
- `people`    a user's day, drawn: sessions, pages with parallel requests, tabs, double clicks
- `line`      one user's lock: who holds it, who waits, what is sent to memcached for it
- `tally`     what is counted, each thing as often as it stands for
- `day`       all users' days: each of them, or a sample
- `sizing`    what follows for memcached and for its connections
- `report`    tables and JSON
- `replay`    the same requests sent to a real memcached by real processes
- `check`     both beside each other

**Why a sample will do.** A lock belongs to one user, so users never wait for
each other; they share the memcached servers and the sweep's workers. What a
user's requests wait for therefore depends on that user's day alone, and totals
are sums over users. So a sample of users, each counted as often as it stands
for, estimates every total without bias; the standard errors are printed. (What
is shared is not modelled: memcached is taken to answer in the same time
whatever its load, and the sweep comes to each user at a time of its own.)
`tests/unit/tools/` holds the estimate against the full count.

The waiting is not a model of a model: when a waiter looks is decided by
`userlock.lock.queue.delay`, for how long it waits by `LockPolicy`, with what
the library ships.
"""
