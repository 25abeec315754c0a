"""The public names of the model layer, which needs ndb; see `_public`."""

# isort would write one statement for each name.
# isort: skip_file
from userlock.ndb.hooks import (
    delete as delete,
)
from userlock.ndb.lock_ids import (
    key_id as key_id,
    lock_id_of as lock_id_of,
    root_id as root_id,
)
from userlock.ndb.model import (
    Model as Model,
    UserModel as UserModel,
    WriteIdProperty as WriteIdProperty,
    fetch_under_user_write_lock as fetch_under_user_write_lock,
    models_without_policy as models_without_policy,
)
from userlock.ndb.transactions import (
    transactional as transactional,
)
from userlock.ndb.policies import (
    WritePolicy as WritePolicy,
)
