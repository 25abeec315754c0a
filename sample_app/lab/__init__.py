"""The contention lab: the effect of concurrent changes under each protection.

    plan.py       the plans of runs: protection, clients, the critical section; orders
    bench.py      the endpoint: read, think, write, under each protection
    crew.py       concurrent clients that post to it
    outcome.py    the figures of a run
    timeline.py   holders and waiters as a picture
    runs.py       a run: a site of its own, the crew, the outcome
    command.py    `python -m sample_app lab`
    desk.py       runs that were started on the page, as processes and files
    pages.py      the pages
    crashes/      the second game: workers are killed between an order and its effect

Every figure is measured in that run: real requests, real worker processes, the emulator in the
chosen concurrency mode, a real memcached.
"""
