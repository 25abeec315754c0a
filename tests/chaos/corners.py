"""Operations in which several writes share one object, one request or one turn of ndb's loop."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from google.cloud import ndb
from google.cloud.ndb import _datastore_api, _options, tasklets

import userlock
from tests.chaos.models import child_of, key_of, other_name_of
from tests.chaos.programs import Guard, Read, Way
from tests.chaos.record import Outcome, Write
from tests.chaos.request import (
    Changes,
    Found,
    Request,
    begin_all,
    error_of,
    in_transaction,
    outcome_of,
)
from userlock.ndb.transactions import finish_writes

#: The longest time for which one of two threads waits for the other, in seconds.
_MEETS_SECONDS = 30.0

#: Functions that wait for a begun write and record its outcome.
Waiting = list[Callable[[], object]]


def _wait_for_each(waiting: Waiting) -> None:
    for wait in waiting:
        wait()


# --- one object, two threads ----------------------------------------------------------------


def _shared(request: Request) -> None:
    put = _OF_TWO_THREADS[request.operation.variant % len(_OF_TWO_THREADS)]
    for name, entity in request.read():
        changes = request.changes(name, entity)
        put(request, changes)
        changes.settle()


def _in_turns(request: Request, changes: Changes) -> None:
    """Have each thread change the object and begin a put. They wait for their puts at once."""
    mutex = threading.Lock()

    def change_and_put() -> None:
        for _ in range(2):
            with mutex:
                changes.change()
                wait = changes.begin()
            wait()

    with _beside(request, change_and_put):
        change_and_put()


def _at_once(request: Request, changes: Changes, put: Callable[[], object] | None = None) -> None:
    """Have both threads put the object as it is, at the same moment."""
    changes.change()
    changes.change()
    meeting = threading.Barrier(2, timeout=_MEETS_SECONDS)

    def meet_and_put() -> None:
        meeting.wait()
        changes.put()

    with _beside(request, meet_and_put):
        meeting.wait()
        changes.put(put)


def _one_in_a_transaction(request: Request, changes: Changes) -> None:
    _at_once(request, changes, lambda: in_transaction(changes.entity.put))


@contextlib.contextmanager
def _beside(request: Request, action: Callable[[], None]) -> Iterator[None]:
    """Run the action in another thread meanwhile."""
    with request.surroundings.beside(action):
        yield


_OF_TWO_THREADS = (_in_turns, _at_once, _one_in_a_transaction)


# --- puts in hooks --------------------------------------------------------------------------


def _put_in_hook(request: Request) -> None:
    """Put the same object in the hook of a put, perhaps while an earlier put is in progress."""
    waits, under_way = divmod(request.operation.variant % 4, 2)
    for name, entity in request.read():
        changes = request.changes(name, entity)
        waiting: Waiting = []
        changes.change()
        if under_way:
            waiting.append(changes.begin())
            changes.change()
        again = functools.partial(_change_and_put, changes, waiting, waits=bool(waits))
        changes.entity.before_next_put(again)
        changes.put()
        _wait_for_each(waiting)
        changes.settle()


def _change_and_put(changes: Changes, waiting: Waiting, *, waits: bool) -> None:
    """Make a change in a hook and put it, then make another one for the surrounding put."""
    changes.change()
    if waits:
        changes.put()
    else:
        waiting.append(changes.begin())
    changes.change()


def _put_graph(request: Request) -> None:
    """Put a parent whose hook puts its child, whose hook may put the parent."""
    waits, back = divmod(request.operation.variant % 4, 2)
    for name, entity in request.read():
        kept = request.read_one(child_of(name))
        parent, child = request.changes(name, entity), request.changes(child_of(name), kept)
        waiting: Waiting = []
        parent.change()
        if back:
            child.change()
            again = functools.partial(_change_and_put, parent, waiting, waits=bool(waits))
            child.entity.before_next_put(again)
        other = functools.partial(_change_and_put, child, waiting, waits=bool(waits))
        parent.entity.before_next_put(other)
        parent.put()
        child.put()  # of the last change
        _wait_for_each(waiting)
        parent.settle()
        child.settle()


# --- several in one call --------------------------------------------------------------------


def _put_multi(request: Request) -> None:
    """Put all of them, or none if one is refused at once. A put of one may be in progress."""
    every = [request.changes(name, entity) for name, entity in request.read()]
    # Refused entities come last: the others were begun before.
    every.sort(key=lambda changes: request.forbids(changes.name))
    allowed = [changes for changes in every if not request.forbids(changes.name)]
    waiting: Waiting = []
    for changes in every:
        changes.change()
    if request.operation.variant % 2 and allowed:
        waiting.append(allowed[-1].begin())
        allowed[-1].change()
    waiting += begin_all(every)
    _wait_for_each(waiting)
    for changes in every:
        changes.settle()


# --- without awaiting the outcome --------------------------------------------------------


def _drop(request: Request) -> None:
    """Begin writes and drop their futures. If the lock or the request ends without an error, all
    have landed."""
    begun: list[Write] = []

    def put_and_leave() -> None:
        with request.locked():
            found = request.read()
            if request.operation.guard is Guard.PARTLY:
                _drop_beside(request, found, begun)
            else:
                for name, entity in found:
                    _begin_and_drop(request, name, entity, begun)
        finish_writes()

    error = error_of(put_and_leave)
    if error is not None and not begun:
        raise error
    for write in begun:
        assert write.entity is not None
        mine = error is None or getattr(error, "key", None) == key_of(write.entity)
        outcome = outcome_of(error)
        request.recorder.ended(write, outcome if mine else Outcome.UNKNOWN, error)


def _begin_and_drop(request: Request, name: str, entity: Any, begun: list[Write]) -> None:
    """Begin a put, or a delete of an entity in the context cache: as it was read last."""
    begin: Callable[[], object]
    if _deletes(request) and entity is not None:
        write = request.write(name, entity.last, deletes=True)
        begin = entity.key.delete_async
    else:
        changed, write = request.changed(name, entity)
        begin = changed.put_async
    try:
        begin()
    except userlock.WriteViolation as violation:
        request.ended(write, violation)
    else:
        begun.append(write)


def _deletes(request: Request) -> bool:
    return request.operation.variant % 2 == 1 and request.operation.read is Read.GET


def _drop_beside(request: Request, found: list[Found], begun: list[Write]) -> None:
    """Begin writes in a tasklet, during a put of several others, one of which is refused."""
    several = [(name, entity) for name, entity in found if not request.forbids(name)]
    (dropped, dropped_entity), *others = several
    others += [(name, entity) for name, entity in found if request.forbids(name)]
    every = [request.changes(name, entity) for name, entity in others]
    for changes in every:
        changes.change()
    waiting: Waiting = [every[0].begin()]
    every[0].change()

    @ndb.tasklet
    def read_and_drop() -> Any:
        latest = yield key_of(dropped).get_async(use_cache=False)
        found = latest if _deletes(request) else dropped_entity
        _begin_and_drop(request, dropped, found, begun)

    beside = read_and_drop()
    waiting += begin_all(every)
    _wait_for_each(waiting)
    beside.get_result()
    for changes in every:
        changes.settle()


# --- contexts within contexts ---------------------------------------------------------------

#: The nesting depths of the contexts of the read and of the write.
_DEPTHS = ((0, 1), (0, 2), (1, 2), (1, 0))


def _apart(
    request: Request,
    write: Callable[[list[Found]], Waiting],
    prepare: Callable[[list[Found]], Waiting] = lambda _: [],
) -> None:
    """Read and prepare in one context, and write in another. Wait there, or outside."""
    variant = request.operation.variant
    read_at, write_at = _DEPTHS[variant % 4]
    waiting: Waiting = []
    with contextlib.ExitStack() as within:
        _descend(within, read_at)
        found = request.read()
        waiting += prepare(found)
        if write_at < read_at:
            within.close()
        _descend(within, write_at - read_at)
        waiting += write(found)
        if variant // 4 % 2:
            _wait_for_each(waiting)
            waiting = []
    _wait_for_each(waiting)


def _descend(within: contextlib.ExitStack, levels: int) -> None:
    for _ in range(levels):
        within.enter_context(ndb.get_context().new(cache=None).use())


def _put_apart(request: Request) -> None:
    def put_all(found: list[Found]) -> Waiting:
        waiting: Waiting = []
        for name, entity in found:
            changed, write = request.changed(name, entity)
            waiting.append(request.begun(write, changed.put_async))
        return waiting

    _apart(request, put_all)


def _delete_apart(request: Request) -> None:
    """Delete in another context, perhaps after a put that has landed or is in progress."""
    every: list[Changes] = []
    put_before = request.operation.variant // 8

    def prepare(found: list[Found]) -> Waiting:
        every.extend(request.changes(name, entity) for name, entity in found if entity is not None)
        waiting: Waiting = []
        for changes in every if put_before else []:
            changes.change()
            if put_before == 1:
                changes.put()
            else:
                waiting.append(changes.begin())
        return waiting

    def delete_all(_: list[Found]) -> Waiting:
        waiting: Waiting = []
        for changes in every:
            if put_before != 1 or changes.landed:
                gone = request.write(changes.name, changes.entity.last, deletes=True)
                waiting.append(request.begun(gone, changes.entity.key.delete_async))
        return waiting

    _apart(request, delete_all, prepare)
    for changes in every:
        changes.settle()


# --- renaming -------------------------------------------------------------------------------


def _rename(request: Request) -> None:
    for name, entity in request.read():
        _rename_one(request, name, entity, request.read_one(other_name_of(name)))


def _rename_what_was_read_before(request: Request) -> None:
    found = [
        (name, entity, request.read_one(other_name_of(name))) for name, entity in request.read()
    ]

    def step() -> None:
        for each in found:
            _rename_one(request, *copy.deepcopy(each))

    request.transact(step)


def _rename_one(request: Request, name: str, entity: Any, other: Any) -> None:
    """Put an entity under its other name, then delete it under its first name.

    If there is none, create it. If both exist, the first one replaces the second.
    """
    old, new = name, other_name_of(name)
    if entity is None:
        old, new, entity = new, old, other
    if entity is None:
        changed, write = request.changed(name, None)
        request.report(write, changed.put)
        return
    key, last = entity.key, entity.last
    put = request.write(new, None)
    entity.key, entity.count, entity.last = key_of(new), 1, put.id
    if request.operation.variant % 2:
        waiting: Waiting = [request.begun(put, entity.put_async)]
        waiting.append(request.begun(request.write(old, last, deletes=True), key.delete_async))
        _wait_for_each(waiting)
    elif request.report(put, entity.put):
        request.report(request.write(old, last, deletes=True), key.delete)
        changed, again = request.changed(new, entity)
        request.report(again, changed.put)


# --- unguarded puts, in tasklets -------------------------------------------------------------


def _in_tasklets(request: Request) -> None:
    """Write in tasklets side by side. Some do it unguarded, which does not apply to the others."""
    first, second, third = request.operation.entities
    opened = tasklets.Future("an unguarded put has begun")

    @ndb.tasklet
    def write(name: str, unguarded: str | None) -> Any:
        try:
            entity = yield request.read_one_async(name)
            request.pause()
            if unguarded is None:
                yield opened
            changed, written = request.changed(name, entity, unguarded=unguarded is not None)
            try:
                put = changed.put_async(unguarded=unguarded)
                _reached(opened)
                yield put
            except Exception as error:
                request.ended(written, error)
            else:
                request.ended(written, None)
        finally:
            _reached(opened)

    also = "another one" if request.operation.variant % 2 else None
    running = [write(second, None), write(third, also), write(first, "one of several tasklets")]
    tasklets.wait_all(running)
    for each in running:
        each.get_result()


def _reached(point: Any) -> None:
    if not point.done():
        point.set_result(None)


# --- past the library -----------------------------------------------------------------------


def _put_past(request: Request) -> None:
    """Put past the library: the last entity is not put by its model; the others may be."""
    found = request.read()
    every = request.operation.variant % 2
    for number, (name, entity) in enumerate(found, 1):
        past = bool(every) or number == len(found)
        changed, write = request.changed(name, entity, past=past)
        request.report(write, functools.partial(_send, changed) if past else changed.put)


def _send(entity: Any) -> None:
    message = ndb.model._entity_to_ds_entity(entity)
    _datastore_api.put(message, _options.Options()).get_result()


WAYS: Mapping[Way, Callable[[Request], None]] = {
    Way.SHARED: _shared,
    Way.HOOK: _put_in_hook,
    Way.GRAPH: _put_graph,
    Way.MULTI: _put_multi,
    Way.DROPPED: _drop,
    Way.APART: _put_apart,
    Way.DELETE_APART: _delete_apart,
    Way.RENAME: _rename,
    Way.RENAME_READ_BEFORE: _rename_what_was_read_before,
    Way.TASKLETS: _in_tasklets,
    Way.PAST: _put_past,
}
