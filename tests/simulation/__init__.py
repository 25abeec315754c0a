"""Simulated processes, on a clock driven by hand, one step at a time.

scheduler    threads that run one at a time, and only to their next point
world        processes: each with a clock, a faulty connection to the store, a lock service
watch        the store, and the invariants of each write to it
history      the history of each attempt, and an independent check of it
"""
