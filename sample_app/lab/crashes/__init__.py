"""The lab's second game: workers are killed between a change and its effect elsewhere.

    bench.py      the endpoint: an order and its effect, with and without the library
    crew.py       clients that send each order until it is confirmed
    outcome.py    each order's facts, and the figures of them all
    strip.py      the orders as a picture
    runs.py       a run: a site of its own, with each protection

The other service is the fake payment provider, a process of its own that survives the workers. Its
ledger is the evidence.
"""
