"""A Cloud Datastore emulator: `google.datastore.v1` over gRPC and HTTP, on top of SQLite.

The layers, each seeing only those below it:

    server        everything together: start and stop
    front         the port, held by a small process that tells gRPC and HTTP apart (relay)
    web           HTTP/1.1 on connections; control: what it answers beside the RPCs
    servicer      gRPC: bytes to request, response to bytes, errors to status
    http_rpcs     the same for HTTP, in protobuf and in JSON
    rpcs          the RPCs by name, with faults and a log
    engine        the RPCs, without transport: reads, writes, sessions
    mutations     checking and applying what a commit asks for; masks, transforms
    concurrency   modes: optimistic (here), pessimistic (with locks)
    transactions  the life of a transaction, what it has read
    queries       the RPCs that query; gql (its own language), explain, aggregation
    index_policy  composite indexes that queries need: composite, index_file
    query         what a query means; query_parser, query_limits, query_batch, cursors
    query_runner  how it is run: access (to indexes), metadata (made-up kinds)
    storage       versioned rows and index rows in SQLite; schema, rows, catalog, clock
    encoding      keys and values as byte strings that sort as documented
    validation    documented limits
    errors, protos
"""
