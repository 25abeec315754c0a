/* What a client does for itself, without the store: part of the step before. */

byte owed;                      /* bits: there is something to give back (`PendingReleases`) ... */
byte owed_first;                /* ... of the client's first token */

#define DIES(c) (ACCIDENT(DEATHS) && !(LASTING & BIT(c)))

/* A confirmed lease: no other may be on, by the holders' own clocks. */
inline granted(c) {
    slow = 0; confirmed = confirmed | BIT(c);
    assert(!(deadline & BIT(c)) || (confirmed & deadline) == BIT(c))
}

/* The same, as the record turns out to say. */
inline got(c) { know_version(c); contended = !EMPTY; granted(c) }

inline owe(c, token) {
    owed = owed | (token > CLIENTS -> 0 : BIT(c));
    owed_first = owed_first | (token > CLIENTS -> BIT(c) : 0)
}

inline ask(c) { deadline = deadline | BIT(c) }
inline unask(c) { deadline = deadline & ~BIT(c); current = current & ~BIT(c) }

/* What nobody will look at again is forgotten, so that no two states differ by it alone. */
inline forget() { token = NOBODY; once = 0; slow = 0; removing = 0; contended = 0; unsettled = 0 }

/* Its lease stays as it is, and ends when it pleases. */
inline die(c) {
    accidents--; away = away | BIT(c); confirmed = confirmed & ~BIT(c); TOLD_OVER(c);
    asked = asked & ~BIT(c); current = current & ~BIT(c);
    owed = owed & ~BIT(c); owed_first = owed_first & ~BIT(c);
    forget()
}

/* The call's end, and the tenure's. All this is the client's own: it belongs to the step before. */
inline over(c) {
    unask(c); TOLD_OVER(c); forget();
    if
    :: (owed | owed_first) & BIT(c) -> goto owing
    :: else -> away = away | BIT(c); goto ended
    fi
}
inline given_back(c) {
    if
    :: unsettled -> owe(c, token)
    :: else
    fi;
    over(c)
}

/* Who has to wait goes on with another token. */
inline wait(c) {
    token = c; slow = 0; unask(c);
    if
    :: MAY_TRY_ONCE(c) -> once = 1; goto try_once
    :: goto join_line
    fi
}
