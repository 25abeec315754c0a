"""The engines by the scheme of their URLs."""

from __future__ import annotations

import importlib
from urllib.parse import urlsplit

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
    scheme = urlsplit(url).scheme if url.isprintable() else ""
    if scheme not in _MODULES:
        raise ValueError(
            f"no engine has the scheme {scheme[:40]!r}; there are: inline://, "
            f"cloudtasks://PROJECT/LOCATION/QUEUE, rq://HOST:PORT/DATABASE"
        )
    module = importlib.import_module(
        f"userlock.outbox.engines.{'rq' if scheme == 'rqs' else scheme}"
    )
    engine: Engine = module.open_url(url)
    return engine
