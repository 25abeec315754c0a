/* A lease store's register for one lock, and what its record means.
 *
 * The five verbs of `userlock.lock.store.LeaseStore` are atomic steps here. A
 * record's bytes are not modelled but what `userlock.lock.record.Record`
 * understands of them.
 *
 * Versions. A number that goes up without end would make the state space
 * infinite. What matters of a version is whether it is still the record's, so
 * that bit is kept for each client (`current`) and for the command that is late.
 *
 * Time. There is no clock, only the order that is promised: a holder's deadline
 * passes before its record lapses. So a pause past the lease, however long, is
 * the deadline's passing between any two steps (`Time` in lock.pml).
 */

#define CLIENTS 4
#define BATCH 4                 /* clients 1 to 3 are people, 4 is a batch worker */
#define BIT(c) (1 << (c))

/* Tokens. A client asks with its first token; who has to wait goes on with another
 * (`Claim.afresh`), because what was sent with the first one may be late. */
#define NOBODY 0
#define FIRST(c) ((c) + CLIENTS)
#define OWNER(token) ((token) > CLIENTS -> (token) - CLIENTS : (token))
#define OFFERER 9               /* the token of whoever offers a free lock */

typedef Record {
    bit there;
    bit lapsed;                 /* its time to live is over */
    bit released;               /* "= holder" stands in it */
    byte holder;                /* a token */
    byte left_by;               /* "< token released", or NOBODY */
    byte line[CLIENTS];         /* who waits, in the order of the log; 0: nobody more */
    byte aged;                  /* "^": bits of those that rank with people by now */
    byte offered_to             /* "?": bits of those whom the free lock is offered to */
};

Record rec;
byte current;                   /* bits: whose version is the record's */
byte lost_line[CLIENTS];        /* who stood in line when the store lost its data */

/* Deadlines, by the holders' own clocks. */
byte deadline;                  /* bits: the lease's end is still to come */
byte asked;                     /* bits: so is that of the extension that was asked for */

byte confirmed;                 /* bits: holds a lease that the store has granted */
byte away;                      /* bits: killed, or gone on to something else */

/* The one command that may be late: sent, not answered, and carried out when it pleases. */
mtype = { NOTHING, CREATE, SWAP, REMOVE, JOIN, DONE };
mtype late = NOTHING;
byte late_token;
bit late_passing, late_current;

/* How many accidents may still happen, of whatever kind, at whatever moment. */
byte accidents = ACCIDENTS;
#define ACCIDENT(kind) (accidents > 0 && (kind))

/* Answers, and what is worked out in one step: none of it outlives the step. */
mtype = { YES, NO, LOST, SLOW };
mtype ans = NOTHING;
#define THEN -> ans = NOTHING;
byte i, n, w, gone, who;

#define FREE (rec.lapsed || rec.released)
#define LIVE (rec.there && !FREE)
#define EMPTY (rec.line[0] == NOBODY)
#define OURS(token) (rec.holder == (token) && !FREE)
#define URGENT(c) ((c) != BATCH || (rec.aged & BIT(BATCH)) != 0)

/* Somebody else's lease is on: nobody but its owner may end, shorten or lengthen it. */
#define UNTOUCHED_BY(c) (!LIVE || OWNER(rec.holder) == (c))

/* --- the line ---------------------------------------------------------------------------- */

#define POSITION(c) \
    (rec.line[0] == (c) -> 0 : (rec.line[1] == (c) -> 1 : \
    (rec.line[2] == (c) -> 2 : (rec.line[3] == (c) -> 3 : CLIENTS))))
#define IN_LINE(c) (POSITION(c) < CLIENTS)

#define BEFORE(n, c) \
    (POSITION(c) == CLIENTS || (URGENT(rec.line[n]) && !URGENT(c)) || \
    (URGENT(rec.line[n]) == URGENT(c) && n < POSITION(c)))
#define IF_AHEAD(n, c) \
    (rec.line[n] != NOBODY && rec.line[n] != (c) && BEFORE(n, c) -> BIT(rec.line[n]) : 0)
/* Who is served before `c` (`Record._ahead_of`), in bits: all, if it is not in line. */
#define AHEAD_OF(c) (IF_AHEAD(0, c) | IF_AHEAD(1, c) | IF_AHEAD(2, c) | IF_AHEAD(3, c))
/* All that wait; nobody is called 20. */
#define EVERYBODY AHEAD_OF(20)

/* The line without those in `gone`. */
inline drop_from_line() {
    d_step {
        i = 0; n = 0;
        do
        :: i < CLIENTS ->
            w = rec.line[i];
            rec.line[i] = NOBODY;
            if
            :: w != NOBODY && !(gone & BIT(w)) -> rec.line[n] = w; n++
            :: else
            fi;
            i++
        :: else -> break
        od;
        rec.aged = rec.aged & ~gone;
        i = 0; n = 0; w = 0; gone = 0
    }
}

inline add_to_line(c) {
    d_step {
        i = 0;
        do
        :: rec.line[i] == NOBODY -> rec.line[i] = c; break
        :: rec.line[i] == c -> break    /* sent twice: means what it means once */
        :: else -> i++
        od;
        i = 0
    }
}

/* --- the verbs, as the store carries them out -------------------------------------------- */

inline changed() {
    current = 0; late_current = 0
}

inline forget_record() {
    rec.there = 0; rec.lapsed = 0; rec.released = 0; rec.holder = NOBODY; rec.left_by = NOBODY;
    gone = 255; drop_from_line();
    rec.offered_to = 0;
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
        lost_line[0] = 0; lost_line[1] = 0; lost_line[2] = 0; lost_line[3] = 0;
        ans = YES
    fi
}

inline may_be_missing(n, c) {
    if
    :: true
    :: rec.line[n] != NOBODY && rec.line[n] != c -> gone = gone | BIT(rec.line[n])
    fi
}

/* `LeaseProtocol.begin`: with the line as it was last seen. That may have been any time ago, so any of
 * those who stood there may be missing. */
inline do_begin(c) {
    if
    :: rec.there
    :: else ->
        rec.line[0] = lost_line[0]; rec.line[1] = lost_line[1];
        rec.line[2] = lost_line[2]; rec.line[3] = lost_line[3]
    fi;
    do_create(c);
    if
    :: ans == YES ->
        gone = BIT(c);
        may_be_missing(0, c); may_be_missing(1, c); may_be_missing(2, c); may_be_missing(3, c);
        drop_from_line()
    :: else
    fi
}

/* `Record.succeeded_by`: the claim takes over a free record; `passing` those ahead. */
inline do_succeed(token, passing) {
    assert(FREE);
    PASSED(passing -> AHEAD_OF(OWNER(token)) : 0);
    SERVED(OWNER(token));
    gone = BIT(OWNER(token)) | (passing -> AHEAD_OF(OWNER(token)) : 0);
    if
    :: rec.offered_to                   /* who offers a lock has not had it */
    :: !rec.offered_to && rec.released -> rec.left_by = rec.holder
    :: else -> rec.left_by = NOBODY
    fi;
    drop_from_line();
    rec.holder = token; rec.released = 0; rec.lapsed = 0; rec.offered_to = 0;
    changed();
    ans = YES
}

/* `Record.offered_by`: nobody holds the lock, those in line may take it until this lapses. */
inline do_offer(c) {
    assert(FREE);
    if
    :: rec.offered_to
    :: !rec.offered_to && rec.released -> rec.left_by = rec.holder
    :: else -> rec.left_by = NOBODY
    fi;
    gone = BIT(c);
    drop_from_line();
    rec.holder = OFFERER; rec.released = 1; rec.lapsed = 0; rec.offered_to = EVERYBODY;
    changed();
    ans = YES
}

/* The same record, with a new time to live (`LeaseProtocol.extend`). */
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
    :: rec.there -> LINES_UP(c); add_to_line(c); changed(); ans = YES
    :: else -> ans = NO
    fi
}

/* "= token": the holder's, or a waiter's that gives up. Means nothing in another record. */
inline do_done(token) {
    if
    :: !rec.there -> ans = NO
    :: else ->
        rec.released = rec.released || rec.holder == token;
        gone = (token <= CLIENTS -> BIT(token) : 0);
        drop_from_line();
        changed();
        ans = YES
    fi
}

/* --- what clients send -------------------------------------------------------------------- */

/* The reply is lost, before or after the command was carried out; or it comes too late to be
 * waited for, and so perhaps does the command. */
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

/* Reading changes nothing: there the reply is lost, or not. */
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

/* What names a version is refused when that is not the record's any more. */
#define NAMED(c, command) \
    if \
    :: current & BIT(c) -> command \
    :: else -> ans = NO \
    fi

inline succeed(c, token, passing) {
    SENT(NAMED(c, do_succeed(token, passing); remember_version(c)), SWAP, token, passing)
}
inline offer(c) { SENT(NAMED(c, do_offer(c)), NOTHING, c, 0) }
inline extend(c) { SENT(NAMED_TO_EXTEND(c, do_extend(c); remember_version(c)), NOTHING, c, 0) }
inline remove(c, token) { SENT(NAMED_TO_REMOVE(c, do_remove(c)), REMOVE, token, 0) }

/* The extension was granted; or it was not, or nobody knows. */
inline go_on(c) { deadline = (deadline & ~BIT(c)) | (asked & BIT(c)); asked = asked & ~BIT(c) }
inline give_up_asking(c) { asked = asked & ~BIT(c) }
