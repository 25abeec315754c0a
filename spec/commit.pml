/* Writes: an entity is read, changed and put under a lock that may fail at any moment.
 *
 * This model assumes nothing about the lock: with LOCK_MAY_FAIL another client may get it while it
 * is held, at any moment and any number of times. (lock.pml models the lock itself.) README.md
 * names the function of each step.
 *
 * The entity counts the writes that have landed. Each write adds one to the value that it has
 * read, so a lost write is missing at the end.
 */

#define WRITERS 3               /* two requests and a batch worker */
#define TENURES 2               /* each takes the lock twice, in one ndb context */

#ifndef LOCK_MAY_FAIL
#define LOCK_MAY_FAIL 0
#endif
#ifndef LOST_REPLIES
#define LOST_REPLIES 0
#endif
#ifndef OLD_READS
#define OLD_READS 0             /* from ndb's global cache */
#endif

/* Datastore. Version 0: the entity is missing. */
byte version, counted, write_id;
byte landed;                    /* number of applied writes */
byte lost_replies = LOST_REPLIES;
byte old_version, old_counted;  /* the previous one: possible content of a cache */

byte holders;                   /* number of clients that believe they hold the lock */

/* The reported outcome of a write. */
mtype = { UNDECIDED, ACCEPTED, REFUSED, IN_DOUBT };

#ifdef FENCING_OFF              /* a put overwrites any version */
#define MATCHES true
#else                           /* `base_version`; an insert for an entity that was missing */
#define MATCHES (base == version)
#endif
#ifdef EVICTION_OFF             /* a read of an earlier tenure is served from the cache */
#define CACHED (cached)
#else
#define CACHED false
#endif

#ifdef BY_CONTENT               /* a write is recognised by its content */
#define RECOGNISED (counted == value + 1)
#else                           /* by a number that no other write has */
#define RECOGNISED (write_id == mine)
#endif

/* While the lock works and replies arrive, no write is refused. */
#ifndef MAY_BE_REFUSED
#define MAY_BE_REFUSED (LOCK_MAY_FAIL || OLD_READS || LOST_REPLIES)
#endif

proctype Writer(byte me)
{
    byte base, value, tenures, mine;
    bit cached, doubt, applied;
    mtype reported = UNDECIDED;

    do
    :: tenures < TENURES ->
        atomic {                                    /* global_lock: a new tenure */
            holders == 0 || LOCK_MAY_FAIL ->
            holders++; tenures++;
            mine = me * TENURES + tenures;          /* the put's own number (WriteIdProperty) */
            reported = UNDECIDED; doubt = 0; applied = 0
        };
        atomic {                                    /* Key.get() */
            if
            :: CACHED
            :: !CACHED -> base = version; value = counted
            :: !CACHED && OLD_READS && old_version < version ->
                base = old_version; value = old_counted
            fi;
            cached = 1
        };
#ifdef RELEASE_BEFORE_COMMIT    /* the lock is released while the put is in progress */
        holders--;
#endif
        /* put(), and its commit; retried after a lost reply */
        do
        :: atomic {
            reported == UNDECIDED && MATCHES ->
            assert(base == version);                /* no unread write is overwritten */
            assert(!applied);   /* no write is applied twice */
            old_version = version; old_counted = counted;
            version++; counted = value + 1; write_id = mine; landed++; applied = 1;
            if
            :: reported = ACCEPTED; base = version; value = counted
            :: lost_replies > 0 -> lost_replies--; doubt = 1
            fi
        }
        :: atomic {
            reported == UNDECIDED && !MATCHES ->
            if
            :: !doubt -> reported = REFUSED
            :: doubt -> reported = IN_DOUBT         /* whose write was it? */
            fi
        }
        :: atomic {                                 /* the request does not arrive */
            reported == UNDECIDED && lost_replies > 0 -> lost_replies--; doubt = 1
        }
        :: reported != UNDECIDED -> break
        od;
        if
        :: atomic {
            reported == IN_DOUBT && RECOGNISED -> reported = ACCEPTED; base = version; value = counted
        }
        :: atomic { reported == IN_DOUBT && !RECOGNISED -> cached = 0 }     /* may_have_landed */
        :: atomic { reported == REFUSED -> cached = 0 }
        :: reported == ACCEPTED
        fi;
        atomic {
            assert(reported != ACCEPTED || applied);
            assert(reported != REFUSED || !applied);
            assert(reported == ACCEPTED || MAY_BE_REFUSED);
            reported = UNDECIDED; doubt = 0; applied = 0; mine = 0
        };
#ifndef RELEASE_BEFORE_COMMIT
        holders--                                   /* the lock is left when its writes are settled */
#endif
    :: else -> break
    od;
    atomic { base = 0; value = 0; cached = 0 }
}

/* In the end each applied write is present, once. */
active proctype Audit()
{
    byte n;
    atomic {
        n = 1;
        do
        :: n <= WRITERS -> run Writer(n); n++
        :: else -> break
        od
    };
    _nr_pr == 1;
    assert(counted == landed)
}
