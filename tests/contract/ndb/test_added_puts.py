"""What userlock adds to a batch of puts is what ndb would have added."""

from __future__ import annotations

import pytest
from google.cloud import ndb
from google.cloud.ndb import _datastore_api, _options
from google.cloud.ndb import model as ndb_model

from tests.contract.ndb.models import Learner
from userlock.ndb.hooks.writing import add_put


@pytest.mark.usefixtures("context")
def test_it_is_what_ndb_adds() -> None:
    options = _options.Options()
    theirs, ours = (_datastore_api._NonTransactionalCommitBatch(options) for _ in range(2))
    for name in ("ann", "bob"):
        message = ndb_model._entity_to_protobuf(Learner(id=name, points=1))
        # This message is of no watched write, so it goes to ndb's own function.
        their_future, our_future = theirs.put(message), add_put(ours, message)
        assert type(our_future) is type(their_future) is ndb.tasklets.Future
        assert ours.futures[-1] is our_future
        their_future.info = our_future.info
        assert vars(our_future) == vars(their_future)
    assert ours.mutations == theirs.mutations
    assert {**vars(ours), "futures": 0} == {**vars(theirs), "futures": 0}
