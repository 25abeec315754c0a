"""The engines by the scheme of their URLs."""

from __future__ import annotations

import importlib

from userlock.outbox.engines import Engine

_MODULES = {"inline": "inline", "cloudtasks": "cloudtasks", "rq": "rq", "rqs": "rq"}


def open_engine(url: str | Engine) -> Engine:
    """Return the engine that a URL names.

    Raises:
        ValueError: the URL is malformed. The text shows no password.
        ImportError: an extra is missing; the text names it.
    """
    if isinstance(url, Engine):
        return url
    if not isinstance(url, str):
        raise TypeError(
            f"an engine is a URL like 'cloudtasks://PROJECT/LOCATION/QUEUE', or has the methods "
            f"connect, wake and close; this is a {type(url).__name__}"
        )
    # Not by urlsplit, whose errors quote their input, with a password.
    module_name = _MODULES.get(url.partition(":")[0].lower())
    if module_name is None:
        raise ValueError(
            "the URL names no engine; there are: inline://, cloudtasks://PROJECT/LOCATION/QUEUE, "
            "rq://HOST:PORT/DATABASE and, with TLS, rqs://"
        )
    module = importlib.import_module(f"userlock.outbox.engines.{module_name}")
    engine: Engine = module.open_url(url)
    return engine
