"""Trees of entities, deleted bottom-up by a job, any number of times.

tree.py   what an app declares: Tree; delete_tree; the rows in Datastore
run.py    one run of the job: batches, each a transaction
walk.py   finds the entities below a root, each after those below it
"""

from __future__ import annotations

from userlock.deletion.tree import (
    Deletion,
    Tree,
    delete_tree,
    deletions_of,
    find_deletion,
    unfinished,
)

__all__ = ["Deletion", "Tree", "delete_tree", "deletions_of", "find_deletion", "unfinished"]
