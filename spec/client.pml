/* One client: a call of acquire. Its tenure follows in tenure.pml.
 *
 * Each label is the next command; the decision on its reply belongs to the same step. README.md
 * names the function of each label.
 */

#include "own.pml"

byte extensions = EXTENSIONS;

/* The lock is left: the next command ends the lease. For its holder it has already ended. */
#define LEAVING(c) confirmed = confirmed & ~BIT(c); contended = 0

#define REMOVE_RECORD(c) \
    remove(c, token); \
    if \
    :: ans == YES THEN finish_release(c) \
    :: ans == NO THEN goto append_done \
    :: ans == LOST || ans == SLOW THEN removing = 1; goto end_read \
    fi

/* (Without a record, the store had lost it.) */
#define APPEND_DONE(c) \
    done(c, token); \
    if \
    :: ans == YES THEN goto done_read \
    :: ans == NO THEN finish_release(c) \
    :: ans == LOST || ans == SLOW THEN goto end_read \
    fi

proctype Client(byte c)
{
    byte token;
    bit once, contended, slow, removing, unsettled;

acquire:
    atomic {
        MAY_BEGIN(c);
        token = FIRST(c); set_deadline(c); HAS_BEGUN(c);
        create(c, token);
        if
        :: ans == YES THEN granted(c); goto held
        :: ans == NO THEN wait(c)
        :: ans == LOST THEN goto take_read
        :: ans == SLOW THEN slow = 1; goto take_read
        fi
    };

take_read:
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
            :: slow -> add_pending(c, token)
            :: else
            fi;
            wait(c)
        :: ans == YES && !OURS(token) && token <= CLIENTS && once THEN
            if
            :: slow -> add_pending(c, token)
            :: else
            fi;
            over(c)
        :: ans == YES && !OURS(token) && token <= CLIENTS && !once && slow THEN
            unsettled = 1; goto unavailable
        :: ans == YES && !OURS(token) && token <= CLIENTS && !once && !slow THEN clear_deadline(c); goto join_queue
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
        :: ans == NO THEN goto take_read
        :: else THEN unsettled = 1; goto unavailable
        fi
    }
    fi;

/* --- in the queue ------------------------------------------------------------------------- */

join_queue:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        join(c);
        if
        :: ans == YES THEN goto poll
        :: ans == NO THEN set_deadline(c); goto begin
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
        :: ans == YES THEN goto poll
        :: ans == NO THEN set_deadline(c); goto begin
        :: else THEN unsettled = 1; goto unavailable
        fi
    }
    fi;

/* A poll that finds nothing to do is no step: the waiter is blocked until there is something. */
poll:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic { ACCIDENT(TIMEOUTS) && !(LASTING & BIT(c)) -> accidents--; HAS_LEFT(c); goto time_out }
    :: atomic { ACCIDENT(LOST_REPLIES) -> accidents--; unsettled = 1; goto unavailable }
    :: atomic { AGES_NOW(c) -> rec.aged = rec.aged | BIT(c); changed(); goto poll }
    :: atomic { !rec.there -> set_deadline(c); goto begin }
    :: atomic {
        rec.there && !IN_QUEUE(c) ->
        if
        :: OURS(token) -> got(c); goto held
        :: else -> goto join_queue
        fi
    }
    :: atomic {
        rec.there && FREE && IN_QUEUE(c) && TURN_OF(c) && !AGES_NOW(c) ->
        know_version(c); set_deadline(c); goto claim
    }
    :: atomic {
        rec.there && FREE && IN_QUEUE(c) && AHEAD_OF(c) != 0 && MAY_PASS(c) && !AGES_NOW(c) ->
        PASSING(c);
        know_version(c); set_deadline(c); goto pass
    }
    fi;

claim:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        succeed(c, token, 0);
        if
        :: ans == YES THEN contended = 1; granted(c); goto held
        :: ans == NO THEN clear_deadline(c); goto poll
        :: ans == LOST THEN goto claim_read
        :: ans == SLOW THEN slow = 1; goto claim_read
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
        :: ans == NO && once THEN goto time_out
        :: ans == NO && !once THEN clear_deadline(c); goto poll
        :: ans == LOST THEN goto claim_read
        :: ans == SLOW THEN slow = 1; goto claim_read
        fi
    }
    fi;

claim_read:
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
            :: once -> goto time_out
            :: else -> clear_deadline(c); goto poll
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
        :: ans == NO THEN clear_deadline(c); goto join_queue
        :: ans == LOST THEN goto take_read
        :: ans == SLOW THEN slow = 1; goto take_read
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
        :: ans == NO THEN set_deadline(c); goto take_last
        :: ans == YES && FREE && (AHEAD_OF(c) == 0 || PASSED_RESERVATION(c)) THEN
            know_version(c); set_deadline(c); goto pass
        :: else THEN goto time_out
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
        :: ans == LOST THEN goto take_read
        :: ans == SLOW THEN slow = 1; goto take_read
        fi
    }
    fi;

time_out:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        /* (By the record as it was read: if it has changed, the version reveals it.) */
        (current & BIT(c)) && rec.there && FREE && CAN_BE_RESERVED_BY(c) ->
        reserve(c);
        if
        :: ans == YES THEN over(c)
        :: else THEN goto leave
        fi
    }
    :: atomic { !((current & BIT(c)) && rec.there && FREE && CAN_BE_RESERVED_BY(c)) -> goto leave }
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
        :: ans == SLOW THEN add_pending(c, token); over(c)
        :: ans == NO THEN over(c)
        :: ans == YES THEN goto left_read
        fi
    }
    fi;

leave_again:
    atomic {
        done(c, token);
        if
        :: ans == LOST || ans == SLOW THEN add_pending(c, token); over(c)
        :: ans == NO THEN over(c)
        :: ans == YES THEN goto left_read
        fi
    };

left_read:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        read();
        if
        :: ans == YES && FREE && EMPTY THEN know_version(c); goto remove_empty
        :: else THEN over(c)
        fi
    }
    fi;

/* --- without a reply of the store --------------------------------------------------------- */

unavailable:
    if
    :: atomic { unsettled -> add_pending(c, token); over(c) }       /* outage="fail" */
    :: atomic { !unsettled -> over(c) }
    :: atomic { true; HAS_LEFT(c); goto degraded }         /* outage="optimistic" */
    fi;

degraded:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic { true; unsettled = 1; LEAVING(c); APPEND_DONE(c) }
    :: atomic { CONFIRMS -> set_deadline(c); goto confirm }
    fi;

confirm:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        create(c, token);
        if
        :: ans == YES THEN contended = 0; granted(c); goto held
        :: ans == NO THEN goto confirm_read
        :: else THEN unsettled = 1; goto degraded
        fi
    }
    fi;

confirm_read:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        read();
        if
        :: ans == LOST THEN goto degraded
        :: ans == NO THEN set_deadline(c); goto confirm
        :: ans == YES && OURS(token) THEN set_deadline(c); know_version(c); contended = !EMPTY; goto confirm_ours
        :: ans == YES && FREE && (AHEAD_OF(c) == 0 || PASSED_RESERVATION(c)) THEN
            know_version(c); set_deadline(c); goto confirm_pass
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
        :: ans == NO THEN set_deadline(c); goto confirm
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
        :: ans == NO THEN set_deadline(c); goto confirm
        :: else THEN unsettled = 1; goto degraded
        fi
    }
    fi;

#include "tenure.pml"
}
