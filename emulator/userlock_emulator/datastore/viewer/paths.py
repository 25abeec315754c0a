"""The paths of the viewer. The pages themselves are imported when somebody asks for one."""

PREFIX = "/viewer"
# A change of an entity may wait for locks. It must not occupy a thread that ends such waits.
_WAITING = (f"{PREFIX}/save", f"{PREFIX}/delete", f"{PREFIX}/query")


def is_viewer(path: str) -> bool:
    """Return whether a path is that of a page, so for clients on this machine only."""
    path = path.partition("?")[0]
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def may_wait(path: str) -> bool:
    """Return whether a request for this path may take as long as an RPC."""
    return path.partition("?")[0].rstrip("/").removesuffix(".json") in _WAITING
