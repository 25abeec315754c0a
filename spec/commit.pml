/* Writes: an entity is read, changed and put under a lock that may fail at any moment.
 *
 * Of the lock this model knows only that it may not do its work: with LOCK_MAY_FAIL somebody else
 * may get it while it is held, at any moment and any number of times. (When it does work is shown
 * in lock.pml.) README.md says which function each step is.
 *
 * The entity counts the writes that have landed. Each write adds one to what it has read, so
 * whatever is lost is missing in the end.
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

/* Datastore. Version 0: there is no such entity. */
byte version, counted, mark;
byte landed;                    /* how many writes have been applied */
byte lost_replies = LOST_REPLIES;
byte old_version, old_counted;  /* the one before: what a cache may still have */

byte holders;                   /* how many believe that they hold the lock */

/* What a writer is told. */
mtype = { UNDECIDED, ACCEPTED, REFUSED, IN_DOUBT };

#ifdef FENCING_OFF              /* what is put overwrites whatever is there */
#define MATCHES true
#else                           /* `base_version`; an insert where nothing was read */
#define MATCHES (base == version)
#endif
#ifdef EVICTION_OFF             /* what was read under an earlier tenure is taken for what is there */
#define CACHED (cached)
#else
#define CACHED false
#endif

#ifdef BY_CONTENT               /* a write is known again by what it has written */
#define RECOGNISED (counted == value + 1)
#else                           /* `has_mark_of`: by a number that no other write has */
#define RECOGNISED (mark == mine)
#endif

/* While the lock works and replies come, nobody is refused. */
#ifndef MAY_BE_REFUSED
#define MAY_BE_REFUSED (LOCK_MAY_FAIL || OLD_READS || LOST_REPLIES)
#endif

proctype Writer(byte me)
{
    byte base, value, tenures, mine;
    bit cached, doubt, applied;
    mtype told = UNDECIDED;

    do
    :: tenures < TENURES ->
        atomic {                                    /* global_lock: a new tenure */
            holders == 0 || LOCK_MAY_FAIL ->
            holders++; tenures++;
            mine = me * TENURES + tenures;          /* a WriteIdProperty's number: this put's own */
            told = UNDECIDED; doubt = 0; applied = 0
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
#ifdef RELEASE_BEFORE_COMMIT    /* the lock is left while the put is on its way */
        holders--;
#endif
        /* put(), and its commit; sent again when its reply is lost (`_send_again`) */
        do
        :: atomic {
            told == UNDECIDED && MATCHES ->
            assert(base == version);                /* nobody's write is overwritten unread */
            assert(!applied);                       /* nor is one applied twice */
            old_version = version; old_counted = counted;
            version++; counted = value + 1; mark = mine; landed++; applied = 1;
            if
            :: told = ACCEPTED; base = version; value = counted
            :: lost_replies > 0 -> lost_replies--; doubt = 1
            fi
        }
        :: atomic {
            told == UNDECIDED && !MATCHES ->
            if
            :: !doubt -> told = REFUSED
            :: doubt -> told = IN_DOUBT             /* then who was it? find_ours */
            fi
        }
        :: atomic {                                 /* the request does not arrive */
            told == UNDECIDED && lost_replies > 0 -> lost_replies--; doubt = 1
        }
        :: told != UNDECIDED -> break
        od;
        if
        :: atomic {
            told == IN_DOUBT && RECOGNISED -> told = ACCEPTED; base = version; value = counted
        }
        :: atomic { told == IN_DOUBT && !RECOGNISED -> cached = 0 }     /* may_have_landed */
        :: atomic { told == REFUSED -> cached = 0 }
        :: told == ACCEPTED
        fi;
        atomic {
            assert(told != ACCEPTED || applied);
            assert(told != REFUSED || !applied);
            assert(told == ACCEPTED || MAY_BE_REFUSED);
            told = UNDECIDED; doubt = 0; applied = 0; mine = 0
        };
#ifndef RELEASE_BEFORE_COMMIT
        holders--                                   /* HeldLock: left when its writes are settled */
#endif
    :: else -> break
    od;
    atomic { base = 0; value = 0; cached = 0 }
}

/* In the end all is there that was applied, once. */
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
