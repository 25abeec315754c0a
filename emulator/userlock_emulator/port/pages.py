"""Lists that RPCs return page by page, ordered by name.

The token of a page is the last name of the page before, so names that come and go between two
requests do not matter.
"""

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from userlock_emulator.port.status import Code, RpcError


def page(names: Iterable[str], request: Any, most: int) -> tuple[list[str], str]:
    """Return the names of a page, and the token of the next one.

    Args:
        request: a message with `page_size` and `page_token`.
        most: the names of the largest page.

    Raises:
        RpcError: INVALID_ARGUMENT: size or token is invalid.
    """
    count, after = page_size(request.page_size, most), after_token(request.page_token)
    found = sorted(name for name in names if name > after)
    return found[:count], token_after(found[count - 1]) if len(found) > count else ""


def page_size(asked: int, most: int) -> int:
    """Return the number of results of a page."""
    if asked < 0:
        raise RpcError(Code.INVALID_ARGUMENT, "The page size cannot be negative.")
    return min(asked, most) or most


def token_after(last: str) -> str:
    """Return the token of the page that follows a name."""
    return base64.urlsafe_b64encode(last.encode()).decode()


def after_token(token: str) -> str:
    """Return the name that a page follows.

    Raises:
        RpcError: the token is none of `token_after`.
    """
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise RpcError(Code.INVALID_ARGUMENT, "The page token is invalid.") from None
