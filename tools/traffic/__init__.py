"""A simulated day of traffic of a site that takes a lock per user.

    make simulation                       # or python -m tools.traffic
    python -m tools.traffic --users 10000 --json

For sizing: lock operations per second, the share of requests that wait and the lengths of their
waits, the duration of the nightly sweep over all users, the memory of memcached. From 10,000 to
100,000,000 users.

- `profile`   the users' behaviour and the durations: every assumption, with its unit
- `users`     a user's random day: sessions, pages with parallel requests, tabs, double clicks
- `lock`      one user's lock: its holder, its queue, and the commands sent to memcached
- `tally`     weighted counts
- `day`       all users' days: each of them, or a sample
- `sizing`    the resulting needs of memcached and its connections
- `report`    tables and JSON
- `replay`    the same requests sent to a real memcached by real processes
- `check`     the comparison of both

**Why a sample is enough.** A lock belongs to one user, so users never wait for each other. They
share the memcached servers and the sweep's workers. The waits of a user's requests therefore depend
on that user's day alone, and totals are sums over users. So a sample of users, each with a weight,
estimates every total without bias. The standard errors are printed. (Shared resources are not
modelled: memcached's response time is assumed constant under any load, and the sweep visits each
user at an independent time.) `--check` compares the estimate with real processes.

The waiting is the library's own: `userlock.lock.queue.delay` decides the time of each poll, and
`LockPolicy` the longest wait.
"""
