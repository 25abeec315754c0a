/* The lock's protocol: what may happen to it, and what must be true all the same.
 *
 * Run by `make spec`, in several ways (checks.py). Read register.pml first, then client.pml.
 */

#ifndef ACCIDENTS
#define ACCIDENTS 0             /* how many may happen */
#endif
/* Which kinds may: each is one of the accidents. */
#ifndef LOST_REPLIES
#define LOST_REPLIES 1          /* a command is carried out or not, and its reply is lost */
#endif
#ifndef SLOW_REPLIES
#define SLOW_REPLIES 1          /* ... and it may be carried out later */
#endif
#ifndef LOSSES
#define LOSSES 1                /* the store loses the record: evicted, or restarted */
#endif
#ifndef PAUSES
#define PAUSES 1                /* of any length: a lease ends, a place in line is lost */
#endif
#ifndef DEATHS
#define DEATHS 1                /* killed; its lease ends when it pleases */
#endif
#ifndef GIVING_UP
#define GIVING_UP 1             /* somebody's wait is over */
#endif
#ifndef EXTENSIONS
#define EXTENSIONS 1            /* how many heartbeats there are */
#endif
#ifndef LASTING
#define LASTING 0               /* bits: who neither dies nor gives up */
#endif

#define PASSED_OFFER(c) (rec.lapsed && !(AHEAD_OF(c) & ~rec.offered_to))
#define CAN_BE_OFFERED_BY(c) \
    (!(rec.offered_to && !rec.lapsed) && (EVERYBODY & ~BIT(c)) != 0)


/* Those ahead have had their time (`Turn._decide_behind`): for they are dead, or an offer to them
 * has lapsed; or they live, and are paused. */
#define GONE(clients) (!((clients) & ~away))
#ifdef PATIENCE_WITHOUT_END     /* ... unless nobody finds that out */
#define MAY_PASS(c) PASSED_OFFER(c)
#else
#define MAY_PASS(c) (PASSED_OFFER(c) || GONE(AHEAD_OF(c)) || ACCIDENT(PAUSES))
#endif
#define PASSING(c) accidents = accidents - (PASSED_OFFER(c) || GONE(AHEAD_OF(c)) -> 0 : 1)

/* --- what is left out in the runs that must fail ------------------------------------------ */

#ifdef PLAIN_DELETE             /* release deletes whatever is there */
#define NAMED_TO_REMOVE(c, command) if :: rec.there -> command :: else -> ans = NO fi
#else
#define NAMED_TO_REMOVE(c, command) NAMED(c, command)
#endif
#ifdef PLAIN_TOUCH              /* a heartbeat extends whatever is there */
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
#ifdef LAPSES_EARLY             /* the store counts the lease from before its holder does */
#define OVER_BY_OWN_CLOCK(c) true
#else
#define OVER_BY_OWN_CLOCK(c) (!(deadline & BIT(c)))
#endif

#ifdef TRY_ONCE                 /* whoever likes does not wait */
#define MAY_TRY_ONCE(c) true
#else
#define MAY_TRY_ONCE(c) false
#endif
#ifdef BATCH_RULE_OFF           /* batch takes a free lock, whoever waits */
#define TURN_OF(c) (AHEAD_OF(c) == 0 || (c) == BATCH)
#else
#ifdef TURNS_OFF                /* so do people */
#define TURN_OF(c) true
#else
#define TURN_OF(c) (AHEAD_OF(c) == 0)
#endif
#endif
#ifndef LOOPS
#define LOOPS false             /* whether everybody asks for the lock again and again */
#endif
#define CONFIRMS true
#define AGAIN(c) LOOPS

/* The people are alike, so nothing is left out when they begin in order. */
byte begun;
#define MAY_BEGIN(c) ((c) == 1 || (c) == BATCH || (begun & BIT((c) - 1)))
#define TOLD_BEGUN(c) begun = begun | BIT(c); away = away & ~BIT(c)

/* Batch has waited long (`Ageing`): before its next look it says so, and ranks with people. */
bit old;
#define AGES_NOW(c) ((c) == BATCH && old && IN_LINE(c) && !URGENT(c))

/* Who stands in line and waits; and who did so before it. */
byte waiting;
#define PEOPLE (BIT(1) | BIT(2) | BIT(3))
#define WAITS_NO_MORE(c) waiting = waiting & ~BIT(c); old = old && (c) != BATCH
byte before[5];
#define NOT_BEFORE(c, other) before[other] = before[other] & ~BIT(c)
#define LINES_UP(c) \
    if \
    :: IN_LINE(c) \
    :: else -> \
        NOT_BEFORE(c, 1); NOT_BEFORE(c, 2); NOT_BEFORE(c, 3); NOT_BEFORE(c, 4); \
        before[c] = waiting & ~BIT(c) \
    fi
#define LINE_LOST waiting = 0; before[1] = 0; before[2] = 0; before[3] = 0; before[4] = 0
#define PASSED(clients) waiting = waiting & ~(clients)
#define SERVED(c) \
    assert(!(before[c] & waiting & (PEOPLE | rec.aged))); \
    assert(URGENT(c) || !(waiting & PEOPLE)); \
    before[c] = 0; WAITS_NO_MORE(c)
#define TOLD_OVER(c) before[c] = 0; WAITS_NO_MORE(c)

#include "register.pml"
#include "client.pml"

inline keep_line() {
    lost_line[0] = rec.line[0]; lost_line[1] = rec.line[1];
    lost_line[2] = rec.line[2]; lost_line[3] = rec.line[3]
}

inline forget_late() { late = NOTHING; late_token = NOBODY; late_passing = 0; late_current = 0; ans = NOTHING }

/* Something ends by time. For those that live, that is a pause. */
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
        rec.there && rec.offered_to && !rec.lapsed && MAY_END(EVERYBODY & rec.offered_to) ->
        TIME_PASSES(EVERYBODY & rec.offered_to); rec.lapsed = 1
    }
    :: atomic {
        rec.there && FREE && MAY_END(EVERYBODY) ->
        TIME_PASSES(EVERYBODY); LINE_LOST; keep_line(); forget_record()
    }
    od
}

/* The store forgets; what is late arrives. */
proctype Accidents()
{
end:
    do
    :: atomic {
        ACCIDENT(LOSSES) && rec.there ->
        accidents--; confirmed = 0; LINE_LOST; keep_line(); forget_record();
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

/* Time again: sooner or later batch that waits has waited long. */
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

#ifdef WITHOUT_PERSON_3
#define PERSON_3 skip
#else
#define PERSON_3 run Client(3)
#endif

init
{
    atomic { run Client(1); run Client(2); PERSON_3; run Client(4); run Time(); run Accidents(); AGEING }
}

#ifdef PROGRESS
ltl person_is_served { [] ((waiting & BIT(2)) -> <> !(waiting & BIT(2))) }
ltl batch_is_served { [] ((waiting & BIT(BATCH)) -> <> !(waiting & BIT(BATCH))) }
#endif
