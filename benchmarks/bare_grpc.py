"""A gRPC server in Python without any work: `python -m benchmarks.bare_grpc PORT`.

It is the lower bound for any Datastore emulator in Python. Every method of every service returns
the bytes of the request.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc


class _Echo(grpc.GenericRpcHandler):
    def service(self, handler_call_details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, _: request)


def main(port: str) -> None:
    """Serve until the process is killed."""
    server = grpc.server(ThreadPoolExecutor(8), handlers=[_Echo()])
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[1])
