"""The module that a WSGI server loads: `gunicorn sample_app.wsgi:app`, without `--preload`."""

from __future__ import annotations

import logging

from sample_app.app import create_app

# INFO logs waits for a lock, with the holder.
logging.basicConfig(
    level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"
)

app = create_app()
