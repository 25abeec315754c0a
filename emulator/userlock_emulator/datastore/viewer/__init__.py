"""Pages about the data, the queries and the transactions of a running emulator, for people.

`pages` has an entry for each address. It asks `store`, `querying` and `trouble` for a document,
which is the page's JSON, and `views` for the HTML of that document. So both say the same.
"""
