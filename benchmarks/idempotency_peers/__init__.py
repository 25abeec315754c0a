"""Twelve situations of a paid request, for userlock and other packages: `make bench-idempotency`.

    __main__.py      the command and its table
    situations.py    the twelve situations, and their right outcome
    stand.py         the servers and workers of one contestant, and its clients
    contestants.py   the contestants and their options
    provider.py      the payment provider, a process that can hold a worker at a point
    apps/            the same paid request with each package, in environments of their own

Workers are processes that are killed (SIGKILL) or stopped (SIGSTOP) while the provider holds them
at a point of their work. No package is changed. Each has a store of its own: a real Redis, a
database, moto's DynamoDB; for userlock a real memcached and the Datastore emulator.
"""
