/* The rest of a client: its tenure, and its end. Included in the middle of `Client`. */

/* --- held, and release -------------------------------------------------------------------- */

held:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic { !contended && !unsettled -> LEAVING(c); REMOVE_RECORD(c) }
    :: atomic { contended || unsettled -> LEAVING(c); APPEND_DONE(c) }
    :: atomic {
        extensions > 0 && (deadline & BIT(c)) ->
        extensions--; asked = asked | BIT(c); goto extend_lease
    }
    fi;

extend_lease:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        extend(c);
        if
        :: ans == YES THEN extension_granted(c); granted(c); goto held
        :: ans == NO THEN extension_failed(c); goto keep_read
        :: ans == LOST || ans == SLOW THEN extension_failed(c); goto held
        fi
    }
    fi;

keep_read:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        read();
        if
        :: ans == LOST THEN goto held
        :: ans == YES && OURS(token) && (deadline & BIT(c)) THEN
            know_version(c); contended = !EMPTY; asked = asked | BIT(c); goto extend_lease
        :: else THEN confirmed = confirmed & ~BIT(c); goto held  /* lost, and reported */
        fi
    }
    fi;

append_done:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic { true; APPEND_DONE(c) }
    fi;

/* Append and read are two commands for memcached. */
done_read:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        read();
        if
        :: ans == LOST THEN goto end_read
        :: ans == YES && rec.holder == token && rec.released && !rec.lapsed && EMPTY THEN
            know_version(c); goto remove_empty
        :: else THEN finish_release(c)
        fi
    }
    fi;

remove_empty:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic { remove(c, token); finish_release(c) }
    fi;

end_read:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        read();
        if
        :: ans == LOST THEN add_pending(c, token); finish_release(c)
        :: ans == NO && removing && (deadline & BIT(c)) THEN finish_release(c)
        :: ans == NO && !(removing && (deadline & BIT(c))) THEN add_pending(c, token); finish_release(c)
        :: ans == YES && rec.holder == token && rec.released THEN
            if
            :: EMPTY -> know_version(c); goto remove_empty
            :: else -> finish_release(c)
            fi
        :: ans == YES && rec.holder == token && !rec.released THEN removing = 0; goto append_done
        :: ans == YES && rec.holder != token && rec.left_by == token THEN finish_release(c)
        :: else THEN add_pending(c, token); finish_release(c)
        fi
    }
    fi;

/* Pending releases: they are sent when the store answers, and after a late command can have
 * arrived. The renewal thread does that while the process continues. */
pending_releases:
    if
    :: atomic { DIES(c) -> die(c); goto killed }
    :: atomic {
        (pending & BIT(c)) && !(late != NOTHING && OWNER(late_token) == c) ->
        pending = pending & ~BIT(c); token = c; APPEND_DONE(c)
    }
    :: atomic {
        (pending_first & BIT(c)) && !(late != NOTHING && OWNER(late_token) == c) ->
        pending_first = pending_first & ~BIT(c); token = FIRST(c); APPEND_DONE(c)
    }
    fi;

ended:
    if
    :: AGAIN(c) -> goto acquire
    :: else
    fi;
killed:
    skip
