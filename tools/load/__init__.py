"""The sample app under mixed traffic, for a while: `make load`, or `python -m tools.load`.

    make load SECONDS=60
    python -m tools.load --seconds 20 --json

Starts a site of its own (emulator, memcached, two worker processes) and sends
it what people, programs, coaches and a scheduler send, all at once and on a few
learners, so that they meet.

- `browser`   one client: a connection for each request, cookies, the redirect after a form
- `traffic`   who sends what; counts what was accepted
- `answers`   which answers are as they should be; how many of each, and how fast
- `memory`    what the workers keep, and when that is a leak
- `run`       all of it together, and what must hold in the end

What must hold: no answer but the intended ones (contention may be answered with
503 and 409), no accepted update missing, the workers' memory flat.
"""
