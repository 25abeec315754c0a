"""The checks of `make spec`: each run of a model, and whether it must hold or must fail."""

from __future__ import annotations

from typing import NamedTuple


class Check(NamedTuple):
    """One run of spin over a model.

    Attributes:
        says: the property, or the omission that must make it fail.
        model: the file.
        options: compile-time options of the model (`-D…` of spin).
        holds: whether the check must hold; otherwise spin must find a counter-example.
        claim: the name of a formula to check, with weak fairness; empty: assertions and the
            absence of deadlocks.
    """

    says: str
    model: str
    options: tuple[str, ...] = ()
    holds: bool = True
    claim: str = ""


#: Two interactive clients and a batch client, instead of three and one.
_TWO = "-DWITHOUT_CLIENT_3"
#: One accident of any kind, at any moment.
_SMALL = (_TWO, "-DACCIDENTS=1")
#: Only deaths and timeouts.
_ORDERLY = ("-DPAUSES=0", "-DLOSSES=0", "-DLOST_REPLIES=0", "-DSLOW_REPLIES=0")
#: All clients repeat for ever.
_FOR_EVER = ("-DPROGRESS", "-DLOOPS=true", "-DEXTENSIONS=0", *_ORDERLY)
#: One of the clients other than client 2 (interactive), or 4 (batch), dies or gives up.
_BUT_INTERACTIVE = (_TWO, "-DACCIDENTS=1", "-DLASTING=4", *_FOR_EVER)
_BUT_BATCH = (_TWO, "-DACCIDENTS=1", "-DLASTING=16", *_FOR_EVER)
_DISTURBED = ("-DLOCK_MAY_FAIL=1", "-DLOST_REPLIES=1", "-DOLD_READS=1")

CHECKS = (
    Check("exclusion, order, no deadlock: 3 interactive, 1 batch; one accident", "lock.pml",
          ("-DACCIDENTS=1",)),
    Check("the same: 2 interactive, 1 batch; two accidents", "lock.pml", (_TWO, "-DACCIDENTS=2")),
    Check("the same: one accident; clients may try only once", "lock.pml",
          (*_SMALL, "-DTRY_ONCE")),
    Check("a waiting interactive client is served; another dies or gives up", "lock.pml",
          _BUT_INTERACTIVE, claim="interactive_is_served"),
    Check("a waiting batch client is served; another dies or gives up", "lock.pml",
          _BUT_BATCH, claim="batch_is_served"),
    Check("release by plain delete", "lock.pml", (*_SMALL, "-DPLAIN_DELETE"), holds=False),
    Check("renewals by plain touch", "lock.pml", (*_SMALL, "-DPLAIN_TOUCH"), holds=False),
    Check("versions trusted after a restart", "lock.pml", (*_SMALL, "-DTRUST_VERSIONS"),
          holds=False),
    Check("leases that lapse early in the store", "lock.pml", (*_SMALL, "-DLAPSES_EARLY"),
          holds=False),
    Check("a free lock for the first client to see it", "lock.pml",
          (_TWO, *_ORDERLY, "-DTURNS_OFF"), holds=False),
    Check("batch does not stand back", "lock.pml", (_TWO, *_ORDERLY, "-DBATCH_RULE_OFF"),
          holds=False),
    Check("dead waiters are not passed", "lock.pml", (*_BUT_INTERACTIVE, "-DNO_PASSING"),
          holds=False, claim="interactive_is_served"),
    Check("batch does not age", "lock.pml", (*_BUT_BATCH, "-DAGEING_OFF"),
          holds=False, claim="batch_is_served"),
    Check("nothing lost, nothing refused: the lock works", "commit.pml"),
    Check("nothing lost: the lock fails, a reply is lost, caches are stale", "commit.pml",
          _DISTURBED),
    Check("nothing lost without fencing: the lock works", "commit.pml", ("-DFENCING_OFF",)),
    Check("without fencing: the lock fails", "commit.pml",
          ("-DLOCK_MAY_FAIL=1", "-DFENCING_OFF"), holds=False),
    Check("release before the commit", "commit.pml", ("-DRELEASE_BEFORE_COMMIT",), holds=False),
    Check("no eviction from the context cache", "commit.pml", ("-DEVICTION_OFF",),
          holds=False),
    Check("writes recognised by their content", "commit.pml", (*_DISTURBED, "-DBY_CONTENT"),
          holds=False),
)  # fmt: skip

#: Checks that take minutes and gigabytes: `make spec SPEC=--full`.
LONG_CHECKS = (
    Check("a waiting interactive client is served: 3 interactive", "lock.pml", _FOR_EVER,
          claim="interactive_is_served"),
    Check("a waiting batch client is served: 3 interactive", "lock.pml", _FOR_EVER,
          claim="batch_is_served"),
    Check("exclusion, order: 3 interactive; one accident; may try only once", "lock.pml",
          ("-DACCIDENTS=1", "-DTRY_ONCE")),
    Check("the first run, with two accidents", "lock.pml",
          ("-DACCIDENTS=2",)),
)  # fmt: skip
