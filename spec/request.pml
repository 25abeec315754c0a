/* Idempotent requests: one key, sent any number of times, completed by the server, reaped.
 *
 * Run by `make spec`, in several variants (checks.py). README.md names the function of each step.
 *
 * A step is one commit of Datastore, or one call of the provider. Nothing is assumed of clients;
 * with LOCK_FAILS nothing of the lock. Anyone may be paused, or die, between any two steps. A commit
 * without a reply is a server that dies after it.
 */

#ifndef SERVERS
#define SERVERS 2               /* that serve clients */
#endif
#define ALL (SERVERS + 1)       /* and the completer, the last one */

/* --- the row ------------------------------------------------------------------------------ */

#define ABSENT 0
#define OPEN 1
#define DONE 2
byte row;
byte token;                     /* the server of the attempt that may write; 0: none */
bit claimed_locked, lapsed;     /* now is after `claimed_until` */
bit expired;                    /* now is after `expire_at` */
bit phase_done, asked, replied; /* the points */
#define PAID 1
#define REFUSED 2
byte answer;
bit fresh[ALL + 1];             /* the row is as that server has read or written it last */

/* --- around it ---------------------------------------------------------------------------- */

byte holder;                    /* of the user's lock */
#define DEAD 7
byte charges, entities, jobs;   /* of this use of the key */
byte decision;                  /* the provider's, by the key of the call */
byte given;                     /* the answer that a client has got */
byte each;                      /* 0 outside of loops */
bit old[ALL + 1];               /* its attempt is of an earlier use of the key */

/* --- protections that are omitted in the runs that must fail ------------------------------ */

#ifdef TOKEN_BLIND              /* a transaction does not compare the token */
#define IS_MINE(w) true
#else
#define IS_MINE(w) (row == OPEN && token == w)
#endif
#ifdef FENCE_BLIND              /* a put of the row alone replaces any version */
#define IS_FRESH(w) true
#else
#define IS_FRESH(w) fresh[w]
#endif
#ifdef INSERT_BLIND             /* the key is stored by a plain put */
#define MAY_INSERT true
#else
#define MAY_INSERT (row == ABSENT)
#endif
#ifdef TAKE_FINISHED            /* an attempt takes over without a look at the answer */
#define IS_FINISHED false
#else
#define IS_FINISHED (row == DONE)
#endif
#ifdef REAP_BLIND               /* the reaper removes what it has listed */
#define MAY_REMOVE_ROW true
#else
#define MAY_REMOVE_ROW (row == DONE && expired)
#endif
#ifdef KEPT_FOR_EVER            /* no answer expires */
#define MAY_EXPIRE false
#define MAY_LIST false
#elif defined(OPEN_EXPIRES)     /* an unfinished row has an expiry, too */
#define MAY_EXPIRE (row != ABSENT)
#define MAY_LIST expired
#undef MAY_REMOVE_ROW
#define MAY_REMOVE_ROW expired
#else
#define MAY_EXPIRE (row == DONE)
#define MAY_LIST (row == DONE && expired)
#endif

/* --- writes ------------------------------------------------------------------------------- */

inline written(w) {
    for (each : 1 .. ALL) { fresh[each] = 0 };
    each = 0;
    fresh[w] = 1
}

/* The row of a new use of the key. No unfinished request is replaced. */
inline begins(w) {
    assert(row != OPEN);
    printf("server %d: stores the key\n", w);
    row = OPEN; expired = 0; answer = 0;
    phase_done = 0; asked = 0; replied = 0;
    charges = 0; entities = 0; jobs = 0; decision = 0; given = 0;
    written(w);
    for (each : 1 .. ALL) { old[each] = 1 };
    each = 0;
    claims(w)
}

inline claims(w) {
    token = w; claimed_locked = locked; lapsed = 0; written(w);
    old[w] = 0;
    knows_phase = phase_done; knows_reply = replied
}

inline does_phase(w) {
    printf("server %d: the phase\n", w);
    entities++; assert(entities == 1);
#ifndef POINTS_FORGOTTEN        /* the point is not stored with it */
    phase_done = 1;
#endif
    knows_phase = 1; written(w)
}

/* A put of the row as this server knows it. */
inline puts(w) {
    assert(row == OPEN);        /* a finished request stays so */
    token = w; phase_done = knows_phase; asked = 1; replied = knows_reply; written(w)
}

/* The answer is stored: with it all that it stands for, once. */
inline ends(w, with) {
    printf("server %d: stores the answer %d\n", w, with);
    assert(row == OPEN);
    row = DONE; answer = with; token = 0; lapsed = 0; claimed_locked = 0; written(w);
    jobs = jobs + (with == PAID);
    assert(entities == 1 && jobs == (with == PAID) && charges == (with == PAID))
}

inline gives() {
    printf("      the client gets %d\n", answer);
    assert(given == 0 || given == answer);
    given = answer
}

/* --- a server ----------------------------------------------------------------------------- */

#ifdef LOCK_FAILS               /* degraded, forgotten, or ended while its holder is paused */
#define MAY_LOCK_USER true
#else
#define MAY_LOCK_USER (holder == 0)
#endif

inline forget() { locked = 0; found = 0; knows_phase = 0; knows_reply = 0 }

/* It dies, or loses its process: claim and lock stay. */
#define DIES(w) \
    printf("server %d: dies\n", w); \
    holder = (holder == w -> DEAD : holder); fresh[w] = 0; old[w] = 0; forget(); goto end_idle

#define LEAVES(w) \
    holder = (holder == w -> 0 : holder); fresh[w] = 0; old[w] = 0; forget(); goto end_idle

#define TAKEN_OVER(w) printf("server %d: was taken over\n", w); LEAVES(w)

proctype Server(byte w)
{
    bit locked, found, knows_phase, knows_reply;

end_idle:
look_up:
    if
    :: atomic { row == DONE && !expired && w != ALL -> gives(); goto end_idle }
    :: atomic { row == OPEN -> found = 1 }
    :: atomic { (row == ABSENT || expired) && w != ALL -> found = 0 }
    fi;

lock:
    if
    :: atomic {
        MAY_LOCK_USER -> locked = 1; holder = (holder == 0 -> w : holder);
        printf("server %d: has the lock\n", w)
    }
    :: atomic { w == ALL || !MAY_LOCK_USER -> LEAVES(w) }       /* busy: refused, or timed out */
#ifdef LOCK_FAILS
    :: atomic { true -> printf("server %d: has no lock\n", w) }
#endif
    fi;

insert:
    if
    :: atomic { DIES(w) }
    :: !found -> goto first_commit                  /* nobody has to see it before */
    :: atomic { !found && MAY_INSERT -> begins(w); goto phase }
    :: atomic { found || !MAY_INSERT -> skip }
    fi;

take:
    if
    :: atomic { DIES(w) }
    :: atomic { row == ABSENT || expired -> begins(w) }
    :: atomic { IS_FINISHED && !expired -> gives(); LEAVES(w) }
    :: atomic {
        row == OPEN && !expired && token && !lapsed && !(claimed_locked && locked) ->
        printf("server %d: it is running\n", w); LEAVES(w)
    }
    :: atomic {
        row != ABSENT && !expired && !IS_FINISHED &&
        !(row == OPEN && token && !lapsed && !(claimed_locked && locked)) ->
        printf("server %d: takes over\n", w); row = OPEN; claims(w)
    }
    fi;

phase:
    if
    :: atomic { DIES(w) }
    :: atomic { knows_phase -> skip }
    :: atomic { !knows_phase && !IS_MINE(w) -> TAKEN_OVER(w) }
    :: atomic { !knows_phase && IS_MINE(w) -> does_phase(w) }
    fi;

    goto ask;

first_commit:
    if
    :: atomic { DIES(w) }
    :: atomic { !MAY_INSERT -> TAKEN_OVER(w) }
    :: atomic { MAY_INSERT -> begins(w); does_phase(w) }
    fi;

ask:
    if
    :: atomic { DIES(w) }
    :: atomic { knows_reply -> goto last }
    :: atomic { !knows_reply && asked && fresh[w] -> skip }
    :: atomic { !knows_reply && !asked && IS_FRESH(w) -> puts(w) }
    :: atomic { !knows_reply && !IS_FRESH(w) -> TAKEN_OVER(w) }
    fi;

call:
    if
    :: atomic { DIES(w) }
    :: atomic { old[w] -> printf("server %d: calls, by an old key\n", w) }
#ifdef KEY_IGNORED              /* the provider charges whoever asks */
    :: atomic { !old[w] -> decision = PAID; charges++; assert(charges == 1) }
#elif defined(REFUSAL_FORGOTTEN) /* it remembers its charges alone */
    :: atomic { !old[w] && decision != PAID -> decision = REFUSED; printf("server %d: is refused\n", w) }
    :: atomic {
        !old[w] -> charges = (decision == PAID -> charges : charges + 1);
        decision = PAID; printf("server %d: charges\n", w)
    }
#else
    :: atomic { !old[w] && decision == 0 -> decision = REFUSED; printf("server %d: is refused\n", w) }
    :: atomic {
        !old[w] && decision == 0 ->
        decision = PAID; charges++; printf("server %d: charges\n", w)
    }
    :: atomic { !old[w] && decision -> skip }
#endif
    fi;
    assert(old[w] || charges <= 1);
    assert(old[w] || answer != REFUSED || charges == 0);

record:
    if
    :: atomic { DIES(w) }
    :: atomic { !IS_FRESH(w) -> TAKEN_OVER(w) }
    :: atomic { IS_FRESH(w) && decision == PAID -> knows_reply = 1; puts(w) }
    :: atomic { IS_FRESH(w) && decision == REFUSED -> ends(w, REFUSED); goto send }
    fi;

last:
    if
    :: atomic { DIES(w) }
    :: atomic { !IS_MINE(w) -> TAKEN_OVER(w) }
    :: atomic { IS_MINE(w) -> ends(w, PAID) }
    fi;

send:
    if
    :: atomic { DIES(w) }
    :: atomic { row == DONE && !old[w] && w != ALL -> gives(); LEAVES(w) }
    :: atomic { row != DONE || old[w] || w == ALL -> LEAVES(w) }
    fi
}

/* --- the reaper, and time ----------------------------------------------------------------- */

proctype Reaper()
{
end_reaper:
    atomic { MAY_LIST -> printf("reaper: lists the row\n") };
remove_row:
    atomic {
        if
        :: MAY_REMOVE_ROW && row != ABSENT ->
            printf("reaper: removes the row\n");
            assert(row == DONE);                    /* no unfinished request is removed */
            row = ABSENT; token = 0; expired = 0; answer = 0; given = 0;
            phase_done = 0; asked = 0; replied = 0; claimed_locked = 0; lapsed = 0;
            written(0); fresh[0] = 0;
            for (each : 1 .. ALL) { old[each] = 1 };
            each = 0
                :: else
        fi;
        goto end_reaper
    }
}

proctype Time()
{
end_time:
    do
    :: atomic { row == OPEN && token && !lapsed -> lapsed = 1; printf("time: a claim is over\n") }
    :: atomic { MAY_EXPIRE && !expired -> expired = 1; printf("time: the answer has expired\n") }
    :: atomic { holder == DEAD -> holder = 0; printf("time: the lease of the lock is over\n") }
    od
}

init {
    atomic {
        byte n;
        for (n : 1 .. ALL) { run Server(n) }
        run Reaper();
        run Time();
        n = 0
    }
}
