"""Administration: locks listed, servers examined, self-tests.

The command line and the inspector sit on this. For each kind of store there
is a module of the same name as in `userlock.stores` (see `kinds`).
"""
