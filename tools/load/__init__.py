"""The sample app under mixed traffic: `make load`, or `python -m tools.load`.

    make load SECONDS=60
    python -m tools.load --seconds 20 --json

It starts a site of its own (emulator, memcached, two worker processes). Browsers, programs, coaches
and a scheduler send requests concurrently, for a few learners only, so that they contend.

- `browser`   one client: a connection for each request, cookies, the redirect after a form
- `traffic`   the clients and their requests; counts accepted updates
- `answers`   the intended responses; number and speed of each
- `memory`    the workers' memory, and the criterion for a leak
- `run`       the whole run, and its verdict

Requirements: only intended responses (503 and 409 are allowed under contention), no missing
accepted update, constant memory of the workers.
"""
