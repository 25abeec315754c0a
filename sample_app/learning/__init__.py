"""What is done here, by learners, by coaches and by night. This is the part to copy.

Each action is get, modify, put under the learner's lock, in plain code. What
each function promises:

* Two requests that change one learner run one after the other, however many
  processes serve them, and a batch job waits behind a person.
* If the lock fails (memcached restarted, a lease ran out), a write that would
  undo somebody else's is refused by Datastore and raises
  `userlock.StaleWriteError`. The learner is put before the log for that reason:
  a refused action leaves no trace.
* What must happen together stands in one entity, and so in one put. Where it
  cannot (`certificates`, `coaching`), the function is a transaction as well.
  A line of a log may be missing: a process that dies between the two puts
  leaves points without one.
"""
