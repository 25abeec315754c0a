"""The parts of a Datastore URL."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from userlock.stores.datastore.keys import DEFAULT_KIND
from userlock.stores.options import options_of


class Address(NamedTuple):
    """The place of the rows.

    Attributes:
        project: None for the environment's.
        database: None for the default database.
        namespace: None for the default namespace.
        prefix: begins every row's name.
        kind: of the rows.
    """

    project: str | None
    database: str | None
    namespace: str | None
    prefix: str
    kind: str


def parse_url(url: str) -> Address:
    """Parse `datastore://[PROJECT]?database=DB&namespace=NS&prefix=P&kind=K`.

    Raises:
        ValueError: the URL is malformed; the message says how.
    """
    parts = urlsplit(url)
    options = options_of(parts, url)
    address = Address(
        project=parts.netloc or None,
        database=options.pop("database", None) or None,
        namespace=options.pop("namespace", None) or None,
        prefix=options.pop("prefix", "userlock"),
        kind=options.pop("kind", DEFAULT_KIND),
    )
    if options:
        raise ValueError(
            f"{url!r}: unknown option {', '.join(options)}; "
            "there are: database, namespace, prefix, kind"
        )
    if parts.path:
        raise ValueError(f"{url!r} must look like datastore://PROJECT?database=DB&prefix=NAME")
    return address
