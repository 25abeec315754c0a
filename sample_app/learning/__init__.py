"""The actions of learners, of coaches and of the nightly job. This is the part to copy.

Each action is get, modify, put under the learner's lock, in plain code. The guarantees of each
function:

* Two requests that change one learner run one after the other, in any number of processes. A batch
  job waits behind an interactive request.
* If the lock fails (memcached restarted, a lease expired), Datastore refuses a write that would
  undo another one, and the function raises `userlock.StaleWriteError`. For that reason the learner
  is put before the log: a refused action leaves no trace.
* Changes that must happen together are in one entity, and so in one put. Where that is impossible
  (`certificates`, `coaching`), the function is a transaction as well. A log entry may be missing: a
  process that dies between the two puts leaves points without one.
"""
