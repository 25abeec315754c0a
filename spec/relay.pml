/* A relay: `userlock.outbox.relay`. Included in outbox.pml. One shard; a batch has all its jobs. */

#define IS_DUE(j) (row[j] == QUEUED && due[j] == NOW)
#define ANY_IS_DUE (IS_DUE(0) || (JOBS > 1 && IS_DUE(JOBS - 1)) || (JOBS > 2 && IS_DUE(JOBS / 2)))

#define HAS_LEASE(r) (lease == r)

/* It dies, and its lease stays as it is. */
#define RELAY_DIES(r) \
    !calm -> printf("relay %d: dies\n", r); \
    assert(!unasked);           /* what it has pushed back, an engine was asked for */ \
    lease = (lease == r -> NOBODY : lease); seen[r] = 0; goto end_idle

/* `seen`: the jobs of the batch that an engine has taken, as long as their `due` is the same. */
inline wake_one(r, j) {
    if
    :: IS_DUE(j) ->
        ask(j, took); printf("relay %d: wakes job %d, taken %d\n", r, j, took);
        seen[r] = (took -> seen[r] | BIT(j) : seen[r]); took = 0
    :: else
    fi
}

inline read_one(r, j) { seen[r] = (IS_DUE(j) -> seen[r] | BIT(j) : seen[r]) }

#ifdef PUSH_FIRST
#define NOTE_UNASKED unasked = 1
#else
#define NOTE_UNASKED skip
#endif

inline push_back_one(r, j) {
    if
    :: seen[r] & BIT(j) ->
        printf("relay %d: pushes job %d back\n", r, j);
        writes(j); look_at(j, LATER); NOTE_UNASKED
    :: else
    fi
}

#if JOBS == 1
#define FOR_ALL(step, r) step(r, 0)
#elif JOBS == 2
#define FOR_ALL(step, r) step(r, 0); step(r, 1)
#else
#define FOR_ALL(step, r) step(r, 0); step(r, 1); step(r, 2)
#endif

inline push_back(r) {
    lease_over = (lease == r -> 0 : lease_over);
    FOR_ALL(push_back_one, r);
    seen[r] = 0
}

proctype Relay(byte r)
{
    bit took, unasked;

end_idle:
    atomic {                    /* is_due, take */
        ANY_IS_DUE && (lease == FREE || lease == r || lease_over) ->
        printf("relay %d: takes the lease\n", r);
        lease = r; lease_over = 0
    };

read:                           /* and wake */
    if
    :: atomic { RELAY_DIES(r) }
    :: atomic { !ANY_IS_DUE -> goto give_back }
#ifndef PUSH_FIRST
    :: atomic { ANY_IS_DUE -> FOR_ALL(wake_one, r) }
    fi;
#else                           /* the batch is pushed back before it is woken */
    :: atomic { ANY_IS_DUE -> FOR_ALL(read_one, r) }
    fi;
#endif

    if
    :: atomic { RELAY_DIES(r) }
    :: atomic { push_back(r) }
    fi;
#ifdef PUSH_FIRST
    if
    :: atomic { RELAY_DIES(r) }
    :: atomic { true; unasked = 0 }
    fi;
#endif
    if
    :: atomic { HAS_LEASE(r) -> goto read }
    :: atomic { !HAS_LEASE(r) -> printf("relay %d: has lost its lease\n", r); goto end_idle }
    fi;

give_back:
    if
    :: atomic { RELAY_DIES(r) }
    :: atomic {
        true;
        lease = (lease == r -> FREE : lease); lease_over = (lease == FREE -> 0 : lease_over);
        printf("relay %d: gives the lease back\n", r); goto end_idle
    }
    fi
}
