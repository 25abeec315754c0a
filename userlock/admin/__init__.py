"""Administration: facts about locks, jobs, requests and servers, and commands for operators.

Each noun is a module: its facts, which the inspector shows too, and its commands. `rendering`
writes facts; `userlock.cli` chooses a command. For each kind of store there is a module of the
same name as in `userlock.stores`, which lists its locks and examines its server (see `health`).
"""
