"""Run concurrent changes under different protections: the contention lab.

    plan.py       the parameters of a run: protection, clients, the critical section
    bench.py      the endpoint under test: read, think, write, under each protection
    crew.py       concurrent clients that post to it
    outcome.py    the figures of a run
    timeline.py   holders and waiters, as a picture
    runs.py       one run: its own site, the crew, the outcome
    command.py    `python -m sample_app lab`
    desk.py       runs that the page has started, as processes and files
    pages.py      the pages

All figures are measured: real requests, real worker processes, the emulator in
the chosen concurrency mode, a real memcached.
"""
