"""A Cloud Datastore emulator: `google.datastore.v1` over gRPC and HTTP, on top of SQLite.

The layers, each importing only those below it:

    server        start and stop of the whole emulator, on a port of `userlock_emulator.port`
    control       requests beside the RPCs: reset, export, import, faults
    http_rpcs     the RPCs over HTTP, in protobuf and in JSON
    rpcs          the RPCs by name, with fault injection and a log
    engine        the RPCs, without transport: reads, writes, sessions
    mutations     checking and applying a commit's mutations; masks, transforms
    concurrency   modes: optimistic (here), pessimistic (with locks)
    transactions  the life cycle of a transaction and its read set
    queries       the query RPCs; gql (its own language), explain, aggregation
    index_policy  composite indexes that queries need: composite, index_file
    query         the meaning of a query; query_parser, query_limits, query_batch, cursors
    query_runner  query execution: access (to indexes), metadata (virtual kinds)
    storage       versioned rows and index rows in SQLite; schema, rows, catalog, clock
    encoding      keys and values as byte strings that sort as documented
    validation    documented limits
    errors, protos
"""
