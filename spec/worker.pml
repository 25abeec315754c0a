/* A worker: `userlock.outbox.worker`. Included in outbox.pml. */

/* The owner's lock. A request of the owner may have it at any time, so a worker may always find it
 * busy. LOCK_FAILS: it is degraded, forgotten, or has ended while its holder is paused. */
#ifdef LOCK_FAILS
#define MAY_LOCK(j) (!calm || holders[OWNER(j)] == 0)
#define DEAD_HOLDER 0           /* keeps nobody out */
#else
#define MAY_LOCK(j) (holders[OWNER(j)] == 0)
#define DEAD_HOLDER BIT(0)
#endif

#define RUNNABLE(j) (row[j] == QUEUED && ready[j])
/* A run that begins while job 0 was never due, or is dead, may precede it. */
#define PRECEDES_JOB_0 (!was_ready[0] || (row[0] == LETTER && !IS_BLOCKING))
#ifdef BLOCKS
#define IS_BLOCKING true
#else
#define IS_BLOCKING false
#endif

/* The owner's queue as a worker has read it, by places: `FIRST`, then the other one. */
#define OTHER (1 - FIRST)
#ifdef SMALL_WINDOW             /* fewer rows than there are: those that were staged first */
#define IN_WINDOW(j) ((j) != 1 || row[0] == ABSENT || row[0] == GONE)
#else
#define IN_WINDOW(j) true
#endif
#define FIRST_IS_NEXT (RUNNABLE(FIRST) && IN_WINDOW(FIRST))
#define SECOND_IS_NEXT \
    (!FIRST_IS_NEXT && !HOLDS_UP(FIRST) && RUNNABLE(OTHER) && IN_WINDOW(OTHER))

/* What it has read of the job that is left. */
inline remembers(j) {
    has_read = (row[j] == QUEUED);
    read_ready = (row[j] == QUEUED && ready[j]);
    read_begun = (row[j] == QUEUED && begun[j] > 0)
}
/* By that, job j is next: it was ready then, or its time has come since. */
#define IS_NEXT_AS_READ(j) \
    (has_read && (read_ready || (read_begun -> ready[j] : was_ready[j])))

/* It dies: its claim and its lock stay as they are. */
#define DIES(w) \
    !calm -> printf("worker %d: dies\n", w); \
    claim[job] = (claim[job] == w -> NOBODY : claim[job]); \
    holders[OWNER(until)] = (holders[OWNER(until)] & BIT(w) \
        -> (holders[OWNER(until)] & ~BIT(w)) | DEAD_HOLDER : holders[OWNER(until)]); \
    forget(); goto end_idle

inline forget() {
    until = 0; job = 0; locked = 0; precedes = 0; has_read = 0; read_ready = 0; read_begun = 0
}

inline leave(w) {
    printf("worker %d: leaves\n", w);
    holders[OWNER(until)] = holders[OWNER(until)] & ~BIT(w);
    forget(); goto end_idle
}

/* The function is called. */
inline runs() {
    may_follow = (job == 1 && !taken_effect[1] -> precedes : may_follow);
    effect(job)
}

#define HAS_NEXT (OWNER(job) == 0 && IS_NEXT_AS_READ(1 - job))

/* A job is done. The worker runs the later ones up to that of its message, and some more, by
 * the queue that it has read before. It leaves after a failure, or where the lock is busy again. */
inline done(w) {
    if
    :: job == until || !calm || !HAS_NEXT -> leave(w)
    :: HAS_NEXT -> holders[OWNER(until)] = holders[OWNER(until)] & ~BIT(w); goto yielded
    fi
}

inline puts_off(j) {
    printf("      job %d is put off\n", j);
#ifdef PUT_OFF_BLIND            /* it puts the row that it has read before */
    assert(row[j] != GONE);     /* a finished job never comes back */
#endif
    writes(j); look_at(j, LATER);
    if
    :: claim[j] != FREE && !lapsed[j]               /* it runs: left to the relay */
    :: else -> ask(j, took); took = 0
    fi;
#ifdef BUSY_SPENDS
    attempts[j] = (attempts[j] > ATTEMPTS -> attempts[j] : attempts[j] + 1)
#endif
}

/* A message of a job whose row is there. */
inline receives(w, j) {
    deliver(j); until = j;
    if
    :: MAY_LOCK(j) ->
        locked = 1; holders[OWNER(j)] = holders[OWNER(j)] | BIT(w);
        printf("worker %d: message of job %d, has the lock\n", w, j)
#ifdef LOCK_FAILS
    :: !calm -> printf("worker %d: message of job %d, the lock is degraded\n", w, j)
#endif
    :: !calm || !MAY_LOCK(j) ->
        printf("worker %d: message of job %d, the owner is busy\n", w, j);
#ifdef PUT_OFF_BLIND
        goto put_off
#else
        puts_off(j); forget(); goto end_idle
#endif
    fi
}

proctype Worker(byte w)
{
    byte until, job;            /* the message's job; the one that is run */
    bit locked, precedes, took, has_read, read_ready, read_begun;

end_idle:
    if
    :: atomic { DELIVERED(0) && row[0] == QUEUED -> receives(w, 0) }
#if JOBS > 1
    :: atomic { DELIVERED(1) && row[1] == QUEUED -> receives(w, 1) }
#endif
#if JOBS > 2
    :: atomic { DELIVERED(2) && row[2] == QUEUED -> receives(w, 2) }
#endif
    fi;

next:
    atomic {
        if
        :: OWNER(until) == 0 && FIRST_IS_NEXT -> job = FIRST; remembers(OTHER)
#if JOBS > 1
        :: OWNER(until) == 0 && SECOND_IS_NEXT -> job = OTHER; remembers(FIRST)
        :: OWNER(until) == 1 && RUNNABLE(JOBS - 1) -> job = JOBS - 1
#endif
        :: else ->              /* one that is ready waits only for an earlier one that was */
            assert(!RUNNABLE(until) || (until == 1 && row[0] != GONE && was_ready[0]));
            leave(w)
        fi;
        precedes = (job == 1 && PRECEDES_JOB_0);
        printf("worker %d: the next one is job %d\n", w, job)
    };

    goto to_claim;

yielded:                        /* to those who wait for the lock */
    if
    :: atomic { !calm || !HAS_NEXT -> leave(w) }
    :: atomic {
        HAS_NEXT && MAY_LOCK(until) ->
        holders[OWNER(until)] = holders[OWNER(until)] | (locked -> BIT(w) : 0);
        job = 1 - job; has_read = 0; read_ready = 0; read_begun = 0;
        precedes = (job == 1 && PRECEDES_JOB_0);
        printf("worker %d: the next one is job %d\n", w, job)
    }
    fi;

to_claim:
    if                          /* claim */
    :: atomic { DIES(w) }
    :: atomic { !MAY_CLAIM(job, w) -> leave(w) }
    :: atomic {
        MAY_CLAIM(job, w) -> printf("worker %d: claims job %d\n", w, job);
        /* Two run it only when the time of a claim is over, or both have the lock. */
        assert(claim[job] == FREE || claim[job] == NOBODY || lapsed[job] ||
               ((holders[OWNER(job)] & BIT(w)) && (holders[OWNER(job)] & BIT(claim[job]))));
        writes(job); keep_place(job);
        claim[job] = w; claimed_locked[job] = locked; lapsed[job] = 0; look_at(job, LATER);
        attempts[job] = (attempts[job] > ATTEMPTS -> attempts[job] : attempts[job] + 1);
        begun[job] = (begun[job] > ATTEMPTS -> begun[job] : begun[job] + 1);
        if
        :: attempts[job] > ATTEMPTS -> goto note    /* its runs ended with their processes */
        :: else
        fi
    }
    fi;

    if
    :: atomic { DIES(w) }
    :: atomic { !calm -> printf("worker %d: job %d fails\n", w, job); goto note }
#ifdef TRANSACTIONAL            /* call_and_remove */
    :: atomic { !MAY_REMOVE(job, w) -> printf("worker %d: has lost its claim\n", w); leave(w) }
    :: atomic {
        MAY_REMOVE(job, w) -> printf("worker %d: runs and removes job %d\n", w, job);
        runs(); deletes(job);
        if
        :: done(w)
        :: !calm -> goto note                       /* the commit's reply is lost */
        fi
    }
    fi;
#else
    :: atomic { true; printf("worker %d: runs job %d\n", w, job); runs() }
    fi;

    if
    :: atomic { DIES(w) }
    :: atomic { !calm -> printf("worker %d: job %d fails late\n", w, job); goto note }
    :: atomic { !MAY_REMOVE(job, w) -> printf("worker %d: has lost its claim\n", w); leave(w) }
    :: atomic {                 /* remove */
        MAY_REMOVE(job, w) -> printf("worker %d: removes job %d\n", w, job); deletes(job); done(w)
    }
    fi;
#endif

note:
    if
    :: atomic { DIES(w) }
    :: atomic { !MAY_NOTE(job, w) -> printf("worker %d: has lost its claim\n", w); leave(w) }
    :: atomic {
        MAY_NOTE(job, w) -> writes(job);
        claim[job] = FREE; claimed_locked[job] = 0; lapsed[job] = 0; ready[job] = 0;
        if
        :: attempts[job] >= ATTEMPTS ->
            printf("worker %d: job %d is dead\n", w, job);
            assert(begun[job] >= ATTEMPTS);         /* a busy owner has spent none of them */
            row[job] = LETTER; look_at(job, NEVER)
        :: else ->
            printf("worker %d: job %d will run again\n", w, job);
            look_at(job, LATER); ask(job, took); took = 0
#ifdef UNKNOWN_JOBS             /* of another version of the app: it spends no attempt */
        :: !calm ->
            printf("worker %d: job %d is unknown\n", w, job);
            attempts[job]--;
            look_at(job, LATER); ask(job, took); took = 0
#endif
        fi;
        leave(w)
    }
    fi

#ifdef PUT_OFF_BLIND
    ;
put_off:
    atomic { puts_off(until); forget(); goto end_idle }
#endif
}
