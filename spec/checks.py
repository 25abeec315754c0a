"""What `make spec` checks: each run of a model, and whether it must hold or must fail."""

from __future__ import annotations

from typing import NamedTuple


class Check(NamedTuple):
    """One run of spin over a model.

    Attributes:
        says: what is checked, or what was left out so that it must fail.
        model: the file.
        options: what the model is compiled with (`-D…` of spin).
        holds: whether it must; otherwise a counter-example must be found.
        claim: the name of a formula that is checked, with weak fairness; empty: assertions and
            the absence of deadlocks.
    """

    says: str
    model: str
    options: tuple[str, ...] = ()
    holds: bool = True
    claim: str = ""


#: Two people and a batch worker: one accident of any kind, at any moment.
_SMALL = ("-DWITHOUT_PERSON_3", "-DACCIDENTS=1")
#: Only deaths and lost patience.
_ORDERLY = ("-DPAUSES=0", "-DLOSSES=0", "-DLOST_REPLIES=0", "-DSLOW_REPLIES=0")
_DISTURBED = ("-DLOCK_MAY_FAIL=1", "-DLOST_REPLIES=1", "-DOLD_READS=1")

CHECKS = (
    Check("exclusion, no other's lease touched, no deadlock: one accident", "lock.pml", _SMALL),
    Check("the same with three people, no accident", "lock.pml", ("-DACCIDENTS=0",)),
    Check(
        "first come, first served; batch after people: three people",
        "lock.pml",
        ("-DORDER", "-DACCIDENTS=0", *_ORDERLY),
    ),
    Check("the same: one death or lost patience", "lock.pml",
          ("-DORDER", "-DWITHOUT_PERSON_3", "-DACCIDENTS=1", *_ORDERLY)),
    Check(
        "a person who waits is served, whoever comes again and again",
        "lock.pml",
        ("-DWITHOUT_PERSON_3", "-DPROGRESS", "-DLOOPS=true", "-DEXTENSIONS=0", *_ORDERLY),
        claim="person_is_served",
    ),
    Check("with release by plain delete", "lock.pml", (*_SMALL, "-DPLAIN_DELETE"), holds=False),
    Check("with heartbeats by plain touch", "lock.pml", (*_SMALL, "-DPLAIN_TOUCH"), holds=False),
    Check("with versions trusted after a restart", "lock.pml", (*_SMALL, "-DTRUST_VERSIONS"),
          holds=False),
    Check("with leases that lapse early in the store", "lock.pml", (*_SMALL, "-DLAPSES_EARLY"),
          holds=False),
    Check("with the batch rule off", "lock.pml",
          ("-DORDER", "-DWITHOUT_PERSON_3", *_ORDERLY, "-DBATCH_RULE_OFF"), holds=False),
    Check("nothing lost, nobody refused: the lock works", "commit.pml"),
    Check("nothing lost: the lock fails, a reply is lost, caches are old", "commit.pml",
          _DISTURBED),
    Check("nothing lost without fencing: the lock works", "commit.pml", ("-DFENCING_OFF",)),
    Check("with fencing off: the lock fails", "commit.pml",
          ("-DLOCK_MAY_FAIL=1", "-DFENCING_OFF"), holds=False),
    Check("with release before commit", "commit.pml", ("-DRELEASE_BEFORE_COMMIT",), holds=False),
    Check("with the context cache's eviction off", "commit.pml", ("-DEVICTION_OFF",),
          holds=False),
    Check("with writes recognised by their content", "commit.pml", (*_DISTURBED, "-DBY_CONTENT"),
          holds=False),
)  # fmt: skip

#: What takes minutes: `make spec SPEC=--full`.
LONG_CHECKS = (
    Check("exclusion, with three people: one accident", "lock.pml", ("-DACCIDENTS=1",)),
    Check("exclusion: two accidents", "lock.pml", ("-DWITHOUT_PERSON_3", "-DACCIDENTS=2")),
)
