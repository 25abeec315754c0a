"""Uploaded pictures: what they are, by their content and not by their name."""

from __future__ import annotations

import io
import threading
from typing import NamedTuple

from PIL import Image, UnidentifiedImageError

from sample_app.errors import BadInput, PicturesBusy

#: The largest file, in bytes, and the most pixels.
MOST_BYTES = 5 * 1024 * 1024
MOST_PIXELS = 40_000_000
#: Decoded at once in a process: each takes four bytes a pixel. One more is refused, and does not
#: wait: its thread is for others.
_DECODED = threading.BoundedSemaphore(2)
_TYPES = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "GIF": "image/gif",
    "WEBP": "image/webp",
}


class Picture(NamedTuple):
    """A picture that a browser can show."""

    data: bytes
    content_type: str
    width: int
    height: int


def checked(data: bytes) -> Picture:
    """Return a picture; `BadInput` if a file is none, is broken, or is too large."""
    if not data:
        raise BadInput("file", "choose a picture")
    if len(data) > MOST_BYTES:
        raise BadInput("file", f"at most {MOST_BYTES // 1024 // 1024} MB")
    refusal = BadInput("file", "this is no picture: use PNG, JPEG, GIF or WebP")
    try:
        with Image.open(io.BytesIO(data), formats=list(_TYPES)) as image:
            kind, (width, height) = str(image.format), image.size
            if width * height > MOST_PIXELS:
                raise BadInput("file", f"at most {MOST_PIXELS // 1_000_000} million pixels")
            _load(image)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise BadInput("file", f"at most {MOST_PIXELS // 1_000_000} million pixels") from error
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, EOFError) as error:
        raise refusal from error
    return Picture(data, _TYPES[kind], width, height)


def _load(image: Image.Image) -> None:
    """Decode a picture: half a file is none.

    Raises:
        PicturesBusy: as many as may are being decoded.
    """
    if not _DECODED.acquire(blocking=False):
        raise PicturesBusy
    try:
        image.load()
    finally:
        _DECODED.release()
