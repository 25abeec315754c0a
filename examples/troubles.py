"""Problems of transactions without locks: docs/transactions.md has the reasons.

    python troubles.py stale_reads pessimistic

The arguments are a function of this file, and a mode of the emulator.
"""

import contextlib
import os
import sys
import threading
import time

from google.api_core.exceptions import Aborted, InvalidArgument
from google.cloud import ndb

import userlock
import userlock.ndb  # with it, a transaction raises Datastore's own errors
import userlock_emulator

datastore = userlock_emulator.start(concurrency_mode=sys.argv[2])
os.environ.update(datastore.env)
client = ndb.Client()


class User(ndb.Model):
    points = ndb.IntegerProperty(default=0)


class VideoLog(ndb.Model):
    user_id = ndb.StringProperty()


def points():
    return User.get_by_id("ann", use_cache=False).points


def add_five():
    user = User.get_by_id("ann")
    user.points += 5
    user.put()


def request(action):
    """Start another request."""

    def run():
        with client.context():
            action()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def meanwhile(action):
    """Run another request until it is done or waits for a transaction."""
    thread = request(action)
    while thread.is_alive() and not datastore.waiting:
        time.sleep(0.001)
    return thread


def stale_reads():
    def add_one(**options):
        user = User.get_by_id("ann", **options)
        user.points += 1
        user.put()

    def add_two(**options):
        add_one(**options)
        add_one(**options)

    def read_late():
        User.get_by_id("bob")  # the transaction begins
        meanwhile(lambda: User(id="ann", points=100).put()).join()
        return User.get_by_id("ann").points

    with client.context():
        User(id="ann").put()
        ndb.transaction(add_two)
        print(points())  # by the context cache
        ndb.transaction(lambda: add_two(use_cache=False))
        print(points())  # one increment is lost
        print(ndb.transaction(read_late))  # 100 was put before the read


def repeated_runs():
    mails = []
    both_have_read = threading.Barrier(2)

    def finish_exercise():
        user = User.get_by_id("ann")
        mails.append("Well done!")
        if len(mails) <= 2:
            both_have_read.wait()
        user.points += 5
        user.put()

    with client.context():
        User(id="ann").put()
        other = request(lambda: ndb.transaction(finish_exercise))
        ndb.transaction(finish_exercise)
        other.join()
        print(points(), "points,", len(mails), "mails")

        User(id="ann").put()
        datastore.faults.drop_reply()  # of the next commit
        ndb.transaction(add_five)
        print(points(), "points")


def writes_outside():
    def with_a_write_inside(write):
        User(id="ann").put()
        runs, others = [], []

        def add_five_slowly():
            runs.append(1)
            user = User.get_by_id("ann")
            if len(runs) == 1:
                others.append(meanwhile(write))
            user.points += 5
            user.put()

        ndb.transaction(add_five_slowly)
        others[0].join()
        return f"runs: {len(runs)}, points: {points()}"

    with client.context():
        ann = ndb.Key(User, "ann")
        print(with_a_write_inside(lambda: User(id="ann", points=100).put()))  # the same entity
        print(with_a_write_inside(lambda: VideoLog(parent=ann).put()))  # its entity group


def queries():
    runs = []

    def watch_video(query):
        VideoLog(parent=ndb.Key(User, "ann"), user_id="ann").put()
        return query.count()

    def save_count(query):
        runs.append(1)
        count = query.count()
        if len(runs) == 1:
            meanwhile(lambda: VideoLog(parent=ndb.Key(User, "ann"), user_id="ann").put())
        User(id="ann", points=count).put()

    with client.context():
        of_ann = VideoLog.query(ancestor=ndb.Key(User, "ann"))
        print(ndb.transaction(lambda: watch_video(of_ann)))
        try:
            print(ndb.transaction(lambda: watch_video(VideoLog.query(VideoLog.user_id == "ann"))))
        except InvalidArgument as error:
            print(error.message)
        ndb.transaction(lambda: save_count(of_ann))
        print(len(runs))  # another request has logged a video


def nesting():
    def fail():
        add_five()
        raise ValueError("no such video")

    def try_it():
        with contextlib.suppress(ValueError):
            ndb.transaction(fail, join=True)

    def around_an_independent_one():
        user = User.get_by_id("ann")
        ndb.transaction(add_five, propagation=ndb.TransactionOptions.INDEPENDENT, retries=0)
        user.points += 5
        user.put()

    with client.context():
        User(id="ann").put()
        try:
            ndb.transaction(lambda: ndb.transaction(add_five))
        except NotImplementedError:
            print("refused")
        ndb.transaction(try_it)
        print(points())  # the inner one was committed

        User(id="ann").put()
        try:
            ndb.transaction(around_an_independent_one, retries=0)
        except Aborted:
            print("aborted,", points(), "points")


def under_the_lock():
    userlock.configure(service=userlock.LockService.from_url("memory://"))
    mails = []

    class Learner(userlock.UserModel):
        _lock_id_from_key = userlock.key_id
        points = ndb.IntegerProperty(default=0)
        videos = ndb.IntegerProperty(default=0)
        write_id = userlock.WriteIdProperty()

    class Video(userlock.UserModel):
        _lock_id = "learner_id"
        learner_id = ndb.StringProperty()

    def finish_exercise():
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            learner.points += 5
            learner.put()
            mails.append("Well done!")

    def finish_lesson():
        with userlock.global_lock("ann"):
            finish_exercise()  # nested: the same lock
            finish_exercise()  # sees the earlier put
            Video(learner_id="ann").put()
            learner = Learner.get_by_id("ann")
            learner.videos = Video.query(Video.learner_id == "ann").count()
            learner.put()

    def state():
        learner = Learner.get_by_id("ann", use_cache=False)
        return f"{learner.points} points, {len(mails)} mails, {learner.videos} videos"

    with client.context():
        with userlock.global_lock("ann"):
            Learner(id="ann").put()
        other = request(finish_lesson)
        finish_lesson()
        other.join()
        print(state())

        datastore.faults.drop_reply(kind="Learner")
        with userlock.global_lock("ann"):
            ndb.transaction(finish_exercise)  # not run again, by `write_id`
        print(state())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    datastore.stop()
