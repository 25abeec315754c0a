"""A Cloud Datastore emulator: `google.datastore.v1` over gRPC on top of SQLite.

The layers, each seeing only those below it:

    server        sockets, threads, start and stop
    servicer      gRPC: bytes to request, response to bytes, errors to status
    engine        what each RPC means; no transport
    transactions  snapshots, life of a transaction; concurrency control
    query         parsing, planning and running queries
    storage       versioned rows and index rows in SQLite
    encoding      keys and values as byte strings that sort as documented
    errors, protos
"""
