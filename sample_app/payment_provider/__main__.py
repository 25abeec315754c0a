"""The command `python -m sample_app.payment_provider`."""

from __future__ import annotations

import argparse

from sample_app.payment_provider.server import LOOPBACK, Server


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m sample_app.payment_provider",
        description="A fake payment provider on the loopback interface. It moves no money.",
    )
    parser.add_argument("--port", type=int, required=True, help="the port to listen on")
    with Server((LOOPBACK, parser.parse_args().port)) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
