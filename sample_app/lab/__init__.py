"""The contention lab: what becomes of concurrent changes, by what stands between them.

    plan.py       what to run: protection, clients, the critical section
    bench.py      the endpoint that is run: read, think, write, under each protection
    crew.py       concurrent clients that post to it
    outcome.py    what was measured, in figures
    timeline.py   who held and who waited, as a picture
    runs.py       one run: a site of its own, the crew, the outcome
    command.py    `python -m sample_app lab`
    desk.py       runs that were asked for on the page, as processes and files
    pages.py      the pages

Everything shown is measured in that run: real requests, real worker processes,
the emulator in the concurrency mode that was asked for, a real memcached.
"""
