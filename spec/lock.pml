/* The lock's protocol: the possible events, and the properties that must hold.
 *
 * Run by `make spec`, in several variants (checks.py). Read register.pml first, then client.pml.
 */

#ifndef ACCIDENTS
#define ACCIDENTS 0             /* number of accidents */
#endif
/* The possible kinds of accidents. */
#ifndef LOST_REPLIES
#define LOST_REPLIES 1          /* a command is executed or not, and its reply is lost */
#endif
#ifndef SLOW_REPLIES
#define SLOW_REPLIES 1          /* ... and it may be executed later */
#endif
#ifndef LOSSES
#define LOSSES 1                /* the store loses the record: evicted, or restarted */
#endif
#ifndef PAUSES
#define PAUSES 1                /* of any length: a lease ends, a position is lost */
#endif
#ifndef DEATHS
#define DEATHS 1                /* killed; its lease ends at any time */
#endif
#ifndef TIMEOUTS
#define TIMEOUTS 1              /* a waiter times out */
#endif
#ifndef EXTENSIONS
#define EXTENSIONS 1            /* number of renewals */
#endif
#ifndef LASTING
#define LASTING 0               /* bits: clients that neither die nor time out */
#endif

#define PASSED_RESERVATION(c) (rec.lapsed && !(AHEAD_OF(c) & ~rec.reserved_for))
#define CAN_BE_RESERVED_BY(c) \
    (!(rec.reserved_for && !rec.lapsed) && (ALL_WAITERS & ~BIT(c)) != 0)


/* The waiters ahead have had their time (`Turn._decide_behind`): they are dead, or a reservation
 * for them has lapsed, or they live, but are paused. */
#define GONE(clients) (!((clients) & ~away))
#ifdef NO_PASSING               /* ... unless no waiter detects that */
#define MAY_PASS(c) PASSED_RESERVATION(c)
#else
#define MAY_PASS(c) (PASSED_RESERVATION(c) || GONE(AHEAD_OF(c)) || ACCIDENT(PAUSES))
#endif
#define PASSING(c) accidents = accidents - (PASSED_RESERVATION(c) || GONE(AHEAD_OF(c)) -> 0 : 1)

/* --- protections that are omitted in the runs that must fail ------------------------------ */

#ifdef PLAIN_DELETE             /* release deletes any record */
#define NAMED_TO_REMOVE(c, command) if :: rec.there -> command :: else -> ans = NO fi
#else
#define NAMED_TO_REMOVE(c, command) NAMED(c, command)
#endif
#ifdef PLAIN_TOUCH              /* a renewal extends any record */
#define NAMED_TO_EXTEND(c, command) if :: rec.there -> command :: else -> ans = NO fi
#else
#define NAMED_TO_EXTEND(c, command) NAMED(c, command)
#endif
#ifdef TRUST_VERSIONS           /* after a restart the store counts from 1 again */
bit restarted;
#define AFTER_RESTART if :: restarted -> restarted = 0; current = 15 & ~away :: true fi;
#define RESTART restarted = 1
#else
#define AFTER_RESTART
#define RESTART skip
#endif
#ifdef LAPSES_EARLY             /* the store counts the lease from an earlier time than its holder */
#define OVER_BY_OWN_CLOCK(c) true
#else
#define OVER_BY_OWN_CLOCK(c) (!(deadline & BIT(c)))
#endif

#ifdef TRY_ONCE                 /* any client may choose not to wait */
#define MAY_TRY_ONCE(c) true
#else
#define MAY_TRY_ONCE(c) false
#endif
#ifdef BATCH_RULE_OFF           /* batch takes a free lock despite waiters */
#define TURN_OF(c) (AHEAD_OF(c) == 0 || (c) == BATCH)
#else
#ifdef TURNS_OFF                /* so do interactive clients */
#define TURN_OF(c) true
#else
#define TURN_OF(c) (AHEAD_OF(c) == 0)
#endif
#endif
#ifndef LOOPS
#define LOOPS false             /* whether all clients acquire the lock repeatedly */
#endif
#define CONFIRMS true
#define AGAIN(c) LOOPS

/* Interactive clients are alike, so letting them begin in order omits nothing. */
byte begun;
#define MAY_BEGIN(c) ((c) == 1 || (c) == BATCH || (begun & BIT((c) - 1)))
#define HAS_BEGUN(c) begun = begun | BIT(c); away = away & ~BIT(c)

/* A batch waiter has waited long (`Ageing`): before its next poll it announces that it now ranks
 * with interactive waiters. */
bit old;
#define AGES_NOW(c) ((c) == BATCH && old && IN_QUEUE(c) && !URGENT(c))

/* The waiters in the queue; and for each client, the waiters that joined before it. */
byte waiting;
#define INTERACTIVE (BIT(1) | BIT(2) | BIT(3))
#define STOPS_WAITING(c) waiting = waiting & ~BIT(c); old = old && (c) != BATCH
byte before[5];
#define NOT_BEFORE(c, other) before[other] = before[other] & ~BIT(c)
#define ENTERS_QUEUE(c) \
    if \
    :: IN_QUEUE(c) \
    :: else -> \
        NOT_BEFORE(c, 1); NOT_BEFORE(c, 2); NOT_BEFORE(c, 3); NOT_BEFORE(c, 4); \
        before[c] = waiting & ~BIT(c) \
    fi
#define QUEUE_LOST waiting = 0; before[1] = 0; before[2] = 0; before[3] = 0; before[4] = 0
#define PASSED(clients) waiting = waiting & ~(clients)
#define SERVED(c) \
    assert(!(before[c] & waiting & (INTERACTIVE | rec.aged))); \
    assert(URGENT(c) || !(waiting & INTERACTIVE)); \
    before[c] = 0; STOPS_WAITING(c)
#define HAS_LEFT(c) before[c] = 0; STOPS_WAITING(c)

#include "register.pml"
#include "client.pml"

inline save_queue() {
    lost_queue[0] = rec.queue[0]; lost_queue[1] = rec.queue[1];
    lost_queue[2] = rec.queue[2]; lost_queue[3] = rec.queue[3]
}

inline forget_late() { late = NOTHING; late_token = NOBODY; late_passing = 0; late_current = 0; ans = NOTHING }

/* Time ends something. For clients that are alive, that is a pause. */
#define TIME_PASSES(clients) accidents = accidents - (GONE(clients) -> 0 : 1)
#define MAY_END(clients) (GONE(clients) || ACCIDENT(PAUSES))

/* Deadlines pass, the holder's own before the record's. */
proctype Time()
{
end:
    do
    :: d_step { (deadline & BIT(1)) && MAY_END(BIT(1)) -> TIME_PASSES(BIT(1)); deadline = deadline & ~BIT(1) }
    :: d_step { (deadline & BIT(2)) && MAY_END(BIT(2)) -> TIME_PASSES(BIT(2)); deadline = deadline & ~BIT(2) }
    :: d_step { (deadline & BIT(3)) && MAY_END(BIT(3)) -> TIME_PASSES(BIT(3)); deadline = deadline & ~BIT(3) }
    :: d_step { (deadline & BIT(4)) && MAY_END(BIT(4)) -> TIME_PASSES(BIT(4)); deadline = deadline & ~BIT(4) }
    :: d_step { (asked & ~deadline) -> asked = asked & deadline }
    :: d_step { LIVE && OVER_BY_OWN_CLOCK(OWNER(rec.holder)) -> rec.lapsed = 1 }
    :: atomic {
        rec.there && rec.reserved_for && !rec.lapsed && MAY_END(ALL_WAITERS & rec.reserved_for) ->
        TIME_PASSES(ALL_WAITERS & rec.reserved_for); rec.lapsed = 1
    }
    :: atomic {
        rec.there && FREE && MAY_END(ALL_WAITERS) ->
        TIME_PASSES(ALL_WAITERS); QUEUE_LOST; save_queue(); forget_record()
    }
    od
}

/* The store loses its data; a late command arrives. */
proctype Accidents()
{
end:
    do
    :: atomic {
        ACCIDENT(LOSSES) && rec.there ->
        accidents--; confirmed = 0; QUEUE_LOST; save_queue(); forget_record();
        if
        :: true                                     /* evicted, or flushed */
        :: forget_late(); RESTART                   /* restarted: connections have broken */
        fi
    }
    :: atomic { late == CREATE -> do_create(late_token); forget_late() }
    :: atomic { late == SWAP && late_current -> do_succeed(late_token, late_passing); forget_late() }
    :: atomic {
        late == REMOVE && late_current ->
        who = OWNER(late_token); do_remove(who); who = 0; forget_late()
    }
    :: atomic { late == JOIN -> do_join(late_token); forget_late() }
    :: atomic { late == DONE -> do_done(late_token); forget_late() }
    :: atomic { late != NOTHING -> forget_late() }  /* it never arrives */
    od
}

/* Time again: eventually a batch waiter has waited long. */
proctype Ageing()
{
end:
    do
    :: atomic { (waiting & BIT(BATCH)) && !old -> old = 1 }
    od
}
#ifdef AGEING_OFF
#define AGEING skip
#else
#define AGEING run Ageing()
#endif

#ifdef WITHOUT_CLIENT_3
#define CLIENT_3 skip
#else
#define CLIENT_3 run Client(3)
#endif

init
{
    atomic { run Client(1); run Client(2); CLIENT_3; run Client(4); run Time(); run Accidents(); AGEING }
}

#ifdef PROGRESS
ltl interactive_is_served { [] ((waiting & BIT(2)) -> <> !(waiting & BIT(2))) }
ltl batch_is_served { [] ((waiting & BIT(BATCH)) -> <> !(waiting & BIT(BATCH))) }
#endif
