"""A transaction around a `with` block. ndb's own take a function, which it may run again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from google.cloud import ndb
from google.cloud.ndb import tasklets

from userlock.ndb.context import current_context, in_transaction


@contextlib.contextmanager
def open_transaction() -> Iterator[None]:
    """Run a block in a transaction, which is committed at its end and rolled back by an error.

    The block runs once: a conflict with another transaction is raised (`Aborted`), and
    the caller decides whether to run all of it again.

    Raises:
        RuntimeError: there is a transaction already.
    """
    if in_transaction():
        raise RuntimeError("a transaction is open already, and transactions do not nest")
    over: Any = tasklets.Future("the block of a transaction")
    inside: Any = tasklets.Future("the context of the block")

    def begun() -> Any:
        inside.set_result(current_context())
        return over

    # ndb commits when the future that its function has returned is done.
    committed = ndb.transaction_async(begun, retries=0)
    tasklets.wait_any([inside, committed])
    if not inside.done():
        committed.check_success()
    try:
        with inside.result().use():
            yield
    except BaseException as error:
        over.set_exception(error)
        committed.wait()  # until it is rolled back
        committed.exception()  # is raised here
        raise
    over.set_result(None)
    committed.check_success()
