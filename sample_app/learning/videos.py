"""Videos: begun, then read part by part."""

from __future__ import annotations

import datetime
import math

import userlock
from sample_app import catalogue, demonstration
from sample_app.catalogue.things import POINTS_PER_PART
from sample_app.errors import BadInput, TooEarly
from sample_app.learning.learners import find_learner
from sample_app.models import Learner, VideoLog, Viewing


def begin_video(learner_id: str, video: catalogue.Video, now: datetime.datetime) -> Learner:
    """Start the clock of the first part. For a video already begun, nothing changes."""
    with userlock.global_lock(learner_id, wait_timeout=5):
        learner = find_learner(learner_id)
        demonstration.think()
        if learner.viewing(video.slug) is None:
            learner.viewings.append(Viewing(video=video.slug, part_began=now))
            learner.put()
    return learner


def finish_part(
    learner_id: str, video: catalogue.Video, part: int, now: datetime.datetime
) -> tuple[Learner, int]:
    """Award points, seconds, the streak and a log entry for a part; the next one begins.

    `part` counts from 0. A finished part is not counted again, for example after a double click.
    Returns the learner and the points earned.

    Raises:
        TooEarly: it was faster than anyone can read.
        BadInput: earlier parts are not finished.
    """
    with userlock.global_lock(learner_id, wait_timeout=5):
        learner = find_learner(learner_id)
        demonstration.think()
        viewing = learner.viewing(video.slug)
        if viewing is None or not 0 <= part < len(video.parts) or part > viewing.parts_done:
            raise BadInput("part", "finish the earlier parts first")
        if part < viewing.parts_done:
            return learner, 0
        # By the server's clock: the browser's is not trusted.
        elapsed = (now - viewing.part_began).total_seconds()
        this = video.parts[part]
        if elapsed < this.least_seconds:
            raise TooEarly(
                seconds=this.seconds, seconds_left=math.ceil(this.least_seconds - elapsed)
            )
        seconds = min(int(elapsed), this.seconds)
        viewing.parts_done += 1
        viewing.part_began = now
        learner.seconds_watched += seconds
        learner.earn(POINTS_PER_PART, now.date())
        learner.put()
        VideoLog(
            learner_id=learner_id, video=video.slug, seconds=seconds, points=POINTS_PER_PART
        ).put()
    return learner, POINTS_PER_PART
