/* The rest of a client: its tenure, and how it ends. Included in the middle of `Client`. */

/* --- held, and giving back ---------------------------------------------------------------- */

held:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic { !contended && !unsettled -> LEAVING(c); TAKE_AWAY(c) }
    :: atomic { contended || unsettled -> LEAVING(c); SAY_DONE(c) }
    :: atomic {
        extensions > 0 && (deadline & BIT(c)) ->
        extensions--; asked = asked | BIT(c); goto keep_it
    }
    fi;

keep_it:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        extend(c);
        if
        :: ans == YES THEN go_on(c); granted(c); goto held
        :: ans == NO THEN give_up_asking(c); goto keep_look
        :: ans == LOST || ans == SLOW THEN give_up_asking(c); goto held
        fi
    }
    fi;

keep_look:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        read();
        if
        :: ans == LOST THEN goto held
        :: ans == YES && OURS(token) && (deadline & BIT(c)) THEN
            know_version(c); contended = !EMPTY; asked = asked | BIT(c); goto keep_it
        :: else THEN confirmed = confirmed & ~BIT(c); goto held     /* lost, and told so */
        fi
    }
    fi;

say_done:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic { true; SAY_DONE(c) }
    fi;

/* Append and read are two commands for memcached. */
done_look:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        read();
        if
        :: ans == LOST THEN goto end_look
        :: ans == YES && rec.holder == token && rec.released && !rec.lapsed && EMPTY THEN
            know_version(c); goto clear_away
        :: else THEN given_back(c)
        fi
    }
    fi;

clear_away:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic { remove(c, token); given_back(c) }
    fi;

end_look:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        read();
        if
        :: ans == LOST THEN owe(c, token); given_back(c)
        :: ans == NO && removing && (deadline & BIT(c)) THEN given_back(c)
        :: ans == NO && !(removing && (deadline & BIT(c))) THEN owe(c, token); given_back(c)
        :: ans == YES && rec.holder == token && rec.released THEN
            if
            :: EMPTY -> know_version(c); goto clear_away
            :: else -> given_back(c)
            fi
        :: ans == YES && rec.holder == token && !rec.released THEN removing = 0; goto say_done
        :: ans == YES && rec.holder != token && rec.left_by == token THEN given_back(c)
        :: else THEN owe(c, token); given_back(c)
        fi
    }
    fi;

/* PendingReleases: what is still owed is given back when the store answers, and when what was late can
 * have arrived. The heart does it while the process goes on with something else. */
owing:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        (owed & BIT(c)) && !(late != NOTHING && OWNER(late_token) == c) ->
        owed = owed & ~BIT(c); token = c; SAY_DONE(c)
    }
    :: atomic {
        (owed_first & BIT(c)) && !(late != NOTHING && OWNER(late_token) == c) ->
        owed_first = owed_first & ~BIT(c); token = FIRST(c); SAY_DONE(c)
    }
    fi;

ended:
    if
    :: AGAIN(c) -> goto acquire
    :: else
    fi;
killed:
    skip
