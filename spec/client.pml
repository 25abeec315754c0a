/* One client: a call of acquire. What comes then is in tenure.pml.
 *
 * Each label is the command that is sent next; what is decided on its answer
 * belongs to the same step. README.md says which function each label is.
 */

#include "own.pml"

byte extensions = EXTENSIONS;

/* The lock is left: what is sent now ends the lease, for its holder it is over. */
#define LEAVING(c) confirmed = confirmed & ~BIT(c); contended = 0

#define TAKE_AWAY(c) \
    remove(c, token); \
    if \
    :: ans == YES THEN given_back(c) \
    :: ans == NO THEN goto say_done \
    :: ans == LOST || ans == SLOW THEN removing = 1; goto end_look \
    fi

/* (Where there is no record, it had been forgotten.) */
#define SAY_DONE(c) \
    done(c, token); \
    if \
    :: ans == YES THEN goto done_look \
    :: ans == NO THEN given_back(c) \
    :: ans == LOST || ans == SLOW THEN goto end_look \
    fi

proctype Client(byte c)
{
    byte token;
    bit once, contended, slow, removing, unsettled;

acquire:
    atomic {
        MAY_BEGIN(c);
        token = FIRST(c); ask(c); TOLD_BEGUN(c);
        create(c, token);
        if
        :: ans == YES THEN granted(c); goto held
        :: ans == NO THEN wait(c)
        :: ans == LOST THEN goto take_look
        :: ans == SLOW THEN slow = 1; goto take_look
        fi
    };

take_look:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        read();
        if
        :: ans == LOST THEN unsettled = 1; goto unavailable
        :: ans == NO THEN goto take_again
        :: ans == YES && OURS(token) THEN
            unsettled = slow; got(c); goto held
        :: ans == YES && !OURS(token) && token > CLIENTS THEN
            if
            :: slow -> owe(c, token)
            :: else
            fi;
            wait(c)
        :: ans == YES && !OURS(token) && token <= CLIENTS && once THEN
            if
            :: slow -> owe(c, token)
            :: else
            fi;
            over(c)
        :: ans == YES && !OURS(token) && token <= CLIENTS && !once && slow THEN
            unsettled = 1; goto unavailable
        :: ans == YES && !OURS(token) && token <= CLIENTS && !once && !slow THEN unask(c); goto join_line
        fi
    }
    fi;

take_again:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        create(c, token);
        if
        :: ans == YES THEN unsettled = slow; granted(c); goto held
        :: ans == NO THEN goto take_look
        :: else THEN unsettled = 1; goto unavailable
        fi
    }
    fi;

/* --- in line ------------------------------------------------------------------------------ */

join_line:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        join(c);
        if
        :: ans == YES THEN goto look
        :: ans == NO THEN ask(c); goto begin
        :: ans == LOST THEN goto join_again
        :: ans == SLOW THEN unsettled = 1; goto unavailable
        fi
    }
    fi;

join_again:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        join(c);
        if
        :: ans == YES THEN goto look
        :: ans == NO THEN ask(c); goto begin
        :: else THEN unsettled = 1; goto unavailable
        fi
    }
    fi;

/* To look and find nothing to do is no step: who waits is blocked until there is. */
look:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic { ACCIDENT(GIVING_UP) && !(LASTING & BIT(c)) -> accidents--; TOLD_OVER(c); goto give_up }
    :: atomic { ACCIDENT(LOST_REPLIES) -> accidents--; unsettled = 1; goto unavailable }
    :: atomic { AGES_NOW(c) -> rec.aged = rec.aged | BIT(c); changed(); goto look }
    :: atomic { !rec.there -> ask(c); goto begin }
    :: atomic {
        rec.there && !IN_LINE(c) ->
        if
        :: OURS(token) -> got(c); goto held
        :: else -> goto join_line
        fi
    }
    :: atomic {
        rec.there && FREE && IN_LINE(c) && TURN_OF(c) && !AGES_NOW(c) ->
        know_version(c); ask(c); goto claim
    }
    :: atomic {
        rec.there && FREE && IN_LINE(c) && AHEAD_OF(c) != 0 && MAY_PASS(c) && !AGES_NOW(c) ->
        PASSING(c);
        know_version(c); ask(c); goto pass
    }
    fi;

claim:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        succeed(c, token, 0);
        if
        :: ans == YES THEN contended = 1; granted(c); goto held
        :: ans == NO THEN unask(c); goto look
        :: ans == LOST THEN goto claim_look
        :: ans == SLOW THEN slow = 1; goto claim_look
        fi
    }
    fi;

pass:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        succeed(c, token, 1);
        if
        :: ans == YES THEN contended = 1; granted(c); goto held
        :: ans == NO && once THEN goto give_up
        :: ans == NO && !once THEN unask(c); goto look
        :: ans == LOST THEN goto claim_look
        :: ans == SLOW THEN slow = 1; goto claim_look
        fi
    }
    fi;

claim_look:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        read();
        if
        :: ans == YES && OURS(token) THEN
            got(c); goto held
        :: ans == LOST || (slow && !(ans == YES && OURS(token))) THEN unsettled = 1; goto unavailable
        :: ans != LOST && !slow && !(ans == YES && OURS(token)) THEN
            if
            :: once -> goto give_up
            :: else -> unask(c); goto look
            fi
        fi
    }
    fi;

begin:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        begin_again(c);
        if
        :: ans == YES THEN contended = 1; granted(c); goto held
        :: ans == NO THEN unask(c); goto join_line
        :: ans == LOST THEN goto take_look
        :: ans == SLOW THEN slow = 1; goto take_look
        fi
    }
    fi;

try_once:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        read();
        if
        :: ans == LOST THEN unsettled = 0; goto unavailable
        :: ans == NO THEN ask(c); goto take_last
        :: ans == YES && FREE && (AHEAD_OF(c) == 0 || PASSED_OFFER(c)) THEN
            know_version(c); ask(c); goto pass
        :: else THEN goto give_up
        fi
    }
    fi;

take_last:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        create(c, token);
        if
        :: ans == YES THEN granted(c); goto held
        :: ans == NO THEN over(c)
        :: ans == LOST THEN goto take_look
        :: ans == SLOW THEN slow = 1; goto take_look
        fi
    }
    fi;

give_up:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        /* (Of the record as it was seen: where it has changed, the version says so.) */
        (current & BIT(c)) && rec.there && FREE && CAN_BE_OFFERED_BY(c) ->
        offer(c);
        if
        :: ans == YES THEN over(c)
        :: else THEN goto leave
        fi
    }
    :: atomic { !((current & BIT(c)) && rec.there && FREE && CAN_BE_OFFERED_BY(c)) -> goto leave }
    fi;

leave:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic { once -> over(c) }
    :: atomic {
        !once ->
        done(c, token);
        if
        :: ans == LOST THEN goto leave_again
        :: ans == SLOW THEN owe(c, token); over(c)
        :: else THEN over(c)
        fi
    }
    fi;

leave_again:
    atomic {
        done(c, token);
        if
        :: ans == LOST || ans == SLOW THEN owe(c, token); over(c)
        :: else THEN over(c)
        fi
    };

/* --- without the store's word ------------------------------------------------------------- */

unavailable:
    if
    :: atomic { unsettled -> owe(c, token); over(c) }       /* outage="fail" */
    :: atomic { !unsettled -> over(c) }
    :: atomic { true; TOLD_OVER(c); goto degraded }         /* outage="optimistic" */
    fi;

degraded:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic { true; unsettled = 1; LEAVING(c); SAY_DONE(c) }
    :: atomic { CONFIRMS -> ask(c); goto confirm }
    fi;

confirm:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        create(c, token);
        if
        :: ans == YES THEN contended = 0; granted(c); goto held
        :: ans == NO THEN goto confirm_look
        :: else THEN unsettled = 1; goto degraded
        fi
    }
    fi;

confirm_look:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        read();
        if
        :: ans == LOST THEN goto degraded
        :: ans == NO THEN ask(c); goto confirm
        :: ans == YES && OURS(token) THEN ask(c); know_version(c); contended = !EMPTY; goto confirm_ours
        :: ans == YES && FREE && (AHEAD_OF(c) == 0 || PASSED_OFFER(c)) THEN
            know_version(c); ask(c); goto confirm_pass
        :: else THEN goto degraded
        fi
    }
    fi;

confirm_ours:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        extend(c);
        if
        :: ans == YES THEN granted(c); goto held
        :: ans == NO THEN ask(c); goto confirm
        :: else THEN goto degraded
        fi
    }
    fi;

confirm_pass:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        succeed(c, token, 1);
        if
        :: ans == YES THEN contended = 1; granted(c); goto held
        :: ans == NO THEN ask(c); goto confirm
        :: else THEN unsettled = 1; goto degraded
        fi
    }
    fi;

#include "tenure.pml"
}
