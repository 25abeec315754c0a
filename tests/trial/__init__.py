"""A trial by random programs: nothing that was accepted is lost, nothing that was refused is there.

programs    what each process is to do, made of a seed
operations  does it, and notes each write before and after it
record      the notes: one line a write and its outcome, of several processes
checker     what the notes and the final state together say; pure
nemesis     faults of the emulator, in their time
worker      a process that carries out its program
crew        several of them, of which some are killed
processes   all of it together, with the servers
"""
