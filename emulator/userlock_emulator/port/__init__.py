"""The port of a server: gRPC and HTTP/1.1 on one address, and what both transports share.

The layers, each importing only those below it:

    server        the port as a whole: sockets, threads, start and stop
    front         the public port: a small process (relay) that separates gRPC from HTTP
    web           HTTP/1.1 connections; http_head, http_body; browsers: refuses foreign pages
    grpc_service  gRPC: bytes to request, response to bytes, errors to status; arrivals
    planting      faults on demand, whatever they do; fault_requests: over HTTP
    rpcs          RPCs by name, with a log line
    reply         replies over HTTP
    pages         lists in pages
    status, numbers
"""
