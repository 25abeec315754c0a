"""The checks of `make spec`: each run of a model, and whether it must hold or must fail."""

from __future__ import annotations

from typing import NamedTuple


class Check(NamedTuple):
    """One run of spin over a model.

    Attributes:
        says: the property, or the omission that must make it fail.
        model: the file.
        options: compile-time options of the model (`-D…` of spin).
        holds: whether the check must hold; otherwise spin must find a counter-example.
        claim: the name of a formula to check, with weak fairness; empty: assertions and the
            absence of deadlocks.
    """

    says: str
    model: str
    options: tuple[str, ...] = ()
    holds: bool = True
    claim: str = ""


#: Two interactive clients and a batch client, instead of three and one.
_TWO = "-DWITHOUT_CLIENT_3"
#: One accident of any kind, at any moment.
_SMALL = (_TWO, "-DACCIDENTS=1")
#: Only deaths and timeouts.
_ORDERLY = ("-DPAUSES=0", "-DLOSSES=0", "-DLOST_REPLIES=0", "-DSLOW_REPLIES=0")
#: All clients repeat for ever.
_FOR_EVER = ("-DPROGRESS", "-DLOOPS=true", "-DEXTENSIONS=0", *_ORDERLY)
#: One of the clients other than client 2 (interactive), or 4 (batch), dies or gives up.
_BUT_INTERACTIVE = (_TWO, "-DACCIDENTS=1", "-DLASTING=4", *_FOR_EVER)
_BUT_BATCH = (_TWO, "-DACCIDENTS=1", "-DLASTING=16", *_FOR_EVER)
#: Of outbox.pml: workers alone, and one job with all its faults until they end.
_WORKERS = ("-DRELAYS=0",)
_ONE_JOB = ("-DLIVE", "-DJOBS=1", "-DRELAYS=1")
_SMALLEST = (*_ONE_JOB, "-DWORKERS=1")
#: Of request.pml: one server beside the completer.
_ONE_SERVER = ("-DSERVERS=1",)
_DISTURBED = ("-DLOCK_MAY_FAIL=1", "-DLOST_REPLIES=1", "-DOLD_READS=1")

CHECKS = (
    Check("exclusion, order, no deadlock: 3 interactive, 1 batch; one accident", "lock.pml",
          ("-DACCIDENTS=1",)),
    Check("the same: 2 interactive, 1 batch; two accidents", "lock.pml", (_TWO, "-DACCIDENTS=2")),
    Check("the same: one accident; clients may try only once", "lock.pml",
          (*_SMALL, "-DTRY_ONCE")),
    Check("a waiting interactive client is served; another dies or gives up", "lock.pml",
          _BUT_INTERACTIVE, claim="interactive_is_served"),
    Check("a waiting batch client is served; another dies or gives up", "lock.pml",
          _BUT_BATCH, claim="batch_is_served"),
    Check("release by plain delete", "lock.pml", (*_SMALL, "-DPLAIN_DELETE"), holds=False),
    Check("renewals by plain touch", "lock.pml", (*_SMALL, "-DPLAIN_TOUCH"), holds=False),
    Check("versions trusted after a restart", "lock.pml", (*_SMALL, "-DTRUST_VERSIONS"),
          holds=False),
    Check("leases that lapse early in the store", "lock.pml", (*_SMALL, "-DLAPSES_EARLY"),
          holds=False),
    Check("a free lock for the first client to see it", "lock.pml",
          (_TWO, *_ORDERLY, "-DTURNS_OFF"), holds=False),
    Check("batch does not stand back", "lock.pml", (_TWO, *_ORDERLY, "-DBATCH_RULE_OFF"),
          holds=False),
    Check("dead waiters are not passed", "lock.pml", (*_BUT_INTERACTIVE, "-DNO_PASSING"),
          holds=False, claim="interactive_is_served"),
    Check("batch does not age", "lock.pml", (*_BUT_BATCH, "-DAGEING_OFF"),
          holds=False, claim="batch_is_served"),
    Check("nothing lost, nothing refused: the lock works", "commit.pml"),
    Check("nothing lost: the lock fails, a reply is lost, caches are stale", "commit.pml",
          _DISTURBED),
    Check("nothing lost without fencing: the lock works", "commit.pml", ("-DFENCING_OFF",)),
    Check("without fencing: the lock fails", "commit.pml",
          ("-DLOCK_MAY_FAIL=1", "-DFENCING_OFF"), holds=False),
    Check("release before the commit", "commit.pml", ("-DRELEASE_BEFORE_COMMIT",), holds=False),
    Check("no eviction from the context cache", "commit.pml", ("-DEVICTION_OFF",),
          holds=False),
    Check("writes recognised by their content", "commit.pml", (*_DISTURBED, "-DBY_CONTENT"),
          holds=False),
    Check("jobs: the lock works; redrive and purge", "outbox.pml", (*_WORKERS, "-DOPERATORS=1")),
    Check("jobs: the same, transactional", "outbox.pml",
          (*_WORKERS, "-DOPERATORS=1", "-DTRANSACTIONAL")),
    Check("jobs: the same, a dead one holds up the later one", "outbox.pml",
          (*_WORKERS, "-DOPERATORS=1", "-DBLOCKS")),
    Check("jobs: the lock fails", "outbox.pml", (*_WORKERS, "-DLOCK_FAILS")),
    Check("jobs: the lock fails, transactional", "outbox.pml",
          (*_WORKERS, "-DLOCK_FAILS", "-DTRANSACTIONAL")),
    Check("jobs: the lock fails; redrive and purge, unknown jobs; 1 job", "outbox.pml",
          (*_WORKERS, "-DLOCK_FAILS", "-DOPERATORS=1", "-DUNKNOWN_JOBS", "-DJOBS=1")),
    Check("two relays: 1 job, 2 workers", "outbox.pml", ("-DJOBS=1",)),
    Check("no job is lost: 2 workers, 1 relay", "outbox.pml", _ONE_JOB, claim="no_job_is_lost"),
    Check("no job is lost: 1 worker, 2 relays, the lock fails", "outbox.pml",
          ("-DLIVE", "-DJOBS=1", "-DWORKERS=1", "-DLOCK_FAILS", "-DATTEMPTS=1"),
          claim="no_job_is_lost"),
    Check("no job is lost: redrive and purge, unknown jobs", "outbox.pml",
          (*_SMALLEST, "-DOPERATORS=1", "-DUNKNOWN_JOBS"), claim="no_job_is_lost"),
    Check("the lock fails: no job has an effect after that of a later one", "outbox.pml",
          (*_WORKERS, "-DLOCK_FAILS", "-DSTRICT_ORDER"), holds=False),
    Check("claim without a compare", "outbox.pml",
          (*_WORKERS, "-DLOCK_FAILS", "-DCLAIM_BLIND", "-DJOBS=1"), holds=False),
    Check("take-over of a claim that was made without the lock", "outbox.pml",
          (*_WORKERS, "-DLOCK_FAILS", "-DTAKE_OVER_BLIND", "-DJOBS=1"), holds=False),
    Check("removal without the token", "outbox.pml",
          (*_WORKERS, "-DLOCK_FAILS", "-DREMOVE_BLIND", "-DTRANSACTIONAL", "-DJOBS=1"),
          holds=False),
    Check("a failure noted without the token", "outbox.pml",
          (*_WORKERS, "-DTRANSACTIONAL", "-DNOTE_BLIND", "-DJOBS=1"), holds=False),
    Check("a busy owner's job put off outside of a transaction", "outbox.pml",
          (*_WORKERS, "-DPUT_OFF_BLIND", "-DJOBS=1"), holds=False),
    Check("a busy owner spends an attempt", "outbox.pml",
          (*_WORKERS, "-DBUSY_SPENDS", "-DJOBS=1"), holds=False),
    Check("an earlier job that failed holds nobody up", "outbox.pml",
          (*_WORKERS, "-DNOT_HELD_UP"), holds=False),
    Check("a place by the latest write before the claim", "outbox.pml",
          (*_WORKERS, "-DPLACE_OF_LAST_WRITE", "-DATTEMPTS=1"), holds=False),
    Check("fewer rows read than an owner has", "outbox.pml",
          (*_WORKERS, "-DSMALL_WINDOW"), holds=False),
    Check("stage before the transaction", "outbox.pml",
          (*_WORKERS, "-DSTAGE_BEFORE", "-DJOBS=1"), holds=False),
    Check("stage after the transaction", "outbox.pml",
          (*_WORKERS, "-DSTAGE_AFTER", "-DJOBS=1"), holds=False),
    Check("purge of what was listed", "outbox.pml",
          (*_WORKERS, "-DOPERATORS=1", "-DPURGE_BLIND", "-DJOBS=1"), holds=False),
    Check("a batch pushed back without a compare", "outbox.pml",
          ("-DPUSH_BLIND", "-DJOBS=1", "-DWORKERS=1"), holds=False),
    Check("a batch pushed back before it is woken", "outbox.pml",
          ("-DPUSH_FIRST", "-DJOBS=1", "-DWORKERS=1"), holds=False),
    Check("no relay", "outbox.pml", ("-DLIVE", "-DJOBS=1", "-DWORKERS=1", "-DRELAYS=0"),
          holds=False, claim="no_job_is_lost"),
    Check("the same name for all messages of a job", "outbox.pml", (*_SMALLEST, "-DSAME_NAMES"),
          holds=False, claim="no_job_is_lost"),
    Check("requests: 2 servers, completer, reaper; the lock works", "request.pml"),
    Check("requests: 1 server, completer, reaper; the lock fails", "request.pml",
          (*_ONE_SERVER, "-DLOCK_FAILS")),
    Check("requests: 2 servers, completer; the lock fails; kept for ever", "request.pml",
          ("-DLOCK_FAILS", "-DKEPT_FOR_EVER")),
    Check("a transaction without the token", "request.pml",
          (*_ONE_SERVER, "-DLOCK_FAILS", "-DTOKEN_BLIND"), holds=False),
    Check("a put of the row without a fence", "request.pml",
          (*_ONE_SERVER, "-DLOCK_FAILS", "-DFENCE_BLIND"), holds=False),
    Check("the key stored by a plain put", "request.pml", ("-DLOCK_FAILS", "-DINSERT_BLIND"),
          holds=False),
    Check("take-over without a look at the answer", "request.pml",
          (*_ONE_SERVER, "-DTAKE_FINISHED"), holds=False),
    Check("a point that is not stored with its phase", "request.pml",
          (*_ONE_SERVER, "-DPOINTS_FORGOTTEN"), holds=False),
    Check("a provider that charges whoever asks", "request.pml", (*_ONE_SERVER, "-DKEY_IGNORED"),
          holds=False),
    Check("a provider that forgets its refusals", "request.pml",
          (*_ONE_SERVER, "-DLOCK_FAILS", "-DREFUSAL_FORGOTTEN"), holds=False),
    Check("a reaper that removes what it has listed", "request.pml", ("-DREAP_BLIND",),
          holds=False),
    Check("unfinished requests with an expiry", "request.pml", (*_ONE_SERVER, "-DOPEN_EXPIRES"),
          holds=False),
)  # fmt: skip

#: Checks that take minutes and gigabytes: `make spec SPEC=--full`.
LONG_CHECKS = (
    Check("a waiting interactive client is served: 3 interactive", "lock.pml", _FOR_EVER,
          claim="interactive_is_served"),
    Check("a waiting batch client is served: 3 interactive", "lock.pml", _FOR_EVER,
          claim="batch_is_served"),
    Check("exclusion, order: 3 interactive; one accident; may try only once", "lock.pml",
          ("-DACCIDENTS=1", "-DTRY_ONCE")),
    Check("the first run, with two accidents", "lock.pml",
          ("-DACCIDENTS=2",)),
    Check("jobs: the lock works; unknown jobs", "outbox.pml", (*_WORKERS, "-DUNKNOWN_JOBS")),
    Check("jobs: the lock works; 2 owners, 3 jobs", "outbox.pml", (*_WORKERS, "-DJOBS=3")),
    Check("jobs: the lock fails, transactional; redrive and purge", "outbox.pml",
          (*_WORKERS, "-DLOCK_FAILS", "-DTRANSACTIONAL", "-DOPERATORS=1", "-DATTEMPTS=1")),
    Check("two relays: 2 jobs, 1 worker", "outbox.pml", ("-DWORKERS=1",)),
    Check("two relays: 1 job, 2 workers, the lock fails", "outbox.pml",
          ("-DJOBS=1", "-DLOCK_FAILS")),
    Check("no job is lost: 2 workers, 1 relay, the lock fails", "outbox.pml",
          (*_ONE_JOB, "-DLOCK_FAILS"), claim="no_job_is_lost"),
    Check("no job is lost: 2 workers, 2 relays", "outbox.pml", ("-DLIVE", "-DJOBS=1"),
          claim="no_job_is_lost"),
    Check("no job is lost: 2 jobs, 1 worker, 1 relay", "outbox.pml",
          ("-DLIVE", "-DWORKERS=1", "-DRELAYS=1"), claim="no_job_is_lost"),
)  # fmt: skip
