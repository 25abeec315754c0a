"""Trees of entities, deleted bottom-up by a job, any number of times.

tree.py   what an app declares: Tree; delete_tree
rows.py   the rows in Datastore: each deletion's owner, root and progress
run.py    one run of the job: batches, each a transaction
walk.py   finds the entities below a root, each after those below it
"""

from __future__ import annotations

from userlock.deletion.rows import Deletion
from userlock.deletion.tree import Tree, delete_tree, deletions_of, find_deletion, unfinished

__all__ = ["Deletion", "Tree", "delete_tree", "deletions_of", "find_deletion", "unfinished"]
