"""The contention lab: the effect of concurrent changes under each protection.

    plan.py       the plan of a run: protection, clients, the critical section
    bench.py      the endpoint: read, think, write, under each protection
    crew.py       concurrent clients that post to it
    outcome.py    the figures of a run
    timeline.py   holders and waiters as a picture
    runs.py       a run: a site of its own, the crew, the outcome
    command.py    `python -m sample_app lab`
    desk.py       runs that were started on the page, as processes and files
    pages.py      the pages

Every figure is measured in that run: real requests, real worker processes, the emulator in the
chosen concurrency mode, a real memcached.
"""
