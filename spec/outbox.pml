/* The outbox: jobs that are staged in a transaction, run under their owner's lock, relayed.
 *
 * Run by `make spec`, in several variants (checks.py). This file has the rows, the engine, time,
 * and those who stage, redrive and purge; worker.pml and relay.pml have the rest. README.md names
 * the function of each step.
 *
 * A step is one transaction of Datastore: what it reads has not changed when it commits. Nothing is
 * assumed of the engine, and with LOCK_FAILS nothing of the lock. Anyone may be paused, or die,
 * between any two steps.
 */

#ifndef JOBS
#define JOBS 2                  /* of one owner, staged in this order; a third one has another owner */
#endif
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef RELAYS
#define RELAYS 2
#endif
#ifndef OPERATORS
#define OPERATORS 0             /* people who redrive and purge dead letters */
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2              /* `Retry.attempts` */
#endif
#ifndef REDRIVES
#define REDRIVES 1              /* of each job */
#endif

#if JOBS == 1
#define ROWS 2
#else
#define ROWS JOBS
#endif
#define OWNERS ((JOBS + 1) / 2)
#define OWNER(j) ((j) / 2)
#define BIT(n) (1 << (n))
#define THEN ->

/* --- the rows ----------------------------------------------------------------------------- */

/* `UserLockJob`. `QUEUED` is a job that is to run. */
#define ABSENT 0
#define QUEUED 1
#define LETTER 2                /* a dead letter */
#define GONE 3
byte row[ROWS];
byte claim[ROWS];               /* the worker whose token it has, or ... */
#define FREE 0                  /* ... the empty token, or ... */
#define NOBODY 7                /* ... a token that no worker has any longer */
bit claimed_locked[ROWS];
bit lapsed[ROWS];               /* now is after `claimed_until` */
bit ready[ROWS];                /* now is after `ready_at` */
byte attempts[ROWS];            /* ATTEMPTS + 1 stands for all above */
#define NEVER 0                 /* `due`: None, a time that comes, a time that has come */
#define LATER 1
#define NOW 2
byte due[ROWS];

/* `UserLockRelay`, of one shard. */
byte lease;                     /* the relay whose token it has, FREE or NOBODY */
bit lease_over;

/* The owners' locks: bits of the workers that believe they hold it, and of holders that are dead. */
byte holders[OWNERS];

/* --- what the properties are about -------------------------------------------------------- */

bit committed[ROWS];            /* the caller's transaction */
bit taken_effect[ROWS];
bit was_ready[ROWS];            /* it has been due once */
bit may_follow;                 /* job 0 may take effect after job 1 */
byte begun[ROWS];               /* runs that have begun, since it was staged or redriven */
byte redriven[ROWS];
bit calm;                       /* no more faults */
bit all_staged;

byte seen[3];                   /* by relay: see relay.pml */

#define OVERTAKEN(j) ((j) == 0 && taken_effect[1] && !may_follow)

/* A job takes effect. */
inline effect(j) {
    printf("      job %d takes effect\n", j);
    assert(committed[j]);       /* not before its commit, none of a transaction that was rolled back */
#ifdef TRANSACTIONAL
    assert(!taken_effect[j]);   /* exactly once */
#endif
    /* In the order of the commits. Where the lock fails, that holds for the first time. */
#if defined(LOCK_FAILS) && !defined(STRICT_ORDER)
    assert(taken_effect[j] || !OVERTAKEN(j));
#else
    assert(!OVERTAKEN(j));
#endif
    taken_effect[j] = 1
}

/* A worker writes the row of a job: it is there, and no dead letter. */
inline writes(j) {
    assert(row[j] == QUEUED);
    last_write(j)
}

#ifdef PUSH_BLIND               /* the relay's put of a row does not compare its version */
#define FORGET(j) skip
#else
#define FORGET(j) seen[1] = seen[1] & ~BIT(j); seen[2] = seen[2] & ~BIT(j)
#endif

inline look_at(j, when) {
    due[j] = (RELAYS -> when : NEVER);
    FORGET(j)
}

inline deletes(j) {
    printf("      job %d: the row is gone\n", j);
    row[j] = GONE; claim[j] = FREE; claimed_locked[j] = 0; lapsed[j] = 0; ready[j] = 0;
    attempts[j] = 0; begun[j] = 0; look_at(j, NEVER);
    assert(taken_effect[j])     /* a job is removed when it is done, and only then */
}

/* --- protections that are omitted in the runs that must fail ------------------------------ */

#ifdef CLAIM_BLIND              /* a claim is put without a look at the row */
#define MAY_CLAIM(j, w) true
#define WRITES(j) last_write(j)
#else
#ifdef TAKE_OVER_BLIND          /* a locked worker takes any claim over */
#define MAY_TAKE_OVER(j, w) (locked)
#else
#define MAY_TAKE_OVER(j, w) (locked && claimed_locked[j])
#endif
#define MAY_CLAIM(j, w) \
    (row[j] == QUEUED && ready[j] && !(claim[j] != FREE && !lapsed[j] && !MAY_TAKE_OVER(j, w)))
#endif

#ifdef REMOVE_BLIND             /* the run's transaction does not compare the token */
#define MAY_REMOVE(j, w) true
#else
#define MAY_REMOVE(j, w) (claim[j] == w)
#endif
#ifdef NOTE_BLIND               /* nor that of a failure */
#define MAY_NOTE(j, w) true
#else
#define MAY_NOTE(j, w) (claim[j] == w)
#endif

#ifdef PLACE_OF_LAST_WRITE      /* a job's place is the version of its latest write before its claim */
bit placed[2], first_is_1;
#define FIRST (first_is_1)
inline last_write(j) {
    first_is_1 = (j < 2 && !placed[j] && row[1] != ABSENT -> (j == 0) : first_is_1)
}
inline keep_place(j) { placed[j] = 1 }
#else                           /* ... that of the commit that has staged it */
#define FIRST 0
inline last_write(j) { skip }
inline keep_place(j) { skip }
#endif

#ifdef NOT_HELD_UP              /* an earlier job that has failed holds nobody up */
#define HOLDS_UP(j) false
#elif defined(BLOCKS)           /* `on_dead="block"` */
#define HOLDS_UP(j) ((row[j] == QUEUED && begun[j] > 0) || row[j] == LETTER)
#else
#define HOLDS_UP(j) (row[j] == QUEUED && begun[j] > 0)
#endif

/* --- the engine --------------------------------------------------------------------------- */

/* Without LIVE, it delivers any message at any time, any number of times, or never: also one that
 * was never sent. With LIVE it has messages, and faults until it is calm. */
#ifdef LIVE
bit message[ROWS];
#ifdef SAME_NAMES               /* its messages have the job's name: the engine swallows the second one */
bit asked_before[ROWS];
#define SWALLOWED(j) (asked_before[j])
#define REMEMBER(j) asked_before[j] = 1
#else
#define SWALLOWED(j) false
#define REMEMBER(j) skip
#endif
#define DELIVERED(j) (message[j])
inline deliver(j) {
    if
    :: message[j] = 0
    :: !calm -> skip                                /* it will deliver it again */
    fi
}

inline ask(j, took) {
    if
    :: SWALLOWED(j) -> took = 1                     /* a name that it knows is no error */
    :: !SWALLOWED(j) -> REMEMBER(j); message[j] = 1; took = 1
    :: !calm && !SWALLOWED(j) -> REMEMBER(j); took = 1          /* lost later */
    :: !calm && !SWALLOWED(j) -> REMEMBER(j); message[j] = 1; took = 0      /* its reply is lost */
    :: !calm -> took = 0                            /* the engine is down, or the sender is dead */
    fi
}
#else
#define DELIVERED(j) true
inline deliver(j) { skip }
inline ask(j, took) { if :: took = 1 :: took = 0 fi }
#endif

#include "worker.pml"
#include "relay.pml"

/* --- stage -------------------------------------------------------------------------------- */

inline put_job(j) {
    row[j] = QUEUED;
    if
    :: ready[j] = 1; was_ready[j] = 1; look_at(j, NOW)
    :: ready[j] = 0; look_at(j, LATER)              /* with `delay=` */
    fi;
    printf("      job %d is staged, ready %d\n", j, ready[j])
}

proctype Caller()
{
    byte job;
    bit took;
    do
    :: job < JOBS ->
        if
#ifdef STAGE_BEFORE             /* in a commit of its own, before the change */
        :: atomic { put_job(job) }; atomic {
            if
            :: committed[job] = 1; printf("caller: commits the change of job %d\n", job)
            :: printf("caller: rolls the change of job %d back\n", job)
            fi
        }
#elif defined(STAGE_AFTER)      /* ... after it */
        :: atomic { printf("caller: commits the change of job %d\n", job); committed[job] = 1 };
            if
            :: atomic { put_job(job) }
            :: atomic { !calm -> printf("caller: dies\n"); assert(!committed[job]) }    /* a lost job */
            fi
#else
        :: atomic { printf("caller: commits change and job\n"); put_job(job); committed[job] = 1 }
        :: atomic { printf("caller: rolls back\n") }
#endif
        fi;
        atomic {
            if
            :: row[job] == QUEUED -> ask(job, took)
            :: else
            fi;
            job++; took = 0
        }
    :: else -> break
    od;
    atomic { all_staged = 1; job = 0 }
}

/* --- dead letters ------------------------------------------------------------------------- */

#if OPERATORS
byte listed;                    /* bits: dead letters that a purge has read */

inline redrive(j) {
    printf("operator: redrives job %d\n", j);
    row[j] = QUEUED; redriven[j]++;
    attempts[j] = 0; begun[j] = 0; ready[j] = 1; was_ready[j] = 1;
    look_at(j, NOW); ask(j, took); took = 0
}

#define PURGED(j) \
    printf("operator: purges job %d\n", j); \
    assert(row[j] == LETTER);   /* no job that was redriven is lost */ \
    row[j] = GONE; attempts[j] = 0; begun[j] = 0

inline purge(j) {
    listed = listed & ~BIT(j);
#ifndef PURGE_BLIND             /* ... it deletes what it has listed */
    if
    :: row[j] != LETTER -> printf("operator: leaves job %d\n", j)
    :: else -> PURGED(j)
    fi
#else
    PURGED(j)
#endif
}

/* Two people: one may redrive, under the owner's lock, while the other purges. */
#define OPERATIONS(j) \
    :: atomic { row[j] == LETTER && redriven[j] < REDRIVES && MAY_LOCK(j) -> redrive(j) } \
    :: atomic { \
        row[j] == LETTER && !(listed & BIT(j)) -> \
        listed = listed | BIT(j); printf("operator: lists job %d for purge\n", j) \
    } \
    :: atomic { listed & BIT(j) -> purge(j) }

proctype Operator()
{
    bit took;
end_operator:
    do
    OPERATIONS(0)
#if JOBS > 1
    OPERATIONS(1)
#endif
#if JOBS > 2
    OPERATIONS(2)
#endif
    od
}
#endif

/* --- time --------------------------------------------------------------------------------- */

/* When it is calm: a claim and a lease last longer than what they are for. */
#define TIME_COMES(j) \
    ((claim[j] == NOBODY && !lapsed[j]) || (row[j] == QUEUED && !ready[j]) || due[j] == LATER)
#define LEASES_END ((lease == NOBODY && !lease_over) || (holders[0] & DEAD_HOLDER))

inline time_comes(j) {
    lapsed[j] = (claim[j] == NOBODY -> 1 : lapsed[j]);
    ready[j] = (row[j] == QUEUED -> 1 : 0); was_ready[j] = was_ready[j] | ready[j];
    due[j] = (due[j] == LATER -> NOW : due[j])
}

#define TIME_OF(j) \
    :: atomic { \
        !calm && claim[j] != FREE && !lapsed[j] -> \
        lapsed[j] = 1; printf("time: the claim of job %d is over\n", j) \
    } \
    :: atomic { \
        !calm && row[j] == QUEUED && !ready[j] -> \
        ready[j] = 1; was_ready[j] = 1; printf("time: job %d is ready\n", j) \
    } \
    :: atomic { !calm && due[j] == LATER && RELAYS -> due[j] = NOW; printf("time: job %d is due\n", j) }
#define TIME_OF_LOCK(o) \
    :: atomic { \
        !calm && (holders[o] & DEAD_HOLDER) -> \
        holders[o] = holders[o] & ~DEAD_HOLDER; printf("time: the lease of the lock is over\n") \
    }

/* Any time comes at any moment: durations and clocks do not matter. When it is calm, all come. */
proctype Time()
{
end_time:
    do
    TIME_OF(0)
#if JOBS > 1
    TIME_OF(1)
#endif
    TIME_OF_LOCK(0)
#if JOBS > 2
    TIME_OF(2)
    TIME_OF_LOCK(1)
#endif
    :: atomic {
        !calm && lease != FREE && !lease_over ->
        lease_over = 1; printf("time: the relay's lease is over\n")
    }
#ifdef LIVE
    :: atomic {
        calm && (TIME_COMES(0) || TIME_COMES(JOBS - 1) || LEASES_END) ->
        time_comes(0);
#if JOBS > 1
        time_comes(1);
#endif
        lease_over = (lease == NOBODY -> 1 : lease_over); holders[0] = holders[0] & ~DEAD_HOLDER
    }
#endif
    od
}

#ifdef LIVE
#define IS_SETTLED(j) \
    (row[j] == GONE || row[j] == LETTER || (row[j] == ABSENT && !committed[j]))
#define SETTLED (all_staged && IS_SETTLED(0) && IS_SETTLED(JOBS - 1))

/* Faults end at some moment, after any of them. */
active proctype Calm() { atomic { calm = 1; printf("faults: no more\n") } }

/* Then each committed job is done, or is a dead letter. */
ltl no_job_is_lost { [] (calm -> <> SETTLED) }
#endif

init {
    atomic {
        byte n;
        run Caller();
        run Time();
        for (n : 1 .. WORKERS) { run Worker(n) }
#if RELAYS
        for (n : 1 .. RELAYS) { run Relay(n) }
#endif
#if OPERATORS
        run Operator();
#endif
        n = 0
    }
}
