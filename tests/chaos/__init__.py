"""A trial by random programs and by everything that may fail: `make chaos`.

programs    what each thread is to do, made of a seed
request     reads and writes, and notes what; operations: all that is done; corners: what is rare
worker      a process that carries out programs; gauges: what it uses
watched     its lock service, which notes what it is asked and what it answers
record      the notes, as they are made; history: as they are read
crew        several processes, of which some are stopped or killed
stage       the servers: memcached behind a bad network (`network`), the emulator on disk
harms       what goes wrong, made of a seed; nemesis: does it
writes, tenures, waits, verdict  what is checked, pure; findings: what is found
meetings    what the faults met
mutations   negative controls: rules of the library that are taken out
processes   all of it together
report      what it has shown
"""
