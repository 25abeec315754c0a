"""A Datastore emulator and an embedded memcached server."""
