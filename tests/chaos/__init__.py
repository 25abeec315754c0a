"""Chaos runs: random programs, and faults of every kind: `make chaos`.

stores      the kinds of lease store: the faults that apply to each, and the demands on it
programs    the random operations of each thread, derived from a seed
request     recorded reads and writes; operations: the common ones; corners: the rare ones
staging     operations that stage jobs; jobs: the jobs, their workers and relays; mail: their engine
planting    operations on trees; garden: their deletion and files
desk        requests with idempotency keys, and the server that completes them
worker      a process that executes programs; gauges: its resource usage
watched     its lock service, which records requests and results
record      writing of the records; history: reading them
crew        several processes, some of which are stopped or killed
stage       the servers: lease servers behind bad networks (`network`), the emulator on disk
groups      servers that stand in for each other, as one lease server
harms       the faults, derived from a seed; nemesis: injects them
writes, tenures, waits, runs, answers, trees, verdict  the checks, pure; findings: their results
meetings    the effects of the faults
mutations   negative controls: rules of the library that are disabled
processes   a whole run
report      the report
"""
