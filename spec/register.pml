/* A lease store's register for one lock, and the meaning of its record.
 *
 * The five verbs of `userlock.lock.store.LeaseStore` are atomic steps here. The model has no
 * bytes, only their meaning as `userlock.lock.record.Record` parses them.
 *
 * Versions. A number that grows without end would make the state space infinite. Only one fact
 * about a version matters: whether it is still the record's. The model keeps that bit for each
 * client (`current`) and for the late command.
 *
 * Time. There is no clock, only the promised order: a holder's deadline passes before its record
 * lapses. A pause past the lease, of any length, is the deadline's passing between any two steps
 * (`Time` in lock.pml).
 */

#define CLIENTS 4
#define BATCH 4                 /* clients 1 to 3 are interactive, 4 is batch */
#define BIT(c) (1 << (c))

/* Tokens. A client begins with its first token. If it has to wait, it continues with another one
 * (`Claim.afresh`), because the command with the first one may be late. */
#define NOBODY 0
#define FIRST(c) ((c) + CLIENTS)
#define OWNER(token) ((token) > CLIENTS -> (token) - CLIENTS : (token))
#define RESERVER 9              /* the token of a client that reserves a free lock */

typedef Record {
    bit there;
    bit lapsed;                 /* its time to live is over */
    bit released;               /* it contains "= holder" */
    byte holder;                /* a token */
    byte left_by;               /* "< token released", or NOBODY */
    byte queue[CLIENTS];        /* the waiters, in the order of the log; 0: none */
    byte aged;                  /* "^": bits of those that rank with interactive */
    byte reserved_for           /* "?": bits of those that may take the free lock */
};

Record rec;
byte current;                   /* bits: clients that know the record's version */
byte lost_queue[CLIENTS];       /* the queue when the store lost its data */

/* Deadlines, by the holders' own clocks. */
byte deadline;                  /* bits: the end of the lease is in the future */
byte asked;                     /* bits: so is that of the requested extension */

byte confirmed;                 /* bits: holds a lease that the store has granted */
byte away;                      /* bits: killed, or finished */

/* The one command that may be late: sent, without a reply, and executed at any time. */
mtype = { NOTHING, CREATE, SWAP, REMOVE, JOIN, DONE };
mtype late = NOTHING;
byte late_token;
bit late_passing, late_current;

/* The number of accidents that may still happen, of any kind and at any moment. */
byte accidents = ACCIDENTS;
#define ACCIDENT(kind) (accidents > 0 && (kind))

/* Replies, and temporary variables: none of them outlives the step. */
mtype = { YES, NO, LOST, SLOW };
mtype ans = NOTHING;
#define THEN -> ans = NOTHING;
byte i, n, w, gone, who;

#define FREE (rec.lapsed || rec.released)
#define LIVE (rec.there && !FREE)
#define EMPTY (rec.queue[0] == NOBODY)
#define OURS(token) (rec.holder == (token) && !FREE)
#define URGENT(c) ((c) != BATCH || (rec.aged & BIT(BATCH)) != 0)

/* Another client's lease is valid: only its owner may end, shorten or lengthen it. */
#define UNTOUCHED_BY(c) (!LIVE || OWNER(rec.holder) == (c))

/* --- the queue ---------------------------------------------------------------------------- */

#define POSITION(c) \
    (rec.queue[0] == (c) -> 0 : (rec.queue[1] == (c) -> 1 : \
    (rec.queue[2] == (c) -> 2 : (rec.queue[3] == (c) -> 3 : CLIENTS))))
#define IN_QUEUE(c) (POSITION(c) < CLIENTS)

#define BEFORE(n, c) \
    (POSITION(c) == CLIENTS || (URGENT(rec.queue[n]) && !URGENT(c)) || \
    (URGENT(rec.queue[n]) == URGENT(c) && n < POSITION(c)))
#define IF_AHEAD(n, c) \
    (rec.queue[n] != NOBODY && rec.queue[n] != (c) && BEFORE(n, c) -> BIT(rec.queue[n]) : 0)
/* The waiters that are served before `c` (`Record.tokens_ahead_of`), in bits: all, if it is not queued. */
#define AHEAD_OF(c) (IF_AHEAD(0, c) | IF_AHEAD(1, c) | IF_AHEAD(2, c) | IF_AHEAD(3, c))
/* All waiters; no client has the number 20. */
#define ALL_WAITERS AHEAD_OF(20)

/* Remove the clients in `gone` from the queue. */
inline drop_from_queue() {
    d_step {
        i = 0; n = 0;
        do
        :: i < CLIENTS ->
            w = rec.queue[i];
            rec.queue[i] = NOBODY;
            if
            :: w != NOBODY && !(gone & BIT(w)) -> rec.queue[n] = w; n++
            :: else
            fi;
            i++
        :: else -> break
        od;
        rec.aged = rec.aged & ~gone;
        i = 0; n = 0; w = 0; gone = 0
    }
}

inline add_to_queue(c) {
    d_step {
        i = 0;
        do
        :: rec.queue[i] == NOBODY -> rec.queue[i] = c; break
        :: rec.queue[i] == c -> break               /* a repeated line has no further effect */
        :: else -> i++
        od;
        i = 0
    }
}

/* --- the verbs, as the store executes them ------------------------------------------------ */

inline changed() {
    current = 0; late_current = 0
}

inline forget_record() {
    rec.there = 0; rec.lapsed = 0; rec.released = 0; rec.holder = NOBODY; rec.left_by = NOBODY;
    gone = 255; drop_from_queue();
    rec.reserved_for = 0;
    changed()
}

inline do_create(token) {
    if
    :: rec.there -> ans = NO
    :: else ->
        SERVED(OWNER(token));
        rec.there = 1; rec.holder = token;
        changed();
        AFTER_RESTART
        lost_queue[0] = 0; lost_queue[1] = 0; lost_queue[2] = 0; lost_queue[3] = 0;
        ans = YES
    fi
}

inline may_be_missing(n, c) {
    if
    :: true
    :: rec.queue[n] != NOBODY && rec.queue[n] != c -> gone = gone | BIT(rec.queue[n])
    fi
}

/* `LeaseProtocol.begin`: with the queue as it was last read. That may be long ago, so any of its
 * waiters may be missing. */
inline do_begin(c) {
    if
    :: rec.there
    :: else ->
        rec.queue[0] = lost_queue[0]; rec.queue[1] = lost_queue[1];
        rec.queue[2] = lost_queue[2]; rec.queue[3] = lost_queue[3]
    fi;
    do_create(c);
    if
    :: ans == YES ->
        gone = BIT(c);
        may_be_missing(0, c); may_be_missing(1, c); may_be_missing(2, c); may_be_missing(3, c);
        drop_from_queue()
    :: else
    fi
}

/* `Record.succeeded_by`: the claim takes over a free record; with `passing` it removes the waiters
 * ahead. */
inline do_succeed(token, passing) {
    assert(FREE);
    PASSED(passing -> AHEAD_OF(OWNER(token)) : 0);
    SERVED(OWNER(token));
    gone = BIT(OWNER(token)) | (passing -> AHEAD_OF(OWNER(token)) : 0);
    if
    :: rec.reserved_for                             /* a client that reserves has not held the lock */
    :: !rec.reserved_for && rec.released -> rec.left_by = rec.holder
    :: else -> rec.left_by = NOBODY
    fi;
    drop_from_queue();
    rec.holder = token; rec.released = 0; rec.lapsed = 0; rec.reserved_for = 0;
    changed();
    ans = YES
}

/* `Record.reserved_by`: no holder; the queued waiters may take the lock until this lapses. */
inline do_reserve(c) {
    assert(FREE);
    if
    :: rec.reserved_for
    :: !rec.reserved_for && rec.released -> rec.left_by = rec.holder
    :: else -> rec.left_by = NOBODY
    fi;
    gone = BIT(c);
    drop_from_queue();
    rec.holder = RESERVER; rec.released = 1; rec.lapsed = 0; rec.reserved_for = ALL_WAITERS;
    changed();
    ans = YES
}

/* The same record with a new time to live (`LeaseProtocol.extend`). */
inline do_extend(c) {
    assert(UNTOUCHED_BY(c));
    rec.lapsed = 0;
    changed();
    ans = YES
}

inline do_remove(c) {
    assert(UNTOUCHED_BY(c));
    forget_record();
    ans = YES
}

inline do_join(c) {
    if
    :: rec.there -> ENTERS_QUEUE(c); add_to_queue(c); changed(); ans = YES
    :: else -> ans = NO
    fi
}

/* "= token": of the holder, or of a waiter that times out. Without effect in another record. */
inline do_done(token) {
    if
    :: !rec.there -> ans = NO
    :: else ->
        rec.released = rec.released || rec.holder == token;
        gone = (token <= CLIENTS -> BIT(token) : 0);
        drop_from_queue();
        changed();
        ans = YES
    fi
}

/* --- the clients' commands ---------------------------------------------------------------- */

/* The reply is lost, before or after the command was executed. Or it is too late, and so perhaps
 * is the command. */
#define SENT(command, what, token, passing) \
    if \
    :: command \
    :: ACCIDENT(LOST_REPLIES) -> accidents--; ans = LOST \
    :: ACCIDENT(LOST_REPLIES) -> accidents--; command; current = current & ~BIT(OWNER(token)); \
        ans = LOST \
    :: ACCIDENT(SLOW_REPLIES) && late == NOTHING -> \
        accidents--; late = what; late_token = token; late_passing = passing; \
        late_current = ((current & BIT(OWNER(token))) != 0); \
        ans = SLOW \
    fi

/* A read changes nothing: its reply is lost, or not. */
inline read() {
    if
    :: rec.there -> ans = YES
    :: !rec.there -> ans = NO
    :: ACCIDENT(LOST_REPLIES) -> accidents--; ans = LOST
    fi
}

inline know_version(c) { current = current | BIT(c) }
inline remember_version(c) { current = current | (ans == YES -> BIT(c) : 0) }

inline create(c, token) { SENT(do_create(token); remember_version(c), CREATE, token, 0) }
inline begin_again(c) { SENT(do_begin(c); remember_version(c), CREATE, c, 0) }
inline join(c) { SENT(do_join(c); waiting = waiting | (ans == YES -> BIT(c) : 0), JOIN, c, 0) }
inline done(c, token) { SENT(do_done(token), DONE, token, 0) }

/* A command that names a version is refused if the record has another one. */
#define NAMED(c, command) \
    if \
    :: current & BIT(c) -> command \
    :: else -> ans = NO \
    fi

inline succeed(c, token, passing) {
    SENT(NAMED(c, do_succeed(token, passing); remember_version(c)), SWAP, token, passing)
}
inline reserve(c) { SENT(NAMED(c, do_reserve(c)), NOTHING, c, 0) }
inline extend(c) { SENT(NAMED_TO_EXTEND(c, do_extend(c); remember_version(c)), NOTHING, c, 0) }
inline remove(c, token) { SENT(NAMED_TO_REMOVE(c, do_remove(c)), REMOVE, token, 0) }

/* The extension was granted; or it was not, or that is unknown. */
inline extension_granted(c) { deadline = (deadline & ~BIT(c)) | (asked & BIT(c)); asked = asked & ~BIT(c) }
inline extension_failed(c) { asked = asked & ~BIT(c) }
