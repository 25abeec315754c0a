"""A coach's actions for several learners at once: all of them, or none."""

from __future__ import annotations

from collections.abc import Collection

from google.cloud import ndb

import userlock
from sample_app import demonstration
from sample_app.errors import NotEnoughPoints, NotInGroup, Unknown
from sample_app.learning.learners import find_learner
from sample_app.models import Bonus, Coach, Learner
from userlock.idempotency import Flow


def find_coach(coach_id: str) -> Coach:
    """Return the coach with this id, or raise `Unknown`. Reading needs no lock."""
    coach: Coach | None = Coach.get_by_id(coach_id)
    if coach is None:
        raise Unknown("coach", coach_id)
    return coach


def group_of(coach: Coach) -> list[Learner]:
    """Return the learners of this coach, by name. Reading needs no lock."""
    found = ndb.get_multi([ndb.Key(Learner, each) for each in coach.learner_ids])
    return sorted((each for each in found if each), key=lambda each: str(each.name))


def locks(coach_id: str, learner_ids: Collection[str]) -> userlock.global_locks:
    """Lock a coach and learners, always in the same order, so that two coaches who share learners
    cannot deadlock. If the wait for one lock times out, none is held."""
    return userlock.global_locks([coach_id, *sorted(set(learner_ids))], wait_timeout=5)


def give_bonus(flow: Flow, learner_ids: Collection[str], points: int, word: str) -> None:
    """Give each of these learners `points` of the coach's, with a comment; under all their locks.

    The transaction charges the coach exactly for the points that arrive. The request is the
    coach's. Sent again, it gives nothing and gets the same answer.

    Raises:
        NotInGroup: not all learners are in this coach's group.
        NotEnoughPoints: the coach has too few points left.
    """
    given_to = sorted(set(learner_ids))
    with flow.last() as end:
        coach = find_coach(flow.user_id)
        if strangers := set(given_to) - set(coach.learner_ids):
            raise NotInGroup(strangers)
        learners = [find_learner(each) for each in given_to]
        demonstration.think()
        price = points * len(learners)
        if price > coach.bonus_left:
            raise NotEnoughPoints("This bonus", price=price, points=coach.bonus_left)
        coach.bonus_left -= price
        for learner in learners:
            learner.points += points
        bonuses = [
            Bonus(
                learner_id=learner.id,
                coach=coach.name,
                points=points,
                word=word,
            )
            for learner in learners
        ]
        ndb.put_multi([coach, *learners, *bonuses])
        end.respond({"learners": given_to, "points": points}, 201)
