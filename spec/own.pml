/* A client's own actions, without the store: part of the preceding step. */

byte pending;                   /* bits: a release is pending (`StoreClient.send_pending`) ... */
byte pending_first;             /* ... for the client's first token */

#define DIES(c) (ACCIDENT(DEATHS) && !(LASTING & BIT(c)))

/* A confirmed lease: no other one may be valid, by the holders' own clocks. */
inline granted(c) {
    slow = 0; confirmed = confirmed | BIT(c);
    assert(!(deadline & BIT(c)) || (confirmed & deadline) == BIT(c))
}

/* The same, as the record shows. */
inline got(c) { know_version(c); contended = !EMPTY; granted(c) }

inline add_pending(c, token) {
    pending = pending | (token > CLIENTS -> 0 : BIT(c));
    pending_first = pending_first | (token > CLIENTS -> BIT(c) : 0)
}

inline set_deadline(c) { deadline = deadline | BIT(c) }
inline clear_deadline(c) { deadline = deadline & ~BIT(c); current = current & ~BIT(c) }

/* Reset variables that are never read again, so that no two states differ by them alone. */
inline forget() { token = NOBODY; once = 0; slow = 0; removing = 0; contended = 0; unsettled = 0 }

/* Its lease stays as it is, and ends at any time. */
inline die(c) {
    accidents--; away = away | BIT(c); confirmed = confirmed & ~BIT(c); HAS_LEFT(c);
    asked = asked & ~BIT(c); current = current & ~BIT(c);
    pending = pending & ~BIT(c); pending_first = pending_first & ~BIT(c);
    forget()
}

/* The end of the call, and of the tenure. All this is the client's own: it belongs to the
 * preceding step. */
inline over(c) {
    clear_deadline(c); HAS_LEFT(c); forget();
    if
    :: (pending | pending_first) & BIT(c) -> goto pending_releases
    :: else -> away = away | BIT(c); goto ended
    fi
}
inline finish_release(c) {
    if
    :: unsettled -> add_pending(c, token)
    :: else
    fi;
    over(c)
}

/* A client that has to wait continues with another token. */
inline wait(c) {
    token = c; slow = 0; clear_deadline(c);
    if
    :: MAY_TRY_ONCE(c) -> once = 1; goto try_once
    :: goto join_queue
    fi
}
