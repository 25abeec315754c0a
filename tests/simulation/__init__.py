"""Processes that are only simulated, on a clock driven by hand, one step at a time.

scheduler    threads that run one at a time, and only as far as their next point
world        processes: a clock, a way to the store with faults, a lock service each
watch        the store, and what must be true of each write to it
history      what happened to each attempt, and an independent check of it
"""
