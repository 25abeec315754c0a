"""An embedded memcached-protocol server for development and tests.

`with start() as server:` serves on `server.address`; so does
`python -m userlock_emulator.memcache`.
It answers as memcached 1.6.18 does, but runs in one Python thread. Prefer a real memcached where
one is available.
"""

from userlock_emulator.memcache.server import Server, start

__all__ = ["Server", "start"]
